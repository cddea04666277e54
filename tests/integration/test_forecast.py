"""The forecast over what stands in a store, and the warning before it happens; on both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.due import parse_quiet
from sendonce.core.errors import InvalidInput
from sendonce.core.objective import Objectives
from sendonce.core.outcome import Accepted, AccountError, Reason, Throttled, ThrottleScope
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import Policy
from sendonce.core.routing import Route, Share
from sendonce.pipeline import forecast as module
from sendonce.pipeline.forecast import AccountForecast, Forecast, forecast, moment_of
from sendonce.pipeline.pause import Scope, Target, pause
from tests.integration.world import HOUR, SECOND, World, account_of, policy_of

TEN = GateLimits((Limit(10, SECOND),), lanes=50, jitter_us=1)


def foreseen(world: World, at: int = 0) -> Forecast:
    return world.read(lambda tx: forecast(tx, world.policy, at=at))


def of(world: World, account: str, at: int = 0) -> AccountForecast:
    return next(each for each in foreseen(world, at).accounts if each.account == account)


def windowed(world: World, accepted_s: float) -> None:
    """A narrower window for all channels."""
    world.policy = replace(
        world.policy,
        channels={
            name: replace(channel, objectives=Objectives(accepted_s=accepted_s))
            for name, channel in world.policy.channels.items()
        },
    )


def test_what_is_scheduled_drains_by_the_rate_of_its_own_account() -> None:
    world = World("K", "N", limits=TEN)
    world.schedule_many(600, account="sms-K", due_in_s=3_600.0)
    world.schedule_many(60, account="email-N", customer="c-2", due_in_s=3_600.0)
    texts, mail = of(world, "sms-K"), of(world, "email-N")
    assert (texts.due, texts.waiting, mail.due) == (600, 0, 60)
    assert texts.drained_at == pytest.approx(world.now + HOUR + 60 * SECOND, abs=SECOND)
    assert mail.drained_at == pytest.approx(world.now + HOUR + 6 * SECOND, abs=SECOND)
    assert (texts.missed, texts.needed_per_s, texts.first_late, texts.bound) == (0, None, (), "rate")
    assert texts.minutes[0].due == 600
    assert texts.minutes[0].started == pytest.approx(600, abs=2)


def test_who_will_miss_the_window_is_counted_and_named_with_the_rate_that_would_do() -> None:
    world = World("K", limits=TEN)
    windowed(world, 20.0)
    world.schedule_many(600, due_in_s=3_600.0)
    seen = of(world, "sms-K")
    assert seen.late == pytest.approx(400, abs=3)
    assert seen.expired == 0
    assert seen.needed_per_s == pytest.approx(30.0, rel=0.02)
    assert len(seen.first_late) == 5
    numbers = [int(key.partition(":")[0].removeprefix("r-")) for key in seen.first_late]
    assert numbers[0] == pytest.approx(200, abs=3)
    assert seen.first_miss_at == world.now + HOUR


def test_what_is_queued_waits_for_its_turn_before_what_is_to_come() -> None:
    world = World("K", limits=TEN)
    world.schedule_many(100, due_in_s=0.0)
    world.pass_()
    seen = of(world, "sms-K")
    assert (seen.waiting, seen.due) == (100, 0)
    assert seen.drained_at == pytest.approx(world.now + 10 * SECOND, abs=SECOND)


def test_a_closed_gate_and_a_pause_hold_it_up() -> None:
    world = World("K", "N", limits=TEN)
    world.schedule_many(10, due_in_s=60.0)
    world.schedule("now")
    world.pass_()
    world.settle([(claim, Throttled(ThrottleScope.RATE, "429", 600.0)) for claim in world.claim()])
    seen = of(world, "sms-K")
    assert seen.opens_at == pytest.approx(world.now + 600 * SECOND, abs=5 * SECOND)
    assert seen.drained_at is not None
    assert seen.drained_at > world.now + 600 * SECOND
    pause(
        world.store, Target(Scope.CHANNEL, "sms", "default"), world.policy, reason="test", actor="operator:x"
    )
    seen = of(world, "sms-K")
    assert (seen.opens_at, seen.drained_at, seen.bound) == (None, None, "closed")
    assert foreseen(world).channels[-1].drained_at is None


def test_the_night_puts_off_and_in_the_morning_it_is_in_time() -> None:
    world = World("K", limits=TEN)
    (name,) = world.policy.categories
    quiet = (parse_quiet("21:00-08:00"),)
    world.policy = replace(
        world.policy, categories={name: replace(world.policy.categories[name], quiet=quiet)}
    )
    world.schedule_many(100, due_in_s=3_600.0)  # two in the morning in Berlin
    seen = foreseen(world)
    assert seen.night == 100
    (one,) = seen.accounts
    assert one.drained_at == pytest.approx(world.now + 7 * HOUR + 10 * SECOND, abs=2 * SECOND)
    assert one.missed == 0


def test_a_sample_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE", 200)
    world = World("K", "N", limits=TEN)
    world.schedule_many(900, account="sms-K", due_in_s=3_600.0)
    world.schedule_many(300, account="email-N", customer="c-2", due_in_s=3_600.0)
    seen = foreseen(world)
    assert seen.sampled
    assert sum(each.due for each in seen.accounts) == pytest.approx(1_200, abs=3)
    assert of(world, "sms-K").due == pytest.approx(900, rel=0.15)


def test_calls_that_were_made_tell_how_long_a_lane_is_held() -> None:
    world = World("K", limits=GateLimits((Limit(1_000, SECOND),), lanes=50))
    assert of(world, "sms-K").hold_s is None
    world.schedule_many(40, due_in_s=0.0)
    world.pass_()
    while claims := world.claim(most=20):
        world.advance(2.0)
        world.settle([(claim, Accepted("r")) for claim in claims])
    seen = of(world, "sms-K")
    assert seen.hold_s == pytest.approx(2.0, rel=0.05)
    assert seen.bound == "lanes"
    assert seen.per_s == pytest.approx(25.0, rel=0.05)


def test_asked_ahead_it_looks_at_that_hour() -> None:
    world = World("K", limits=TEN)
    windowed(world, 20.0)
    at = world.now + 48 * HOUR
    world.schedule_many(600, due_in_s=48 * 3_600.0)
    assert of(world, "sms-K").due == 0
    seen = of(world, "sms-K", at)
    assert seen.due == 600
    assert seen.late == pytest.approx(400, abs=3)
    with pytest.raises(InvalidInput, match="has passed"):
        foreseen(world, world.now - 1)


def test_moments_are_read_as_people_say_them() -> None:
    now = 1_767_225_600 * SECOND  # 2026-01-01T00:00Z, one in the morning in Berlin
    assert moment_of("tomorrow 09:00", "Europe/Berlin", now) == now + 32 * HOUR
    assert moment_of("09:00", "Europe/Berlin", now) == now + 8 * HOUR
    assert moment_of("today 00:30", "Europe/Berlin", now) < now
    assert moment_of("00:30", "Europe/Berlin", now) == now + 23 * HOUR + HOUR // 2
    assert moment_of("in 2h", "Europe/Berlin", now) == now + 2 * HOUR
    with pytest.raises(InvalidInput, match="25:00"):
        moment_of("25:00", "Europe/Berlin", now)


def test_nothing_is_written() -> None:
    world = World("K", limits=TEN)
    world.schedule_many(10, due_in_s=60.0)
    before = world.read(lambda tx: tx.rows("view_progress_last_entry"))
    foreseen(world)
    assert world.read(lambda tx: tx.rows("view_progress_last_entry")) == before
    assert Channel.SMS in world.policy.channels


def shared(*, second: str = "") -> Policy:
    """Two accounts that share three to one; `second`: as whom the second sends, where that differs."""
    first = account_of("K", name="a", limits=TEN)
    other = account_of("K", name="b", limits=TEN)
    if second:
        first, other = replace(first, senders=("Others",)), replace(other, sender=second)
    made = policy_of(first, other)
    return replace(made, routes=(Route(first.channel, "a", shares=(Share("a", 3), Share("b", 1))),))


def taken(world: World, keys: Sequence[str]) -> Counter[str]:
    """Who is to carry them by the forecast; and that a pass gives them to the same."""
    foretold = {each.account: each.due + each.waiting for each in foreseen(world).accounts}
    world.pass_()
    published = Counter(world.row(key).course.account for key in keys)
    assert {name: count for name, count in foretold.items() if count} == published
    return published


def test_accounts_that_share_are_each_foretold_what_they_will_carry() -> None:
    world = World(policy=shared())
    counts = taken(world, [world.schedule(f"r-{number}") for number in range(80)])
    assert 12 <= counts["b"] <= 28


def test_who_is_held_is_foretold_what_is_left_to_it() -> None:
    world = World(policy=shared())
    first = world.schedule("first")
    world.pass_()
    account = world.row(first).course.account
    (claim,) = world.claim(account)
    world.settle([(claim, AccountError(Reason.AUTHENTICATION, "401"))])
    counts = taken(world, [first, *(world.schedule(f"r-{number}") for number in range(80))])
    assert counts[account] < 20


def test_who_does_not_declare_the_sender_is_foretold_nothing_of_it() -> None:
    world = World(policy=shared(second="Others"))
    keys = [world.schedule(f"r-{number}", sender="Others") for number in range(8)]
    carried = taken(world, keys)
    assert set(carried) == {"a", "b"}
    keys += [world.schedule(f"s-{number}", sender="+12025550100") for number in range(8)]
    assert taken(world, keys) == carried + Counter(a=8)
