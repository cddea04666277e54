"""The tombstone: what stands where deliveries and their entries were removed on purpose.

    tombstone n   body   {number, previous, at, policy, deliveries, entries, first, last, gone, heads, facet}
                  hash   of the body and the hash of tombstone n - 1, as entries are linked

It counts what is gone, numbers the entries that are gone, and hashes the heads of the chains that ended
there. What is left of each delivery (its number, how many entries it had, the hash of the last one) gives
`heads` again; so a delivery that vanished without a tombstone, or one too many, is told from one that was
removed by policy. `facet` is the highest number of what providers said of them: whoever reads the feed has
had it, or is told that it is gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Final

from sendonce.core.ledger import link
from sendonce.core.value import value

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


@value
class Remains:
    """What is left of one delivery: `entries` of its ledger are gone, the last of which had this hash."""

    delivery_id: int
    entries: int
    head: str


@value
class Tombstone:
    """One as it is kept. `body` is canonical JSON."""

    number: int
    at: int
    body: str
    hash: str


def tombstone(
    last: Tombstone | None,
    remains: Sequence[Remains],
    gone: Sequence[int],
    *,
    facet: int,
    at: int,
    policy: str,
) -> Tombstone:
    """The next one. `gone`: the numbers of the entries in the store; `facet`: the highest of what was said
    later, 0 for nothing; `policy`: why, for people."""
    number = last.number + 1 if last is not None else 1
    previous = last.hash if last is not None else ""
    body = _encode(
        {
            "number": number,
            "previous": previous,
            "at": at,
            "policy": policy,
            "deliveries": len(remains),
            "entries": len(gone),
            "first": min(gone),
            "last": max(gone),
            "gone": spell_numbers(gone),
            "heads": heads_of(remains),
            "facet": facet,
        }
    )
    return Tombstone(number, at, body, link(previous, body))


def heads_of(remains: Iterable[Remains]) -> str:
    """SHA-256 over a line for each, in order of their numbers."""
    lines = sorted((each.delivery_id, each.entries, each.head) for each in remains)
    text = "".join(f"{id_}:{entries}:{head}\n" for id_, entries, head in lines)
    return hashlib.sha256(text.encode()).hexdigest()


def fault_of(stone: Tombstone, last: Tombstone | None, remains: Sequence[Remains]) -> str:
    """What is wrong with one that stands behind `last`, and with what is left of its deliveries; "" where
    nothing is."""
    previous, expected = (last.hash, last.number + 1) if last is not None else ("", 1)
    if stone.number != expected:
        return f"tombstone {expected} is missing"
    if link(previous, stone.body) != stone.hash:
        return "the text does not give the recorded hash"
    try:
        body = json.loads(stone.body)
        gone = numbers_of(body["gone"])
        said = (body["number"], body["at"], body["entries"], body["first"], body["last"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return f"its text is no tombstone ({type(error).__name__})"
    if said != (stone.number, stone.at, len(gone), *(gone[:1] or [0]), *(gone[-1:] or [0])):
        return "its text does not say what stands beside it"
    if body["deliveries"] != len(remains):
        return f"it removed {body['deliveries']} deliveries, and {len(remains)} are recorded"
    if sum(each.entries for each in remains) != body["entries"] or heads_of(remains) != body["heads"]:
        return "what is recorded of its deliveries is not what it removed"
    return ""


NUMBERS_MAX: Final = 1_000_000


def spell_numbers(numbers: Iterable[int]) -> str:
    """Numbers as ranges, in order: "1-250,252"."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def numbers_of(text: str) -> list[int]:
    """What `spell_numbers` spelled. Raises `ValueError` for anything else."""
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        upto = int(high if dash else low)
        if upto - int(low) > NUMBERS_MAX:
            raise ValueError(f"{part!r} are more than one removal takes")
        numbers += range(int(low), upto + 1)
    if spell_numbers(numbers) != text:
        raise ValueError(f"{text!r:.80} is out of order")
    return numbers
