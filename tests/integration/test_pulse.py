"""The pulse tells what the parts of a process know: heartbeats, looks, open calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.core.health import Lack, Phase, Scheduling, lacks_of, phase_of
from sendonce.pipeline.heartbeat import Heartbeat, Name
from sendonce.pipeline.pulse import Pulse
from sendonce.ports.store import Tx
from tests.integration.world import World

T = TypeVar("T")
NAME = Name("p-1", "worker", "host", 1)


def pulse_of(world: World) -> Pulse:
    """Of a process whose pass may take 60 s, and whose timer starts one each second."""
    return Pulse(world.policy, pass_every_s=1.0, boot=world.clock.boot)


def test_a_heartbeat_ages_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("K")
    lease_s = world.policy.lease_s
    pulse = pulse_of(world)
    pulse.works = True
    pulse.heart = heart = Heartbeat(world.store, NAME, lease_s=lease_s)
    pulse.open_calls = lambda: 7
    assert pulse.vitals().beat_age_s is None
    assert lacks_of(pulse.vitals()) == (Lack.STARTING,)

    asyncio.run(heart.beat())
    world.clock.advance(lease_s - 1)
    assert pulse.vitals().beat_age_s == pytest.approx(lease_s - 1, abs=0.1)
    assert pulse.vitals().open_calls == 7
    assert lacks_of(pulse.vitals()) == ()
    assert phase_of(pulse.vitals()) is Phase.WORKING

    def away(unit: Callable[[Tx], T], *, beside: bool = False) -> T:
        raise StoreUnavailable("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "write", away)
        with pytest.raises(StoreUnavailable):
            asyncio.run(heart.beat())
    assert lacks_of(pulse.vitals()) == (Lack.STORE_AWAY,)
    world.clock.advance(2)
    assert lacks_of(pulse.vitals()) == (Lack.STORE_AWAY, Lack.LEASE_OVER)

    asyncio.run(heart.beat())
    assert pulse.vitals().beat_age_s == pytest.approx(0, abs=0.1)
    assert lacks_of(pulse.vitals()) == ()


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.0, 10.0), (4.0, 6.0), (40.0, 0.0)])
def test_a_beat_that_took_long_is_followed_the_sooner(
    monkeypatch: pytest.MonkeyPatch, took_s: float, wait_s: float
) -> None:
    world = World("K")
    heart = Heartbeat(world.store, NAME, lease_s=30.0)
    write = world.store.write

    def slow(unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        world.clock.advance(took_s)
        return write(unit, beside=beside)

    monkeypatch.setattr(world.store, "write", slow)
    assert asyncio.run(heart.beat()) == pytest.approx(wait_s, abs=0.1)


def test_only_a_look_that_ended_well_is_one() -> None:
    world = World("K")
    pulse = pulse_of(world)
    pulse.schedules = leads = True

    async def turn() -> float:
        if not leads:
            raise StoreUnavailable("the server is away")
        return 1.0

    look_max_s = 1.0 + world.policy.pass_time_max_s + world.policy.lease_s
    assert pulse.vitals().scheduling == Scheduling(leads=False, look_age_s=None, look_max_s=look_max_s)
    look = pulse.looking(turn, leads=lambda: leads)
    assert pulse.vitals().scheduling == Scheduling(leads=True, look_age_s=None, look_max_s=look_max_s)

    async def looked() -> float:
        return await look()

    assert asyncio.run(looked()) == 1.0
    world.clock.advance(5)
    leads = False
    with pytest.raises(StoreUnavailable):
        asyncio.run(looked())
    assert pulse.vitals().scheduling == Scheduling(leads=False, look_age_s=5.0, look_max_s=look_max_s)


def test_a_stop_is_told_as_it_begins() -> None:
    pulse = pulse_of(World("K"))
    assert lacks_of(pulse.vitals()) == (Lack.STARTING,)
    pulse.stopping = True
    assert phase_of(pulse.vitals()) is Phase.DRAINING
    assert lacks_of(pulse.vitals()) == (Lack.STOPPING, Lack.STARTING)
