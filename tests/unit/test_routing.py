"""Which account carries a delivery: the first rule that fits, its shares, or a sentence on what to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError
from sendonce.core.routing import WELL, Choice, Route, Share, account_for, choose

ROUTES = (
    Route(Channel.SMS, "vip", tenant="bank", category="payment"),
    Route(Channel.SMS, "bank", tenant="bank"),
    Route(Channel.SMS, "payments", category="payment"),
    Route(Channel.SMS, "rest"),
    Route(Channel.SMS, "never reached", tenant="bank"),
    Route(Channel.EMAIL, "mail", category="shipment"),
)
KEYS = [f"r-{number}:c-{number % 97}:email" for number in range(20_000)]


def shared(**weights: int) -> Route:
    shares = tuple(Share(name, weight) for name, weight in weights.items())
    return Route(Channel.EMAIL, shares[0].account, shares=shares)


def chosen(route: Route, wellness: Mapping[str, float] | None = None) -> dict[str, str]:
    return {key: choose(route, "t", key, wellness=wellness or {}).account for key in KEYS}


@pytest.mark.parametrize(
    ("channel", "tenant", "category", "account"),
    [
        (Channel.SMS, "bank", "payment", "vip"),
        (Channel.SMS, "bank", "shipment", "bank"),
        (Channel.SMS, "shop", "payment", "payments"),
        (Channel.SMS, "shop", "shipment", "rest"),
        (Channel.EMAIL, "bank", "shipment", "mail"),
    ],
)
def test_the_first_rule_that_fits_wins(channel: Channel, tenant: str, category: str, account: str) -> None:
    assert account_for(ROUTES, channel, tenant, category) == account


def test_without_a_rule_the_error_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"no account for channel email: add .* under \[channel.email\]"):
        account_for(ROUTES, Channel.EMAIL, "bank", "payment")


@pytest.mark.parametrize(
    "weights", [{"a": 9, "b": 1}, {"a": 1, "b": 1}, {"a": 5, "b": 3, "c": 2}, {"a": 98, "b": 1, "c": 1}]
)
def test_the_shares_follow_the_weights(weights: dict[str, int]) -> None:
    """Chi-square below the value that chance passes once in a thousand times, for up to two degrees."""
    counts = Counter(chosen(shared(**weights)).values())
    total = sum(weights.values())
    expected = {name: len(KEYS) * weight / total for name, weight in weights.items()}
    assert sum((counts[name] - expected[name]) ** 2 / expected[name] for name in weights) < 13.8


def test_who_leaves_and_who_comes_moves_only_its_own_share() -> None:
    three, two = chosen(shared(a=5, b=3, c=2)), chosen(shared(a=5, b=3))
    assert {three[key] for key in KEYS if three[key] != two[key]} == {"c"}


def test_where_one_is_ill_only_a_part_of_its_own_goes_elsewhere_and_the_same_part() -> None:
    route = shared(a=9, b=1)
    well, half, ill = (chosen(route, {"a": part}) for part in (1.0, 0.5, 0.05))
    moved_half = {key for key in KEYS if well[key] != half[key]}
    moved_ill = {key for key in KEYS if well[key] != ill[key]}
    assert {well[key] for key in moved_ill} == {"a"}
    assert 0 < len(moved_half) < len(moved_ill)
    assert moved_half < moved_ill
    counts = Counter(ill.values())
    assert 0.2 < counts["a"] / len(KEYS) < 0.4  # 9 x 0.05 against 1: some go on as probes


@pytest.mark.parametrize("part", [0.05, 0.25])
def test_where_none_is_well_the_weights_are_as_written(part: float) -> None:
    route = shared(a=9, b=1)
    assert part < WELL
    assert chosen(route, {"a": part, "b": 0.05}) == chosen(route)


@given(
    key=st.text(max_size=40),
    tenant=st.text(max_size=10),
    weights=st.lists(st.integers(1, 1_000_000), min_size=2, max_size=6),
    parts=st.lists(st.sampled_from([1.0, 0.75, 0.5, 0.25, 0.05]), min_size=6, max_size=6),
    able=st.sets(st.integers(0, 5)),
)
def test_a_choice_is_one_that_may_carry_it_and_the_same_each_time(
    key: str, tenant: str, weights: list[int], parts: list[float], able: set[int]
) -> None:
    route = shared(**{f"a{number}": weight for number, weight in enumerate(weights)})
    wellness = {f"a{number}": part for number, part in enumerate(parts)}
    may = {f"a{number}" for number in able} & set(route.accounts)

    def once(order: Route) -> Choice:
        return choose(order, tenant, key, wellness=wellness, may_carry=may.__contains__)

    choice = once(route)
    assert choice == once(route)
    if may:
        assert {choice.account, choice.meant} <= may
        backwards = Route(route.channel, route.account, shares=route.shares[::-1])
        assert once(backwards) == choice  # the order in which they are written does not count
        if choice.account != choice.meant:
            assert wellness[choice.meant] < wellness[choice.account]
    else:
        assert choice == Choice(route.account, route.account)
