"""The seal: roots as RFC 6962 says, headers with one spelling, blocks that cannot be changed unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core import seal
from sendonce.core.seal import Block, SealedBlock

# The inputs and roots with which implementations test (certificate-transparency, merkle_tree_test).
INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def by_the_book(leaves: Sequence[bytes]) -> bytes:
    """Section 2.1, word for word."""
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + by_the_book(leaves[:k]) + by_the_book(leaves[k:])).digest()


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_those_that_others_compute(size: int) -> None:
    leaves = [leaf(bytes.fromhex(text)) for text in INPUTS[:size]]
    assert seal.root_of(leaves) == ROOTS[size - 1]


def test_no_leaves_have_the_root_of_nothing() -> None:
    assert seal.root_of([]) == hashlib.sha256(b"").hexdigest()


@given(st.integers(1, 200))
def test_roots_follow_the_book_at_every_size(size: int) -> None:
    leaves = [leaf(b"%d" % number) for number in range(size)]
    assert seal.root_of(leaves) == by_the_book(leaves).hex()


ENTRIES = [(number, number % 7, 1, f"{number:064x}") for number in (*range(3, 40), *range(44, 50))]


def made(
    *, last: SealedBlock | None = None, entries: Sequence[seal.Entry] = ENTRIES, upto: int = 50
) -> SealedBlock:
    leaves = seal.leaves_of(entries)
    before = seal.read(last.header) if last else None
    block = seal.next_block(before, last.hash if last else "", entries, leaves, upto=upto, at=7, key="")
    return kept(block, leaves)


def kept(block: Block, leaves: Sequence[bytes] = ()) -> SealedBlock:
    header = seal.spell(block)
    return SealedBlock(block.number, header, seal.hash_of(header), "", seal.joined(leaves))


def test_a_block_says_what_it_covers() -> None:
    sealed = made()
    block, leaves, faults = seal.judged(sealed)
    assert faults == []
    assert block == seal.read(sealed.header)
    assert (block.number, block.after, block.upto, block.count) == (1, 0, 50, len(ENTRIES))
    assert block.ids == "3-39,44-49"
    assert leaves == seal.leaves_of(ENTRIES)
    assert seal.follows(block, None, "") == []


@pytest.mark.parametrize("column", range(4))
def test_each_column_of_an_entry_is_in_its_leaf(column: int) -> None:
    (before,) = seal.leaves_of([(10, 20, 30, "ab")])
    other: list[int | str] = [10, 20, 30, "ab"]
    other[column] = "ac" if column == 3 else 11
    (after,) = seal.leaves_of([tuple(other)])  # type: ignore[list-item]
    assert after != before


def test_no_two_entries_share_a_leaf_by_where_one_number_ends() -> None:
    entries = [(1, 11, 1, "a"), (11, 1, 1, "a"), (1, 1, 11, "a"), (1, 1, 1, "1:a")]
    assert len(set(seal.leaves_of(entries))) == len(entries)


ACTS: Sequence[seal.Act] = [
    (number, 7, "operator:ann", "pause", "sms", "prices", '{"until":0}') for number in (2, 3, 5)
]


@pytest.mark.parametrize("column", range(7))
def test_each_column_of_an_act_is_in_its_leaf(column: int) -> None:
    (before,) = seal.leaves_of_acts(ACTS[:1])
    other: list[int | str] = [*ACTS[0]]
    other[column] = 99 if column < 2 else "x"
    (after,) = seal.leaves_of_acts([tuple(other)])  # type: ignore[list-item]
    assert after != before


def test_what_is_no_text_has_a_leaf_too_and_no_act_shares_one_by_where_a_word_ends() -> None:
    acts: list[seal.Act] = [
        (1, 7, "a", "b", "c", "d", "e"),
        (1, 7, "a", "bc", "", "d", "e"),
        (1, 7, 'a","b', "c", "", "d", "e"),
        (1, 7, "a", "b", "c", "d", b"\x81"),  # type: ignore[list-item]
        (1, 7, "a", "b", "c", "\ud800", "e"),
    ]
    assert len(set(seal.leaves_of_acts(acts))) == len(acts)


def made_with_acts(last: SealedBlock | None = None) -> SealedBlock:
    leaves = seal.leaves_of(ENTRIES[:4]) + seal.leaves_of_acts(ACTS)
    before = seal.read(last.header) if last else None
    block = seal.next_block(before, "", ENTRIES[:4], leaves, upto=6, acts=ACTS, acts_upto=6, at=7, key="")
    return kept(block, leaves)


def test_a_block_covers_acts_beside_entries() -> None:
    sealed = made_with_acts()
    block, leaves, faults = seal.judged(sealed)
    assert block is not None
    assert faults == []
    assert (block.count, block.acts_after, block.acts_upto, block.acts) == (4, 0, 6, "2-3,5")
    assert leaves[4:] == seal.leaves_of_acts(ACTS)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"acts": "2-3"}, "it counts 4 entries and 2 acts, and has 7 leaves"),
        ({"acts": "2-4,9"}, "has 7 leaves"),
        ({"acts": "x"}, "cannot be read"),
        ({"acts": "2-3,9"}, "its acts lie outside of what it covers"),
        ({"acts_upto": 4}, "its acts lie outside of what it covers"),
        ({"acts_after": 7}, "it covers acts 8 to 6, which cannot be"),
    ],
)
def test_what_a_header_says_of_acts_must_fit(change: dict[str, Any], what: str) -> None:
    sealed = made_with_acts()
    header = seal.spell(replace(seal.read(sealed.header), **change))
    faults = seal.judged(replace(sealed, header=header, hash=seal.hash_of(header)))[2]
    assert any(what in fault for fault in faults), faults


def test_a_block_begins_where_the_acts_of_the_one_before_it_end() -> None:
    first = seal.read(made_with_acts().header)
    second = replace(first, number=2, previous="h", after=first.upto, upto=first.upto)
    assert seal.follows(replace(second, acts_after=6), first, "h") == []
    assert seal.follows(second, first, "h") == [
        "it begins behind act 0, and the block before it does not end there"
    ]


def test_every_bit_of_a_kept_block_counts() -> None:
    """Flip one bit of each character of its header, its hash and its leaves: each is a fault."""
    sealed = made()
    for place, letter in enumerate(sealed.header):
        changed = sealed.header[:place] + chr(ord(letter) ^ 1) + sealed.header[place + 1 :]
        assert seal.judged(replace(sealed, header=changed))[2], f"bit of {letter!r} at {place}"
    for place in range(len(sealed.leaves)):
        flipped = bytearray(sealed.leaves)
        flipped[place] ^= 0x10
        assert seal.judged(replace(sealed, leaves=bytes(flipped)))[2] == ["its leaves do not give its root"]
    other = ("0" if sealed.hash[0] != "0" else "1") + sealed.hash[1:]
    assert seal.judged(replace(sealed, hash=other))[2] == ["its header does not give its hash"]


FORGED = {
    "a header that is none": ("[]", "it cannot be read"),
    "deep nesting": ("[" * 200_000, "it cannot be read"),
    "a text for a number": ({"number": "1"}, "not of the right kind"),
    "a switch for a number": ({"number": True}, "not of the right kind"),
    "numbers backwards": ({"ids": "5-3"}, "out of order"),
    "the same twice": ({"ids": "3-5,5-6"}, "out of order"),
    "a number without end": ({"ids": "1-1000000000000000000"}, "it counts 43 entries"),
    "outside of it": ({"ids": "103-139,144-149"}, "outside of what it covers"),
    "backwards": ({"after": 60}, "it covers entries 61 to 50, which cannot be"),
    "before the first": ({"after": -1}, "which cannot be"),
    "beyond what a store can hold": ({"upto": 2**63}, "which cannot be"),
    "a tombstone beyond that": ({"tombstone": 2**63}, "which cannot be"),
    "another's number": ({"number": 2}, "its header is that of block 2"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_header_that_cannot_be_is_told(name: str) -> None:
    change, what = FORGED[name]
    sealed = made()
    header = change if isinstance(change, str) else changed(sealed.header, change)
    _, _, faults = seal.judged(replace(sealed, header=header, hash=seal.hash_of(header)))
    assert len(faults) == 1, faults
    assert what in faults[0]


def changed(header: str, change: object) -> str:
    assert isinstance(change, dict)
    return json.dumps({**json.loads(header), **change}, sort_keys=True, separators=(",", ":"))


def test_a_block_follows_one_block_only() -> None:
    first = made()
    second = made(last=first, entries=[(60, 1, 1, "a")], upto=64)
    block, last = seal.read(second.header), seal.read(first.header)
    assert seal.follows(block, last, first.hash) == []
    assert len(seal.follows(block, last, "0" * 64)) == 1
    assert len(seal.follows(block, replace(last, upto=49), first.hash)) == 1
    assert len(seal.follows(block, None, "")) == 2
    assert len(seal.follows(block, replace(last, tombstone=1), first.hash)) == 1


@given(st.sets(st.integers(1, 500)))
def test_numbers_in_short_are_those_numbers(ids: set[int]) -> None:
    text = seal.spell_ids(sorted(ids))
    assert [id_ for each in seal.ranges_of(text) for id_ in each] == sorted(ids)


@pytest.mark.parametrize("wrong", [[3, 3], [3, 2]])
def test_numbers_must_ascend(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="is not above"):
        seal.spell_ids(wrong)


@given(st.sets(st.integers(1, 60)), st.lists(st.sets(st.integers(1, 60)), max_size=5))
def test_what_is_missing_is_explained_by_tombstones_only(missing: set[int], gone: list[set[int]]) -> None:
    texts = [seal.spell_ids(sorted(ids)) for ids in gone]
    ranges = seal.merged(texts)
    assert all(one.stop < two.start for one, two in pairwise(ranges))
    assert {id_ for each in ranges for id_ in each} == set().union(*gone)
    assert seal.unexplained(sorted(missing), ranges) == sorted(missing.difference(*gone))


def test_a_checkpoint_comes_back() -> None:
    sealed = replace(made(), signature="c2ln")
    line = seal.spell_checkpoint(sealed)
    assert "\n" not in line
    checkpoint, block = seal.read_checkpoint(line)
    assert (checkpoint.hash, checkpoint.signature, block) == (sealed.hash, "c2ln", seal.read(sealed.header))


@pytest.mark.parametrize(
    "line",
    ["", "{}", "[]", '{"header":1,"hash":"","signature":""}', '{"header":"{}","hash":"x","signature":""}'],
)
def test_a_line_that_is_no_checkpoint_is_told(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (any)
        seal.read_checkpoint(line)


def test_a_torn_checkpoint_is_none() -> None:
    line = seal.spell_checkpoint(made())
    for end in range(len(line)):
        with pytest.raises(ValueError):  # noqa: PT011 (any)
            seal.read_checkpoint(line[:end])
