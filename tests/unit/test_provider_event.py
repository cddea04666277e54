"""What is said later of a delivery: the fold does not care for order, and ranks are one total order."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel
from sendonce.core.provider_event import (
    AT_THE_END,
    BESIDE,
    ON_THE_WAY,
    PROVES,
    RANKS,
    EventKind,
    Fact,
    consent_of,
    fold,
    stands,
)

facts = st.lists(
    st.builds(
        Fact,
        st.sampled_from(EventKind),
        st.integers(min_value=0, max_value=9),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=12,
)


@given(facts, st.randoms(use_true_random=False), st.integers(min_value=0, max_value=12))
def test_order_repetition_and_grouping_never_matter(
    told: list[Fact], chance: random.Random, cut: int
) -> None:
    once = fold((), *told)
    shuffled = [*told, *told]
    chance.shuffle(shuffled)
    assert fold((), *shuffled) == once
    one_by_one: tuple[Fact, ...] = ()
    for fact in shuffled:
        one_by_one = fold(one_by_one, fact)
    assert one_by_one == once
    assert fold(fold((), *told[:cut]), *fold((), *told[cut:])) == once


@given(facts, facts)
def test_what_is_said_more_never_takes_anything_away(told: list[Fact], more: list[Fact]) -> None:
    before, after = fold((), *told), fold((), *told, *more)
    assert {fact.kind for fact in before} <= {fact.kind for fact in after}
    was, now = stands(before), stands(after)
    if was is not None:
        assert now is not None
        assert RANKS[now.kind] >= RANKS[was.kind]


def test_every_kind_has_one_place() -> None:
    places = [*ON_THE_WAY, *AT_THE_END, *BESIDE, EventKind.UNKNOWN]
    assert sorted(places) == sorted(EventKind)
    assert len(set(RANKS.values())) == len(RANKS), "a total order"


def test_the_final_word_is_the_same_in_all_orders() -> None:
    told = [Fact(EventKind.ACCEPTED, 1), Fact(EventKind.SENT, 3), Fact(EventKind.DELIVERED, 5)]
    for order in permutations(told):
        assert stands(fold((), *order)) == Fact(EventKind.DELIVERED, 5)


def test_a_hard_bounce_stands_and_delivered_is_kept_beside() -> None:
    told = fold((), Fact(EventKind.BOUNCED_HARD, 40, "5.1.1"), Fact(EventKind.DELIVERED, 10))
    assert stands(told) == Fact(EventKind.BOUNCED_HARD, 40, "5.1.1")
    assert Fact(EventKind.DELIVERED, 10) in told


def test_what_is_beside_or_unknown_stands_for_nothing() -> None:
    assert stands([Fact(kind, 1) for kind in (*BESIDE, EventKind.UNKNOWN)]) is None


@pytest.mark.parametrize(
    ("kind", "channel", "record"),
    [
        (EventKind.BOUNCED_HARD, Channel.EMAIL, Kind.SUPPRESSED),
        (EventKind.COMPLAINED, Channel.SMS, Kind.SUPPRESSED),
        (EventKind.SUPPRESSED, Channel.EMAIL, Kind.SUPPRESSED),
        (EventKind.SUPPRESSED, Channel.SMS, Kind.OPT_OUT),
        (EventKind.OPTED_OUT, Channel.EMAIL, Kind.OPT_OUT),
        (EventKind.OPTED_IN, Channel.SMS, Kind.OPT_IN),
        (EventKind.BOUNCED_SOFT, Channel.EMAIL, None),
        (EventKind.UNDELIVERED, Channel.SMS, None),
        (EventKind.DELIVERED, Channel.EMAIL, None),
        (EventKind.REPLIED, Channel.SMS, None),
        (EventKind.UNKNOWN, Channel.EMAIL, None),
    ],
)
def test_what_follows_for_the_address(kind: EventKind, channel: Channel, record: Kind | None) -> None:
    assert consent_of(kind, channel) is record


def test_what_says_that_nothing_went_out_proves_nothing() -> None:
    assert not PROVES & {EventKind.REJECTED, EventKind.SUPPRESSED, EventKind.EXPIRED, EventKind.UNKNOWN}
