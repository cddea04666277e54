"""The provider's view of a delivery: built from what was frozen, the same on every attempt."""

from __future__ import annotations

import json

from sendonce.core.delivery import Channel, send_key
from sendonce.core.mail_token import mail_token
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.ports.provider import EmailContent, Message, SmsContent
from sendonce.ports.store import Content, Delivery


def message_of(row: Delivery, content: Content, policy: Policy, *, secret: bytes, now: int) -> Message:
    """The provider's view of a delivery; a redirect replaces the address at the last moment."""
    payload: dict[str, str] = json.loads(content.payload)
    to = policy.recipients.redirect.get(row.channel, content.address)
    body: EmailContent | SmsContent
    if row.channel is Channel.SMS:
        body = SmsContent(text=payload["text"], sender=payload["sender"])
    else:
        body = EmailContent(
            subject=payload["subject"],
            text=payload["text"],
            html=payload["html"],
            sender=payload["sender"],
            reply_to=payload["reply_to"],
            unsubscribe=payload.get("unsubscribe", ""),
        )
    valid_s = max(1, (row.course.expires_at - now) // SECOND)
    key = send_key(secret, row.tenant, row.key, row.standing.version)
    token = mail_token(secret, key) if row.channel is Channel.EMAIL else ""
    return Message(row.key, key, to, body, content.frozen_at, valid_s, token)
