"""What a caller asks for: one reminder, as written in a row, a call or a request.

Nothing here is checked yet; everything is text as it was given, and "" means "not given". `COLUMNS`
says by which names the fields are known in files, so that a spreadsheet need not be renamed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sendonce.core.errors import InvalidInput

DEFAULT_TENANT: Final = "default"
PRIORITY_MAX: Final = 9

AUTOMATIC: Final = (
    "reminder", "customer", "channel", "delivery_key", "due_local", "timezone", "unsubscribe_url",
)  # fmt: skip
"""Variables that every template has without anybody giving them."""

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "reminder": ("reminder_id", "id"),
    "customer": ("customer_id",),
    "due": ("due_at", "send_at", "when"),
    "plan": (),
    "date": ("due_date", "plan_date"),
    "timezone": ("zone", "tz", "time_zone"),
    "template": ("template_name",),
    "template_version": (),
    "email": ("e_mail", "email_address", "mail"),
    "phone": ("mobile", "phone_number", "mobile_number", "to"),
    "channels": ("channel",),
    "sender": ("from", "email_sender"),
    "reply_to": (),
    "sms_sender": ("sms_from",),
    "category": (),
    "group": ("group_id", "campaign"),
    "priority": (),
    "expires": ("expires_at", "expiry", "valid_for"),
}
"""Field -> other names for it. Compared without case, with blanks, dashes and dots as underscores."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One reminder, or with `plan` and `date` one for each step of the plan.

    customer          whose reminder it is; where none is given, a name made from the first address
    due               "2026-12-01T09:00+01:00", local time of `timezone`, "now", "+20s", "in 2h"
    template_version  0: the newest when it goes out
    channels          empty: every channel that an address is given for
    expires           "2h" after the due time, or a time as in `due`; "" as configured
    """

    reminder: str
    customer: str = ""
    due: str = ""
    plan: str = ""
    date: str = ""
    timezone: str = ""
    template: str = ""
    template_version: int = 0
    data: Mapping[str, object] = field(default_factory=dict)
    email: str = ""
    phone: str = ""
    channels: tuple[str, ...] = ()
    sender: str = ""
    reply_to: str = ""
    sms_sender: str = ""
    category: str = ""
    group: str = ""
    priority: int = 0
    expires: str = ""
    tenant: str = DEFAULT_TENANT


def asked_of(values: Mapping[str, str], data: Mapping[str, object], *, tenant: str = DEFAULT_TENANT) -> Asked:
    """The reminder that named texts ask for. `values` by the names of `COLUMNS`.

    Raises `InvalidInput` where a number is none.
    """
    get = values.get
    channels = get("channels", "")
    return Asked(
        get("reminder", ""),
        get("customer", ""),
        get("due", ""),
        get("plan", ""),
        get("date", ""),
        get("timezone", ""),
        get("template", ""),
        _whole(get("template_version", ""), "template_version"),
        data,
        get("email", ""),
        get("phone", ""),
        tuple(channels.replace(",", " ").split()) if channels else (),
        get("sender", ""),
        get("reply_to", ""),
        get("sms_sender", ""),
        get("category", ""),
        get("group", ""),
        _whole(get("priority", ""), "priority"),
        get("expires", ""),
        tenant,
    )


def _whole(text: str, name: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput(
            f"{name} {text!r:.80} is no whole number: write digits only, or leave it empty", field=name
        )
    return int(text)
