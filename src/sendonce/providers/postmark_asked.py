"""Postmark, asked what became of a message.

    GET {base_url}/messages/outbound/{MessageID}/details    X-Postmark-Server-Token
        ->  200 {"MessageID": ..., "Metadata": {...}, "MessageEvents": [{"Type": "Delivered", ...}]}
    GET {base_url}/bounces/{BounceID}    ->  200 {"ID": ..., "Type": "HardBounce", "BouncedAt": ..., ...}

The events of a message say that it bounced and not how: the bounce itself is asked for too, a second call.
What it says is then read as the webhook of a bounce is: it has the same fields. Opens and clicks are unknown
to us here as there. Messages and their events are kept for 45 days, or 7 where an account chose so.

Sources: postmarkapp.com/developer: api/messages-api (outbound message details), api/bounce-api (get a single
bounce); postmarkapp.com/blog/messageevents-every-message-event-in-one-api-call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sendonce.core.outcome import ThrottleScope
from sendonce.ports.events import Answered, Heard, NotTold
from sendonce.providers.api import Api, code_in, object_in, rows_in
from sendonce.providers.asked import segment, untold
from sendonce.providers.events import collect, part, text_in
from sendonce.providers.postmark import CODES, PostmarkSettings
from sendonce.providers.postmark_events import event_in
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

ID_MAX = 64


class PostmarkAsked:
    """`ports.events.Asked` for one Postmark server. `now`: microseconds UTC, for waits."""

    def __init__(self, settings: PostmarkSettings, *, now: Callable[[], int] | None = None) -> None:
        self._now = now or SystemClock().now
        self._api = Api(settings)
        self._login = [("X-Postmark-Server-Token", settings.server_token.reveal())]

    async def ask(self, receipt: str) -> Answered:
        answer = await self._api.get(f"/messages/outbound/{segment(receipt)}/details", self._login)
        bounce_id = bounce_in(answer)
        if not bounce_id:
            return read(answer, receipt, {}, self._now())
        bounce = await self._api.get(f"/bounces/{segment(bounce_id)}", self._login)
        nothing = _untold(bounce, self._now())
        if nothing is not None:
            return nothing
        assert isinstance(bounce, Response), "what is no answer tells nothing"
        told = read(answer, receipt, object_in(bounce.body), self._now())
        return replace(told, calls=2) if isinstance(told, Heard) else told

    async def close(self) -> None:
        await self._api.close()


def bounce_in(answer: Response | str) -> str:
    """The bounce that the events of a message end with; "" where there is none. Pure."""
    if not isinstance(answer, Response) or answer.status != 200:
        return ""
    bounced = [row for row in _rows(answer) if row.get("Type") == "Bounced"]
    return next((_bounce_of(row) for row in reversed(bounced) if _bounce_of(row)), "")


def read(answer: Response | str, receipt: str, bounce: Mapping[str, Any], now: int) -> Answered:
    """What an answer says of the message, with the bounce that was asked for besides; pure."""
    nothing = _untold(answer, now)
    if nothing is not None:
        return nothing
    assert isinstance(answer, Response), "what is no answer tells nothing"
    body = object_in(answer.body)
    if body.get("MessageID") != receipt:
        return NotTold("another_message")
    rows = _rows(answer)
    common = {"MessageID": receipt, "Metadata": part(body, "Metadata")}
    return Heard(collect([{**common, **_as_called(row, bounce)} for row in rows], event_in))


def _rows(answer: Response) -> list[dict[str, Any]]:
    return rows_in(object_in(answer.body).get("MessageEvents")) or []


def _bounce_of(row: Mapping[str, Any]) -> str:
    return text_in(part(row, "Details").get("BounceID"), ID_MAX).strip()


def _as_called(row: Mapping[str, Any], bounce: Mapping[str, Any]) -> dict[str, Any]:
    """An event of a message in the shape of the webhook that would have told it."""
    to, at = row.get("Recipient"), row.get("ReceivedAt")
    match row.get("Type"):
        case "Delivered":
            return {"RecordType": "Delivery", "Recipient": to, "DeliveredAt": at}
        case "Transient":
            return {"RecordType": "Bounce", "Type": "Transient", "Email": to, "BouncedAt": at}
        case "Bounced" if bounce and text_in(bounce.get("ID"), ID_MAX) == _bounce_of(row):
            named = ("ID", "Type", "Email", "BouncedAt")
            return {"RecordType": "Bounce", **{name: bounce.get(name) for name in named}}
        case "Bounced":
            return {"RecordType": "Bounce", "Email": to, "BouncedAt": at}
        case word:
            return {"RecordType": word, "Recipient": to, "ReceivedAt": at}


def _untold(answer: Response | str, now: int) -> Answered | None:
    body = object_in(answer.body) if isinstance(answer, Response) else {}
    code = code_in(body.get("ErrorCode"))
    return untold(answer, "" if code == "0" else code, CODES, now, pace=ThrottleScope.RATE)
