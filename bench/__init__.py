"""What sendonce costs, measured on the configuration that is shipped.

    python -m bench                      everything, at the size that a few minutes allow
    python -m bench drain pacing         only these
    python -m bench --full --runs 3      the sizes that the targets are stated for; medians of three

    measurement      what a measurement is, and how its figures become a table and JSON
    subject          the system under test: sendonce in a folder of its own, with real worker processes
    door, door.c     the provider: counts and times what arrives, whatever the sender believes
    machine          CPU and memory of processes, and who else is busy meanwhile
    drain, import_file, future, memory, pacing, reaction    one measurement each

Nothing is mocked on our side: rows come in through the importer, a pass publishes them, `sendonce
worker` claims, sends over HTTP and settles, on SQLite with `synchronous=FULL`, ledger, gate and consent
on. What arrived, how often and when is read at the provider's door, never from our own books.
"""
