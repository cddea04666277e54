"""What Twilio calls back with: a form for each status of a message and for each text that comes in, signed.

    MessageSid=SM...&MessageStatus=delivered&To=...&AccountSid=AC...      to the callback URL of the message
    MessageSid=SM...&SmsStatus=received&From=...&Body=...&OptOutType=STOP    to the webhook of the number

Signed are the URL as Twilio called it and the form's fields. Behind a proxy the address of a request may not
be the one that Twilio knows, so the scheme and host of `callback_url` are tried as well, and each with and
without its port, of which Twilio is "inconsistent". There is no time in it. The send key is in the URL, under
our own signature too (`echo`).

An incoming text is a customer's words; where Twilio itself has acted on it, `OptOutType` says how. Twilio
reads the answer as what to reply: nothing. A status "failed" may have been said before any carrier was asked.

Sources: twilio.com/docs: usage/security, messaging/guides/track-outbound-message-status,
messaging/guides/webhook-request, messaging/tutorials/advanced-opt-out, api/errors;
github.com/twilio/twilio-python (request_validator).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Forged, Unreadable
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.echo import verify_callback
from sendonce.providers.events import (
    Faulty,
    VendorEvents,
    address_in,
    collect,
    form_in,
    identity_from,
    kind_of,
    text_in,
)
from sendonce.providers.twilio import TwilioSettings

NO_REPLY = '<?xml version="1.0" encoding="UTF-8"?><Response></Response>'


def twilio_events(settings: TwilioSettings) -> TwilioEvents | None:
    return TwilioEvents(settings) if signing_tokens(settings) else None


def signing_tokens(settings: TwilioSettings) -> tuple[Any, ...]:
    """Twilio signs with the account's auth token, which `auth_token` is unless it belongs to an API key."""
    own = () if settings.api_key else (settings.auth_token,)
    return (*settings.event_secrets, *own)


class TwilioEvents(VendorEvents):
    """`ports.events.EventSource` for one Twilio account or subaccount."""

    def __init__(self, settings: TwilioSettings) -> None:
        self._settings = settings
        self._secrets = signing_tokens(settings)

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        settings, form = self._settings, _form(request)
        urls = _urls(request.url, settings.callback_url)
        signatures.twilio(urls, form, request.headers.get("x-twilio-signature", ""), self._secrets)
        if form.get("AccountSid") != settings.account_sid:
            raise Forged("source")
        if "MessageStatus" not in form:
            batch = collect([form], _reply)
            return EventBatch(batch.events, batch.faulty, NO_REPLY, "text/xml")
        send_key = verify_callback(request.url, settings.callback_secret) if settings.callback_secret else ""
        return collect([form], partial(_status, send_key=send_key or ""))


def _form(request: EventRequest) -> dict[str, str]:
    """The fields, which are what is signed: without them it is nobody's."""
    try:
        return form_in(request)
    except Unreadable:
        raise Forged("signature") from None


def _status(form: Mapping[str, str], *, send_key: str) -> ProviderEvent:
    message, word = _message(form), code_in(form["MessageStatus"])
    error = code_in(form.get("ErrorCode"))
    return ProviderEvent(
        identity=identity_from(message, word, error),
        kind=ERRORS.get(error, kind_of(word, KINDS))
        if word in ("failed", "undelivered")
        else kind_of(word, KINDS),
        receipt=message,
        send_key=send_key,
        address=address_in(form.get("To")),
        code="/".join(each for each in (word, error) if each),
    )


def _reply(form: Mapping[str, str]) -> ProviderEvent:
    message, told = _message(form), code_in(form.get("OptOutType"))
    return ProviderEvent(
        identity=identity_from(message, "received"),
        kind=OPT_OUTS.get(told, EventKind.REPLIED),
        address=address_in(form.get("From")),
        code=f"received/{told}" if told else "received",
        text=text_in(form.get("Body")),
    )


def _message(form: Mapping[str, str]) -> str:
    message = receipt_in(form.get("MessageSid"))
    if not message:
        raise Faulty("no_id")
    return message


def _urls(called: str, callback_url: str) -> list[str]:
    """What Twilio may have signed: the address as it came, or with the public one's scheme and host."""
    try:
        parts = urlsplit(called)
        bases = [parts]
        if callback_url:
            public = urlsplit(callback_url)
            bases.append(parts._replace(scheme=public.scheme, netloc=public.netloc))
        return [called, *(each for base in bases for each in _ports(base))]
    except ValueError:
        return [called]


def _ports(parts: SplitResult) -> tuple[str, str]:
    """With its port and without. Raises ValueError for a port that is none."""
    host = parts.netloc.rpartition("@")[2]
    bare = host.removesuffix(f":{parts.port}") if parts.port else host
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts._replace(netloc=bare).geturl(), parts._replace(netloc=f"{bare}:{port}").geturl()


KINDS = {
    "accepted": EventKind.ACCEPTED,
    "scheduled": EventKind.ACCEPTED,
    "queued": EventKind.ACCEPTED,
    "sending": EventKind.ACCEPTED,
    "sent": EventKind.SENT,
    "delivered": EventKind.DELIVERED,
    "undelivered": EventKind.UNDELIVERED,
    "failed": EventKind.REJECTED,
    "canceled": EventKind.REJECTED,
}
ERRORS = {
    "21610": EventKind.SUPPRESSED,  # had replied STOP
    "30036": EventKind.EXPIRED,  # the validity period is over
}
OPT_OUTS = {
    "STOP": EventKind.OPTED_OUT,
    "START": EventKind.OPTED_IN,
}
"""HELP is a customer's words like others: Twilio has answered, and nothing follows."""
