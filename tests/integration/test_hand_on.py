"""Handing the feed on: at least once, in order, resumed from its place, without personal data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from sendonce.core.errors import Refused
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Reason
from sendonce.core.provider_event import EventKind
from sendonce.held import FAILOVER, hold
from sendonce.pipeline import hand_on as module
from sendonce.pipeline.feed import GONE, Feed
from sendonce.pipeline.hand_on import LEASE_S, LOOK_S, STAND_BY_S, HandOn
from sendonce.pipeline.restore import released
from sendonce.ports.sink import Record, SinkUnavailable
from sendonce.ports.store import Store
from tests.integration.test_feed import hear, says
from tests.integration.world import SECOND, TENANT, World


class Log:
    """A sink in memory. `fails`: what the next pages are answered with, after the sink has taken `takes`."""

    name = "kafka"

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.fails = 0
        self.takes = 0

    def check(self, tenant: str) -> str:
        return tenant

    def publish(self, tenant: str, records: Sequence[Record]) -> None:
        if self.fails:
            self.fails -= 1
            self.records += records[: self.takes]
            raise SinkUnavailable("away")
        self.records += records

    def close(self) -> None:
        pass

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(record.body) for record in self.records]

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(body["reminder"], body["state"]) for body in self.bodies]


def passing(
    world: World, log: Log, *, process: str = "p-1", since: int = 0, store: Store | None = None
) -> HandOn:
    of = store or world.store
    return HandOn(of, Feed(of), log, tenant=TENANT, process=process, since=since)


def test_what_ended_is_handed_on_once_and_another_process_goes_on_from_there() -> None:
    world, log = World("K"), Log()
    world.accepted("r-1")
    first = passing(world, log)
    assert first.step() == LOOK_S
    world.accepted("r-2")
    first.step()
    first.resign()
    world.accepted("r-3")
    second = passing(world, log, process="p-2")
    second.step()
    assert log.told == [("r-1", "ACCEPTED"), ("r-2", "ACCEPTED"), ("r-3", "ACCEPTED")]
    assert (first.handed_on, second.handed_on) == (2, 1)


def test_a_record_is_keyed_by_its_delivery_and_numbered_in_it() -> None:
    world, log = World("N"), Log()
    key = world.uncertain("r-1")
    hand = passing(world, log)
    hand.step()
    world.permit(key)
    world.send(Accepted("m-1"))
    hand.step()
    assert [record.key for record in log.records] == [key] * 3
    assert [body["state"] for body in log.bodies] == ["UNCERTAIN", "QUEUED", "ACCEPTED"]
    numbers = [body["sequence"] for body in log.bodies]
    assert numbers == sorted(set(numbers))
    assert [record.id for record in log.records] == [f"{key}/{number}" for number in numbers]
    last = log.bodies[-1]
    assert (last["receipt"], last["over"], last["at"][:11], last["at"][-1]) == (
        "m-1",
        True,
        "2026-01-01T",
        "Z",
    )


def test_what_a_provider_said_later_is_handed_on_by_its_kind() -> None:
    world, log = World("K"), Log()
    key = world.accepted("r-1", receipt="m-1")
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-1"))
    passing(world, log).step()
    assert [
        (record.id, body["kind"], body["sequence"])
        for record, body in zip(log.records, log.bodies, strict=True)
    ] == [
        (f"{key}/{len(world.lines(key))}", "disposition", len(world.lines(key))),
        (f"{key}/delivered", "facet", None),
    ]


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_a_page_that_is_not_confirmed_is_given_again_whole(takes: int) -> None:
    world, log = World("K"), Log()
    for name in ("r-1", "r-2"):
        world.accepted(name)
    hand = passing(world, log)
    log.fails, log.takes = 1, takes
    with pytest.raises(SinkUnavailable):
        hand.step()
    assert hand.handed_on == 0
    hand.step()
    hand.step()
    expected = [("r-1", "ACCEPTED"), ("r-2", "ACCEPTED")]
    assert log.told == [*expected[:takes], *expected]


def test_that_it_is_away_is_told_once_and_that_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(module, "tell", lambda event, **fields: events.append(event.name))
    world, log = World("K"), Log()
    world.accepted("r-1")
    hand = passing(world, log)
    log.fails = 3
    for _ in range(3):
        with pytest.raises(SinkUnavailable):
            hand.step()
    assert events == ["sink_away"]
    hand.step()
    world.accepted("r-2")
    hand.step()
    assert events == ["sink_away", "sink_back"]


@pytest.mark.parametrize(("dies_in", "copies"), [((Log, "publish"), 1), ((HandOn, "_move"), 2)])
def test_a_process_that_died_on_the_way_costs_a_repetition_and_no_gap(
    dies_in: tuple[type, str], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, log = World("K"), Log()
    world.accepted("r-1")

    def dies(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*dies_in, dies)
        with pytest.raises(KeyboardInterrupt):
            passing(world, log).step()
    world.advance(LEASE_S + 1)
    passing(world, log, process="p-2").step()
    assert log.told == [("r-1", "ACCEPTED")] * copies
    assert len({record.id for record in log.records}) == 1


def test_one_process_hands_on_and_the_other_stands_by_until_it_is_gone() -> None:
    world, log = World("K"), Log()
    world.accepted("r-1")
    first, second = passing(world, log), passing(world, log, process="p-2")
    first.step()
    assert (second.step(), second.leads) == (STAND_BY_S, False)
    world.advance(LEASE_S + 1)
    world.accepted("r-2")
    assert (second.step(), second.leads) == (LOOK_S, True)
    assert (first.step(), first.leads) == (STAND_BY_S, False)
    assert log.told == [("r-1", "ACCEPTED"), ("r-2", "ACCEPTED")]


def test_a_process_that_stood_still_goes_on_from_where_the_other_came_to() -> None:
    """It still believes that it leads, and has an older place: it may repeat, but moves no place back."""
    world, log = World("K"), Log()
    world.accepted("r-1")
    first, second = passing(world, log), passing(world, log, process="p-2")
    first.step()
    first._ask_at = 2**62  # it does not ask again, as if it had been stopped right after it did
    world.advance(LEASE_S + 1)
    world.accepted("r-2")
    second.step()
    assert first.step() == 0.0  # it told r-2 too, and finds that the place has moved
    world.accepted("r-3")
    first.step()
    second.step()
    assert [name for name, _ in log.told] == ["r-1", "r-2", "r-2", "r-3", "r-3"]
    second.step()
    assert [name for name, _ in log.told] == ["r-1", "r-2", "r-2", "r-3", "r-3"]


def test_it_can_begin_anew_at_a_time_once() -> None:
    world, log = World("K"), Log()
    for number in range(4):
        world.accepted(f"r-{number}")
        world.advance(3_600)
    passing(world, log).step()
    world.advance(LEASE_S + 1)
    log.records.clear()
    hand = passing(world, log, process="p-2", since=world.now - round(1.5 * 3_600 * SECOND))
    hand.step()
    hand.step()
    assert log.told == [("r-3", "ACCEPTED")]


def test_the_place_is_kept_rarely_while_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = World("K"), Log()
    kept: list[str] = []
    move = HandOn._move

    def counted(self: HandOn, cursor: str) -> bool:
        kept.append(cursor)
        return move(self, cursor)

    monkeypatch.setattr(HandOn, "_move", counted)
    hand = passing(world, log)
    for number in range(10):
        world.schedule(f"r-{number}", due_in_s=1e6)
        hand.step()
    assert len(kept) == 1
    world.advance(module.KEEP_S + 1)
    hand.step()
    assert len(kept) == 2


def test_after_a_hold_it_stops_and_says_so() -> None:
    world, log = World("K"), Log()
    world.accepted("r-1")
    hand = passing(world, log)
    hand.step()
    world.clock.advance(1.0)
    world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))
    released(world.store, world.policy, reason="compared", actor="operator:ann")
    with pytest.raises(Refused, match="with since=") as raised:
        hand.step()
    assert raised.value.code == GONE


def test_nobody_who_acted_and_nothing_that_people_wrote_is_handed_on() -> None:
    world, log = World("K"), Log()
    gone = world.schedule("r-1", due_in_s=60)
    world.withdraw(gone, Event.CANCELLED, "asked by Ann Smith, ann@example.com")
    dead = world.dead("r-2", reason=Reason.UNAVAILABLE)
    assert world.state(dead) is State.DEAD
    hand = passing(world, log)
    hand.step()
    assert [body["reason"] for body in log.bodies] == ["", "unavailable"]
    text = b"".join(record.body for record in log.records).decode()
    for never in ("Ann", "ann@", "actor", "operator", "+1202"):
        assert never not in text
