"""Adapters, one file per provider: settings, send, table of codes, look-up, check. See `ports.provider`.

smtp, twilio, http    real providers              call    one HTTP call under the port's rules
resend, postmark, ses vendors' HTTP APIs          api     what these have in common
console, file         for development             mime    an email as bytes
                                                  echo    our signed id in a callback URL
"""
