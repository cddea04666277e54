"""Any API, asked what became of a message, as the account's `question` says.

It has the account's login, and its rules for answers that are no 200. A 404 is about the message.

Sources: those of `http`.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from sendonce.core.errors import ConfigError
from sendonce.core.outcome import AccountError, NoAnswer, Rejected, Throttled
from sendonce.ports.events import Answered, NotTold
from sendonce.providers.call import ask
from sendonce.providers.http import HttpSettings, classify, client_of, headers_of
from sendonce.providers.http_question import RECEIPT, HttpQuestion, read
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response, encode_request, parse_url


def http_asked(settings: HttpSettings) -> HttpAsked | None:
    """Who asks; None: the settings do not say how. Raises `ConfigError` for a URL that cannot work."""
    return HttpAsked(settings, settings.question) if settings.question else None


class HttpAsked:
    """`ports.events.Asked` for one account of the `http` adapter. `now`: microseconds UTC, for waits."""

    def __init__(
        self, settings: HttpSettings, question: HttpQuestion, *, now: Callable[[], int] | None = None
    ) -> None:
        self._settings = settings
        self._question = question
        self._now = now or SystemClock().now
        self._headers = headers_of(settings)
        self._client = client_of(settings)
        origin, _ = parse_url(RECEIPT.sub("receipt", question.url))
        if origin.scheme == "http" and not settings.allow_plain_http:
            raise ConfigError("question.url is http://: use https://, or write allow_plain_http = true")

    async def ask(self, receipt: str) -> Answered:
        origin, target = parse_url(RECEIPT.sub(lambda _: quote(receipt, safe=""), self._question.url))
        headers = [(name, value.reveal()) for name, value in self._headers]
        data = encode_request(origin, "GET", target, headers, b"")
        answer = await ask(self._client, origin, data, timeout_s=self._settings.timeout_s)
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        if answer.status == 200:
            return read(answer.body, receipt, self._question)
        if answer.status in (404, 410):
            return NotTold(f"http_{answer.status}")
        match classify(answer, self._settings, self._now()):
            case Throttled() | AccountError() as known:
                return known
            case Rejected(_, code):
                return NotTold(code)
            case _:
                return NoAnswer(f"http_{answer.status}")

    async def close(self) -> None:
        await self._client.close()
