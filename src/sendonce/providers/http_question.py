"""How to ask any API what became of a message, by configuration.

    [account.texts]
    poll = "60/min"
    [account.texts.question]
    url = "https://sms.example.com/v1/messages/{{ receipt }}"
    kind_path = "status"
    kinds = { queued = "accepted", delivered = "delivered", failed = "undelivered" }

The receipt is put into the URL percent-encoded. A word that `kinds` does not have is unknown, with that word
as its code: nothing is guessed from how it sounds. What was answered is the same event for as long as word,
code and time are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sendonce.core.errors import InvalidInput
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import Heard, NotTold
from sendonce.providers.api import code_in
from sendonce.providers.events import (
    Faulty,
    address_in,
    collect,
    identity_from,
    kind_of,
    moment_in,
    object_of,
)
from sendonce.providers.http_events import dig
from sendonce.runtime.http_client import parse_url

_URL: Final = re.compile(r"https?://[^/?#{}\s]+([/?]\S.*)")
RECEIPT: Final = re.compile(r"\{\{\s*receipt\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpQuestion:
    """How to ask what became of a message. Paths are dotted (`data.0.id`), within one row."""

    url: str = field(metadata={"meaning": "GET URL of a message; after the host it holds `{{ receipt }}`."})
    rows_path: str = field(
        default="", metadata={"meaning": "Where the rows are; empty: the answer is one row, or a list."}
    )
    kind_path: str = field(metadata={"meaning": "Where a row says what became of the message."})
    kinds: Mapping[str, EventKind] = field(metadata={"meaning": "Its words, and what each means."})
    receipt_path: str = field(
        default="",
        metadata={"meaning": "Where a row names the message; empty: the URL alone names it."},
    )
    address_path: str = field(default="", metadata={"meaning": "Where it says whom it is about."})
    time_path: str = field(
        default="", metadata={"meaning": "Where it says when: ISO 8601, or seconds since 1970."}
    )
    code_path: str = field(default="", metadata={"meaning": "Where it has a code beside its word."})

    def __post_init__(self) -> None:
        where = _URL.fullmatch(self.url)
        if where is None or len(RECEIPT.findall(where[1])) != 1:
            rule = "must be https://host/path, with {{ receipt }} in it once, after the host"
            raise InvalidInput(f"{self.url!r} {rule}", field="url")
        parse_url(RECEIPT.sub("receipt", self.url))


def read(body: bytes, receipt: str, question: HttpQuestion) -> Heard | NotTold:
    """What a complete answer says of the message; pure."""
    try:
        answer: object = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return NotTold("unreadable")
    rows = dig(answer, question.rows_path) if question.rows_path else answer
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        return NotTold("unreadable")
    if question.receipt_path:
        ours = [row for row in rows if _word(dig(row, question.receipt_path)) == receipt]
        if rows and not ours:
            return NotTold("another_message")
        rows = ours
    return Heard(collect(rows, partial(_event, receipt=receipt, question=question)))


def _event(given: object, *, receipt: str, question: HttpQuestion) -> ProviderEvent:
    row = object_of(given)

    def at(path: str) -> object:
        return dig(row, path) if path else None

    told = at(question.kind_path)
    if not isinstance(told, str) or not told:
        raise Faulty("no_kind")
    code, moment = code_in(at(question.code_path)), at(question.time_path)
    return ProviderEvent(
        identity=identity_from(receipt, told, code, moment),
        kind=kind_of(told, question.kinds),
        receipt=receipt,
        address=address_in(at(question.address_path)),
        occurred_at=moment_in(moment),
        code="/".join(each for each in (code_in(told), code) if each),
    )


def _word(value: object) -> str:
    """A receipt as a send would have read it."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
