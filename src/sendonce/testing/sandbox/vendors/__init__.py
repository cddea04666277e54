"""The APIs of vendors that have an adapter, each in the shape that its documents show.

    /resend/emails    /postmark/email    /ses/v2/email/outbound-emails    /sinch/xms/v1/{plan}/batches

A vendor's API stands below its own name, which goes to the end of the adapter's `base_url`. It has no
state and no opinion: what becomes of a call is decided in `channel`, with the same faults as everywhere.
"""

from typing import Final

from sendonce.testing.sandbox.vendors.mailgun import Mailgun
from sendonce.testing.sandbox.vendors.notify import Notify, NotifyEmail
from sendonce.testing.sandbox.vendors.postmark import Postmark
from sendonce.testing.sandbox.vendors.resend import Resend
from sendonce.testing.sandbox.vendors.sendgrid import Sendgrid
from sendonce.testing.sandbox.vendors.ses import Ses
from sendonce.testing.sandbox.vendors.sinch import Sinch
from sendonce.testing.sandbox.vendors.vendor import Vendor
from sendonce.testing.sandbox.vendors.vonage import Vonage

VENDORS: Final[tuple[type[Vendor], ...]] = (
    Resend,
    Postmark,
    Ses,
    Sinch,
    Sendgrid,
    Mailgun,
    Vonage,
    Notify,
    NotifyEmail,
)

__all__ = ["VENDORS", "Vendor"]
