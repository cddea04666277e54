"""Adapters, one file per provider: settings, send, table of codes, look-up, check. See `ports.provider`.

smtp, twilio                     real providers          call    one HTTP call under the port's rules
resend, postmark, ses, sendgrid, vendors' HTTP APIs      api     what vendors' APIs have in common
mailgun, sinch, vonage, notify                           mime    an email as bytes
http                             any HTTP API            echo    our signed id in a callback URL
console, file                    for development
"""
