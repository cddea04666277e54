"""Adapters, one file per provider: settings, send, table of codes, look-up, check. See `ports.provider`.

smtp, twilio                     real providers          call    one HTTP call under the port's rules
resend, postmark, ses, sinch     vendors' HTTP APIs      api     what these have in common
http                             any HTTP API            mime    an email as bytes
console, file                    for development         echo    our signed id in a callback URL
"""
