"""A customer answers STOP: what was planned for the number ends, whatever claims at that moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import Ending, State
from sendonce.core.outcome import Failed, Reason
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.pipeline import claimer
from sendonce.pipeline.events import EventApplier, take_in
from sendonce.ports.store import Store, Tx
from tests.integration.world import ADDRESSES, World

SMS = "sms-K"


def answer(world: World, store: Store, number: str, text: str) -> None:
    """A customer's words come in over the account, and are applied."""
    said = ProviderEvent(f"in-{number}-{text}", EventKind.REPLIED, address=number, text=text)
    take_in(store, world.policy, SMS, [said]).result()
    EventApplier(store, world.policy).step()


def test_canc_07_a_stop_that_comes_by_itself_ends_what_is_planned_for_the_number() -> None:
    """CANC-07: also what waits for a retry. Email and other numbers go on; the next one ends as well."""
    world = World("K", "N")
    retry = world.schedule("r-1")
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503"))
    later = world.schedule("r-2", due_in_s=3_600, also=[Channel.EMAIL])
    other = world.schedule("r-3", to="+12025550199")
    answer(world, world.store, ADDRESSES[Channel.SMS], " Stop ")
    assert [world.state(key) for key in (retry, later)] == [State.SUPPRESSED] * 2
    assert world.row(retry).course.reason == "opted_out:reply"
    assert world.state(world.key("r-2", Channel.EMAIL)) is State.SCHEDULED
    after = world.schedule("r-4")
    world.pass_()
    assert world.state(after) is State.SUPPRESSED
    assert world.state(other) is State.QUEUED


def test_what_may_be_a_no_stops_nobody_and_is_not_lost() -> None:
    world = World("K")
    key = world.schedule("r-1")
    answer(world, world.store, ADDRESSES[Channel.SMS], "cancel my appointment on Friday")
    world.pass_()
    assert world.state(key) is State.QUEUED
    rows = world.read(lambda tx: tx.rows("view_events_people_total"))
    assert [row["count"] for row in rows] == [1]


def test_a_stop_races_the_claims_of_another_process(tmp_path: Path) -> None:
    """Two processes with a store of their own each: what the STOP ended is never claimed, and what was
    claimed before it is on its way, marked, and not tried again."""
    world = World("K", path=str(tmp_path / "store.db"))
    numbers = [f"+120255501{n:02}" for n in range(20)]
    keys = [world.schedule(f"r-{n}", to=number) for n, number in enumerate(numbers)]
    world.pass_()
    claiming, hearing = world.another_store(), world.another_store()
    barrier = threading.Barrier(2)
    claimed: list[str] = []
    errors: list[BaseException] = []

    def one(tx: Tx) -> list[str]:
        through = world.policy.accounts[SMS]
        found = claimer.claim(
            tx, through, world.policy, process="w-1", secret=claiming.secret, lead_us=2_000, most=1
        )
        return [claim.key for claim in found.claims]

    def claims() -> None:
        for _ in numbers:
            claimed.extend(claiming.write(one).result())

    def hears() -> None:
        for number in reversed(numbers):  # the claims come from the other end: they meet in the middle
            answer(world, hearing, number, "STOP")

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait(30)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (claims, hears)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claiming.close()
    hearing.close()
    assert not errors
    standings = {key: world.row(key).standing for key in keys}
    ended = {key for key, standing in standings.items() if standing.state is State.SUPPRESSED}
    assert ended.isdisjoint(claimed)
    assert ended | set(claimed) == set(keys)
    for key in claimed:
        assert (standings[key].state, standings[key].ending) == (State.SENDING, Ending.OPT_OUT)
