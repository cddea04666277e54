"""The ledger: one append-only line for each thing that happened to a delivery.

An entry is a small mapping with a canonical spelling (sorted keys, no blanks, ASCII), hashed
together with the hash of the delivery's entry before it. So each delivery has a chain of its own,
and no two deliveries ever wait for each other. Changing, dropping or swapping an entry of a chain
breaks every hash after it, and the head that the delivery's row carries.

Each moving entry spells the whole standing after the move, so that replaying a chain gives the row.
Entries carry ids, codes, times and tags, never a plain address, never text that was sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Final

from sendonce.core.lifecycle import Ending, Event, Standing, State
from sendonce.core.value import value

Value = str | int | bool | None
"""What an entry's fields may hold: floats have no canonical spelling and are not among them."""

OWN_FIELDS: Final = frozenset(
    {"key", "tenant", "seq", "at", "event", "actor", "state", "epoch", "version", "maybe", "permit", "ending"}
)
"""The fields that every entry has by itself, and no detail may take."""

TELLS_RECEIPT: Final = frozenset({Event.ACCEPTED, Event.PROVEN, Event.LATE_OUTCOME})
"""Events whose entries tell the provider's receipt, where it gave one: by these it is found. A late outcome
too: what settled its delivery before may have named none."""

GENESIS: Final = ""
"""The hash before a delivery's first entry."""


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


@value
class Entry:
    """One line.

    seq      1, 2, 3 ... within the delivery
    at       microseconds UTC, the store's calendar clock
    event    what happened
    actor    who did it: "scheduler", "worker:ID", "operator:NAME", "api:KEY", "provider"
    standing the delivery after it
    details  further fields; empty values are left out of the spelling
    """

    seq: int
    at: int
    event: Event
    actor: str
    standing: Standing
    details: Mapping[str, Value]


def spell(key: str, tenant: str, entry: Entry) -> str:
    """The canonical text of an entry: what is stored, and what is hashed.

    Raises `ValueError` where a detail takes the name of a field that spells the standing.
    """
    standing = entry.standing
    if not OWN_FIELDS.isdisjoint(entry.details):
        raise ValueError(f"details may not be named {sorted(OWN_FIELDS.intersection(entry.details))}")
    body: dict[str, Value] = {name: value for name, value in entry.details.items() if value not in ("", None)}
    body["key"] = key
    body["tenant"] = tenant
    body["seq"] = entry.seq
    body["at"] = entry.at
    body["event"] = entry.event
    body["actor"] = entry.actor
    body["state"] = standing.state
    body["epoch"] = standing.epoch
    body["version"] = standing.version
    if standing.maybe:
        body["maybe"] = True
    if standing.permit:
        body["permit"] = True
    if standing.ending:
        body["ending"] = standing.ending
    return _encode(body)


def link(previous: str, spelling: str) -> str:
    """The hash of an entry: SHA-256 over the previous hash and the canonical text, 64 hex digits."""
    return hashlib.sha256(f"{previous}\n{spelling}".encode()).hexdigest()


def standing_of(body: Mapping[str, Value]) -> Standing:
    """The standing that an entry's parsed text spells."""
    return Standing(
        state=State(str(body["state"])),
        epoch=int(body["epoch"] or 0),
        version=int(body["version"] or 0),
        maybe=bool(body.get("maybe", False)),
        permit=bool(body.get("permit", False)),
        ending=Ending(str(body.get("ending") or "")),
    )


@value
class Fault:
    """Where a chain is broken. `seq` is the first entry that does not hold, 0 for the row itself."""

    key: str
    seq: int
    what: str


def check_chain(
    key: str, lines: Iterable[tuple[int, str, str]], head_seq: int, head: str, row: Standing
) -> Fault | None:
    """Replay one delivery's chain against its row; None where everything holds.

    `lines` are (seq, text, hash) in order of seq; `head_seq`, `head` and `row` are what the
    delivery's row says.
    """
    previous, expected, last = GENESIS, 1, None
    for seq, text, digest in lines:
        if seq != expected:
            return Fault(key, expected, f"entry {expected} is missing (found {seq})")
        if link(previous, text) != digest:
            return Fault(key, seq, "the text does not give the recorded hash")
        body = json.loads(text)
        if body["key"] != key or body["seq"] != seq:
            return Fault(key, seq, "the entry belongs to another place")
        previous, expected, last = digest, seq + 1, body
    if last is None:
        return Fault(key, 0, "there is no entry at all")
    if (expected - 1, previous) != (head_seq, head):
        return Fault(key, expected, f"the row counts {head_seq} entries, the ledger ends at {expected - 1}")
    if standing_of(last) != row:
        return Fault(key, 0, f"the row says {row.state}, the ledger replays to {last['state']}")
    return None
