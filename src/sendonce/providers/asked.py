"""What the adapters that can be asked have in common: an answer that tells nothing is read here.

    answer -> untold(...) -> None: a 200, which the adapter reads
                          -> why there is nothing: of this message, for now, at this pace, or with this login

A 404 is about the message: it is not there yet, or not any more. Everything else is read as an answer to a
send would be, by the adapter's own codes, since a provider has one table of errors for all its calls.
"""

from __future__ import annotations

from urllib.parse import quote

from sendonce.core.outcome import AccountError, NoAnswer, Rejected, Throttled, ThrottleScope
from sendonce.ports.events import NotTold
from sendonce.providers.api import Codes, outcome_of
from sendonce.runtime.http_client import Response


def untold(
    answer: Response | str, code: str, codes: Codes, now: int, *, pace: ThrottleScope
) -> NotTold | Throttled | AccountError | NoAnswer | None:
    """Why an answer to a question tells nothing; None for a 200. Pure. The rest as `outcome_of`."""
    if isinstance(answer, str):
        return NoAnswer(answer)
    if answer.status == 200:
        return None
    if answer.status in (404, 410):
        return NotTold(f"http_{answer.status}")
    match outcome_of(answer, code, codes, now, pace=pace):
        case Throttled() | AccountError() as known:
            return known
        case Rejected(_, why):
            return NotTold(why)
        case _:
            return NoAnswer(f"http_{answer.status}")


def segment(receipt: str) -> str:
    """A message id as one part of a path, whatever it holds."""
    return quote(receipt, safe="")
