"""The ledger: one spelling for each entry, and a chain in which nothing can be changed unseen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.ledger import GENESIS, OWN_FIELDS, Entry, Value, check_chain, link, spell, standing_of
from sendonce.core.lifecycle import Ending, Event, Standing, State

KEY = "loan-77:customer-5:sms"

standings = st.builds(
    Standing,
    st.sampled_from(State),
    st.integers(0, 99),
    st.integers(1, 99),
    st.booleans(),
    st.booleans(),
    st.sampled_from(Ending),
)
RESERVED = frozenset(
    ("key", "tenant", "seq", "at", "event", "actor", "state", "epoch", "version", "maybe", "permit", "ending")
)

names = st.text(st.characters(categories=["Ll"]), min_size=3).filter(lambda name: name not in RESERVED)
details: st.SearchStrategy[dict[str, Value]] = st.dictionaries(
    names, st.one_of(st.text(), st.integers(), st.booleans(), st.none())
)


def entry(seq: int = 1, standing: Standing = Standing(State.SCHEDULED), **more: Value) -> Entry:  # noqa: B008
    return Entry(seq, 1_000, Event.SCHEDULED, "api:k", standing, more)


def test_an_entry_is_spelled_in_one_way() -> None:
    standing = Standing(State.UNCERTAIN, 4, 2, maybe=True, ending=Ending.CANCEL)
    text = spell(KEY, "t", entry(3, standing, zeta=1, alpha="é", empty="", none=None, no=False, zero=0))
    assert text == (
        '{"actor":"api:k","alpha":"\\u00e9","at":1000,"ending":"cancel","epoch":4,"event":"scheduled",'
        '"key":"loan-77:customer-5:sms","maybe":true,"no":false,"seq":3,"state":"UNCERTAIN","tenant":"t",'
        '"version":2,"zero":0,"zeta":1}'
    )


def test_a_link_is_the_sha_256_of_what_was_before_and_the_text() -> None:
    """As anybody can compute it with nothing of ours."""
    assert link("", "text") == hashlib.sha256(b"\ntext").hexdigest()
    assert link("ab", "text") == hashlib.sha256(b"ab\ntext").hexdigest()


@given(standing=standings, more=details)
def test_the_standing_comes_back_from_the_text(standing: Standing, more: dict[str, Value]) -> None:
    text = spell(KEY, "t", Entry(1, 5, Event.CLAIMED, "w", standing, more))
    assert standing_of(json.loads(text)) == standing
    assert text.isascii()
    assert text == spell(KEY, "t", Entry(1, 5, Event.CLAIMED, "w", standing, dict(reversed(more.items()))))


def chain(*states: State) -> tuple[list[tuple[int, str, str]], Standing]:
    lines: list[tuple[int, str, str]] = []
    head = GENESIS
    standing = Standing(State.SCHEDULED)
    for seq, state in enumerate(states, start=1):
        standing = replace(standing, state=state)
        text = spell(KEY, "t", entry(seq, standing, note=f"n{seq}"))
        head = link(head, text)
        lines.append((seq, text, head))
    return lines, standing


LINES, LAST = chain(State.SCHEDULED, State.QUEUED, State.SENDING, State.ACCEPTED)
HEAD = LINES[-1][2]


def fault_of(
    lines: list[tuple[int, str, str]], *, seq: int = 4, head: str = HEAD, row: Standing = LAST, key: str = KEY
) -> tuple[int, str] | None:
    fault = check_chain(key, lines, seq, head, row)
    return None if fault is None else (fault.seq, fault.what)


def test_a_whole_chain_holds() -> None:
    assert fault_of(LINES) is None


def test_every_kind_of_damage_is_found_where_it_is() -> None:
    changed = [*LINES]
    changed[1] = (2, LINES[1][1].replace("n2", "n3"), LINES[1][2])
    assert fault_of(changed) == (2, "the text does not give the recorded hash")
    rehashed = [*LINES]
    text = LINES[1][1].replace("n2", "n3")
    rehashed[1] = (2, text, link(LINES[0][2], text))
    assert fault_of(rehashed) == (3, "the text does not give the recorded hash")
    assert fault_of([*LINES[:1], *LINES[2:]]) == (2, "entry 2 is missing (found 3)")
    assert fault_of(LINES[1:]) == (1, "entry 1 is missing (found 2)")
    assert fault_of([LINES[0], LINES[2], LINES[1], LINES[3]]) == (2, "entry 2 is missing (found 3)")
    assert fault_of([*LINES, LINES[3]]) == (5, "entry 5 is missing (found 4)")
    assert fault_of(LINES[:3]) == (4, "the row counts 4 entries, the ledger ends at 3")
    assert fault_of(LINES, seq=3) == (5, "the row counts 3 entries, the ledger ends at 4")
    assert fault_of(LINES, head=LINES[2][2]) == (5, "the row counts 4 entries, the ledger ends at 4")
    assert fault_of([]) == (0, "there is no entry at all")
    assert fault_of(LINES, key="another:key:sms") == (1, "the entry belongs to another place")
    row = replace(LAST, state=State.CANCELLED)
    assert fault_of(LINES, row=row) == (0, "the row says CANCELLED, the ledger replays to ACCEPTED")
    assert fault_of(LINES, row=replace(LAST, maybe=True)) is not None
    assert fault_of(LINES, row=replace(LAST, epoch=9)) is not None


@given(at=st.integers(0, 3), where=st.integers(0, 10_000), bit=st.integers(0, 6))
def test_one_changed_bit_is_found(at: int, where: int, bit: int) -> None:
    seq, text, digest = LINES[at]
    where %= len(text)
    changed = text[:where] + chr(ord(text[where]) ^ (1 << bit)) + text[where + 1 :]
    fault = fault_of([*LINES[:at], (seq, changed, digest), *LINES[at + 1 :]])
    assert fault is not None
    assert fault[0] == seq


@pytest.mark.parametrize("name", sorted(OWN_FIELDS))
def test_no_detail_takes_the_place_of_a_field(name: str) -> None:
    entry = Entry(1, 5, Event.CLAIMED, "worker:w", Standing(State.SENDING), {name: "forged"})
    with pytest.raises(ValueError, match=name):
        spell("r:c:sms", "default", entry)
