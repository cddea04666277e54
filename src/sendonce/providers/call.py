"""One HTTP call under the rules of the provider port; every HTTP adapter sends through here.

    connection ready -> start() -> write -> whole answer -> the adapter reads it
        |                  |         |
     Failed,           NotStarted   Unknown
     AccountError

A complete answer goes back to the adapter, which alone knows what it means. Everything else already
is an `Outcome`: see the two tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from sendonce.core.outcome import AccountError, Failed, NotStarted, Outcome, Reason, Unknown
from sendonce.ports.provider import Start, TooLate
from sendonce.runtime.http_client import HttpClient, MaybeSent, NotSent, Origin, Response

NOT_SENT: Mapping[str, Outcome] = {
    "closed": NotStarted("stopping"),
    "handles": NotStarted("no_handles"),
    # A wrong certificate is an attack or a wrong setting; the next recipient would meet it as well.
    "certificate": AccountError(Reason.CONFIGURATION, "tls_certificate"),
    "plain_http": AccountError(Reason.CONFIGURATION, "plain_http"),
    # pool, timeout, dns, refused, connect, tls, stale: the way there, which may be open again later
}
MAYBE_SENT: Mapping[str, Outcome] = {
    "timeout": Unknown("timeout"),
    "reset": Unknown("reset"),
    "truncated": Unknown("truncated"),
    "shutdown": Unknown("shutdown"),
    # Something came that is not a whole answer; what stood in the rest is not known.
    "bad_response": Unknown("truncated", "bad_response"),
    "too_large": Unknown("truncated", "too_large"),
}


async def call(
    client: HttpClient, origin: Origin, data: bytes, *, start: Start, timeout_s: float
) -> Response | Outcome:
    """Send `data` (from `encode_request`) once; `timeout_s` counts from the return of `start()`."""
    connection = await client.acquire(origin)
    if isinstance(connection, NotSent):
        return _not_sent(connection)
    try:
        await start()
    except TooLate as late:
        connection.release()
        return NotStarted(late.why)
    except BaseException:
        connection.release()
        raise
    answer = await connection.request(data, timeout_s=timeout_s)
    match answer:
        case Response():
            return answer
        case NotSent():
            return _not_sent(answer)
        case MaybeSent(why):
            return MAYBE_SENT[why]


async def ask(client: HttpClient, origin: Origin, data: bytes, *, timeout_s: float) -> Response | str:
    """A call that changes nothing, such as a look-up: the answer, or why there is none."""
    connection = await client.acquire(origin)
    if isinstance(connection, NotSent):
        return connection.why
    answer = await connection.request(data, timeout_s=timeout_s)
    return answer if isinstance(answer, Response) else answer.why


def _not_sent(result: NotSent) -> Outcome:
    return NOT_SENT.get(result.why) or Failed(Reason.CONNECTION, result.why)
