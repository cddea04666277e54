"""GOV.UK Notify, asked what became of a message.

    GET {base_url}/v2/notifications/{id}    Bearer JWT
        ->  200 {"id": ..., "reference": ..., "status": "delivered", "completed_at": ..., ...}

It answers with the words and times of its callbacks, and names the address by kind. Messages are kept for
seven days, or fewer where the service says so. What is documented of limits is about sending.

Sources: docs.notifications.service.gov.uk/rest-api.html (get the status of one message, error codes, limits);
github.com/alphagov/notifications-api (v2/notifications/get_notifications).
"""

from __future__ import annotations

from collections.abc import Callable

from sendonce.core.outcome import ThrottleScope
from sendonce.ports.events import Answered, Heard, NotTold
from sendonce.providers.api import Api, code_in, object_in, rows_in
from sendonce.providers.asked import segment, untold
from sendonce.providers.events import collect
from sendonce.providers.notify import CODES, NotifySettings, token
from sendonce.providers.notify_events import event_in
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response


class NotifyAsked:
    """`ports.events.Asked` for one Notify service. `now`: microseconds UTC, for tokens and waits."""

    def __init__(self, settings: NotifySettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)

    async def ask(self, receipt: str) -> Answered:
        login = token(self._settings.api_key, self._now() // 1_000_000)
        answer = await self._api.get(
            f"/v2/notifications/{segment(receipt)}", [("Authorization", f"Bearer {login}")]
        )
        return read(answer, receipt, self._now())

    async def close(self) -> None:
        await self._api.close()


def read(answer: Response | str, receipt: str, now: int) -> Answered:
    """What an answer says of the message; pure."""
    body = object_in(answer.body) if isinstance(answer, Response) else {}
    errors = rows_in(body.get("errors")) or [{}]
    # One name for what is wrong with a request and, as a 403, with a key.
    codes = CODES if isinstance(answer, Response) and answer.status != 403 else {}
    nothing = untold(answer, code_in(errors[0].get("error")), codes, now, pace=ThrottleScope.RATE)
    if nothing is not None:
        return nothing
    if body.get("id") != receipt:
        return NotTold("another_message")
    to = body.get("email_address") or body.get("phone_number")
    return Heard(collect([{**body, "to": to, "notification_type": body.get("type")}], event_in))
