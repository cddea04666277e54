"""The pruner: processes and passes of long ago are forgotten in short units, all others stay."""

from __future__ import annotations

from dataclasses import replace

from sendonce.pipeline.pruner import KEEP_US, PAGE, prune
from sendonce.ports.store import Process, Tx
from tests.integration.world import SECOND, World


def _history(world: World) -> tuple[int, int]:
    """How many processes and passes are remembered."""
    return (
        len(world.read(lambda tx: tx.rows("view_processes", since=0, steady=0, limit=10_000))),
        len(world.read(lambda tx: tx.rows("view_passes", limit=10_000))),
    )


def _live_on(world: World, processes: int, passes: int) -> None:
    def unit(tx: Tx) -> None:
        for number in range(processes):
            one = Process(f"{tx.now}-{number}", "drain", "sms", "host", 1, tx.now, tx.now, 0, stopped=True)
            tx.processes.beat(replace(one, lease_until=tx.steady))
        for _ in range(passes):
            tx.runs.begin_pass("cron", "p", 0)

    world.write(unit)


def test_what_is_long_ago_is_forgotten_in_short_units() -> None:
    world = World("K")
    _live_on(world, PAGE + 10, PAGE + 20)
    world.advance(KEEP_US / SECOND)
    _live_on(world, 3, 4)
    assert world.write(prune) == 0  # to the microsecond as old as is kept
    world.advance(1)
    assert _history(world) == (PAGE + 10 + 3 + 1, PAGE + 20 + 4)  # and the worker, which lives
    assert world.write(prune) == PAGE
    assert world.write(prune) == 20
    assert _history(world) == (3 + 1, 4)
    assert world.write(prune) == 0


def test_answers_of_the_api_are_forgotten_when_their_time_is_over() -> None:
    world = World("K")

    def unit(tx: Tx) -> None:
        for number in range(3):
            until = tx.now + number * SECOND
            tx.answers.begin("t", str(number), "f", at=tx.now, stale=0, keep_until=until)

    world.write(unit)
    world.advance(1)
    assert world.write(prune) > 0
    left = [name for name in "012" if world.read(lambda tx, n=name: tx.answers.get("t", n))]  # type: ignore[misc]
    assert left[-1] == "2"
    assert "0" not in left
