"""Sinch, asked what became of a message.

    GET {base_url}/xms/v1/{plan}/batches/{batch_id}/delivery_report?type=full    Bearer
        ->  200 {"batch_id": ..., "statuses": [{"status": "Delivered", "code": 0, "recipients": [...], ...}]}

A batch of ours has one recipient, so the report of the batch is that of the message, and no number is needed
to ask for it. It can be had without any callback having been asked for. Its rows have no time: what they say
is dated by when we were told.

Sources: developers.sinch.com/docs/sms/api-reference/sms/delivery-reports (retrieve a delivery report);
github.com/sinch/sinch-sdk-python (sms: delivery_reports_apis, message_delivery_status).
"""

from __future__ import annotations

from collections.abc import Callable

from sendonce.core.outcome import ThrottleScope
from sendonce.ports.events import Answered, Heard, NotTold
from sendonce.providers.api import Api, code_in, object_in
from sendonce.providers.asked import segment, untold
from sendonce.providers.sinch import CODES, SinchSettings
from sendonce.providers.sinch_events import events_of_batch
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response


class SinchAsked:
    """`ports.events.Asked` for one Sinch service plan. `now`: microseconds UTC, for waits."""

    def __init__(self, settings: SinchSettings, *, now: Callable[[], int] | None = None) -> None:
        self._now = now or SystemClock().now
        self._api = Api(settings)
        self._path = f"/xms/v1/{settings.service_plan_id}/batches"
        self._login = [("Authorization", f"Bearer {settings.api_token.reveal()}")]

    async def ask(self, receipt: str) -> Answered:
        answer = await self._api.get(
            f"{self._path}/{segment(receipt)}/delivery_report?type=full", self._login
        )
        return read(answer, receipt, self._now())

    async def close(self) -> None:
        await self._api.close()


def read(answer: Response | str, receipt: str, now: int) -> Answered:
    """What an answer says of the message; pure."""
    body = object_in(answer.body) if isinstance(answer, Response) else {}
    nothing = untold(answer, code_in(body.get("code")), CODES, now, pace=ThrottleScope.UNDECLARED)
    if nothing is not None:
        return nothing
    rows = body.get("statuses")
    if not isinstance(rows, list):
        return NotTold("unreadable")
    if body.get("batch_id") != receipt:
        return NotTold("another_message")
    return Heard(events_of_batch(body, rows))
