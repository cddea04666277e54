"""Adapters, one file per provider: settings, send, table of codes, look-up, check. See `ports.provider`.

smtp                             any mail server         call    one HTTP call under the port's rules
resend, postmark, ses, sendgrid, vendors' HTTP APIs      api     what vendors' APIs have in common
mailgun, sinch, vonage, notify,                          mime    an email as bytes
twilio                                                   echo    our signed id in a callback URL
http                             any HTTP API            signatures    whether an event is a provider's own
console, file                    for development         events  what sources of events have in common
                                                         sns     messages of Amazon SNS

Beside each vendor, `NAME_events`: what it calls back with, verified and read. See `ports.events`.
"""
