"""The console: pages for a support agent on the telephone and an operator on call.

It is served with the API, by the same process, under `/console`. Pages are made on the server and work
without a script; with one they refresh themselves. A page decides nothing: it reads what the stages read and
calls what the command line and the API call, so that there is one answer to every question.

    browser -> application (bounds, headers, sign-in, role, form token) -> view -> stage -> store
"""
