"""Several accounts for a channel: who carries what, what leaves one that is held, and what never does."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from sendonce.core import pacing
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Failed,
    NotStarted,
    Outcome,
    Reason,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import Policy
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route, Share
from sendonce.held import FAILOVER, hold
from sendonce.moves import ELSEWHERE
from sendonce.pipeline import failover, reconciler
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.failover import Rerouted, relieve, reroute
from sendonce.pipeline.overview import overview
from sendonce.pipeline.restore import released
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Tx
from tests.integration.world import SECOND, World, account_of, policy_of

HELD: Final = AccountError(Reason.AUTHENTICATION, "401")
MOVE_AFTER_S: Final = 300.0


def policy(class_: str = "K", *, weights: tuple[int, int] = (1_000_000, 1), **b: Any) -> Policy:
    """Accounts "a" and "b" of one class; by the usual weights everything is meant for "a"."""
    retry = RetryPolicy(attempts_max=9, base_s=2.0)
    accounts = [
        account_of(class_, name="a", retry=retry),
        replace(account_of(class_, name="b", retry=retry), **b),
    ]
    channel = accounts[0].channel
    made = policy_of(*accounts)
    shares = (Share("a", weights[0]), Share("b", weights[1]))
    channels = {name: replace(each, move_after_s=MOVE_AFTER_S) for name, each in made.channels.items()}
    return replace(made, routes=(Route(channel, "a", shares=shares),), channels=channels)


def world_of(count: int = 1, class_: str = "K", **given: Any) -> tuple[World, list[str]]:
    """A world with so many deliveries queued for "a"."""
    world = World(policy=policy(class_, **given))
    keys = [world.schedule(f"r-{number}") for number in range(count)]
    world.pass_()
    assert {world.row(key).course.account for key in keys} == {"a"}
    return world, keys


def hold_a(world: World, outcome: Outcome = HELD) -> None:
    """One of what waits for "a" comes back with this."""
    (claim,) = world.claim("a", most=1)
    world.settle([(claim, outcome)])


def relieved(world: World) -> int:
    return world.write(lambda tx: relieve(tx, world.policy, "a"))


def by_hand(world: World, **given: Any) -> Rerouted:
    options = {"reason": "a is down", "actor": "operator:ann", **given}
    return reroute(world.store, world.policy, "a", "b", **options)


def accounts(world: World, keys: Sequence[str]) -> list[str]:
    return [world.row(key).course.account for key in keys]


def test_the_choice_follows_the_weights_and_is_kept() -> None:
    world = World(policy=policy(weights=(3, 1)))
    keys = [world.schedule(f"r-{number}") for number in range(200)]
    world.pass_()
    counts = Counter(accounts(world, keys))
    assert 125 <= counts["a"] <= 175
    line = next(line for line in world.lines(keys[0]) if line.event == Event.PUBLISHED)
    assert line.word("account") == world.row(keys[0]).course.account
    assert not line.word("meant")


def test_new_ones_go_elsewhere_while_an_account_is_held_and_come_back() -> None:
    world = World(policy=policy(weights=(1, 1)))
    world.schedule_many(40, due_in_s=0.0)
    world.pass_()
    hold_a(world)
    keys = [world.schedule(f"s-{number}") for number in range(60)]
    world.pass_()
    meant = [next(x for x in world.lines(key) if x.event == Event.PUBLISHED).word("meant") for key in keys]
    counts = Counter(accounts(world, keys))
    assert 0 < counts["a"] < 10  # what is left as probes
    assert {account for account, was in zip(accounts(world, keys), meant, strict=True) if was == "a"} == {"b"}
    world.advance(61)
    (probe,) = world.claim("a")
    world.settle([(probe, Accepted("r"))])
    later = [world.schedule(f"t-{number}") for number in range(60)]
    world.pass_()
    assert 15 < Counter(accounts(world, later))["a"] < 45


def test_a_share_of_failures_shifts_by_steps_and_fades() -> None:
    world, _ = world_of(100)
    claims = world.claim("a", most=40)
    world.settle(
        [
            (claim, Failed(Reason.UNAVAILABLE, "503") if n % 3 == 0 else Accepted(f"r{n}"))
            for n, claim in enumerate(claims)
        ]
    )

    def wellness() -> float:
        return world.read(
            lambda tx: pacing.wellness(next(g for g in tx.gates.all() if g.account == "a"), tx.steady)
        )

    assert wellness() == 0.5
    world.advance(120)
    assert wellness() == 0.75
    world.advance(600)
    assert wellness() == 1.0


def test_pressure_is_no_failure() -> None:
    world, _ = world_of(20)
    claims = world.claim("a", most=10)
    world.settle([(claim, Throttled(ThrottleScope.RATE, "429", 5.0)) for claim in claims])
    world.advance(MOVE_AFTER_S + 1)
    assert relieved(world) == 0
    gate = world.read(lambda tx: next(gate for gate in tx.gates.all() if gate.account == "a"))
    assert pacing.wellness(gate, world.store.steady()) == 1.0


def test_what_waits_leaves_an_account_that_stays_held_once_and_under_its_key() -> None:
    world, keys = world_of(5)
    before = [world.row(key) for key in keys]
    hold_a(world)
    assert relieved(world) == 0  # not held for long enough
    world.advance(MOVE_AFTER_S + 1)
    assert relieved(world) == 5
    assert accounts(world, keys) == ["b"] * 5
    for was, key in zip(before, keys, strict=True):
        row, line = world.row(key), world.lines(key)[-1]
        assert (row.standing.state, row.standing.version) == (State.QUEUED, was.standing.version)
        assert row.standing.epoch > was.standing.epoch
        assert (line.event, line.word("from"), line.word("account")) == (Event.REROUTED, "a", "b")
        assert line.word("reason") == "held:account:401"
    assert world.claim("a") == []
    sent = world.claim("b")
    assert len(sent) == 5
    world.settle([(claim, Accepted(f"r-{claim.key}")) for claim in sent])
    assert {world.state(key) for key in keys} == {State.ACCEPTED}
    assert verify(world.store).ok


def test_what_would_expire_first_does_not_wait_so_long() -> None:
    world = World(policy=policy())
    soon, late = world.schedule("soon", valid_s=200.0), world.schedule("late")
    world.pass_()
    hold_a(world)
    world.advance(10)
    assert relieved(world) == 1
    assert accounts(world, [soon, late]) == ["b", "a"]


@pytest.mark.parametrize(
    "outcome",
    [
        NotStarted("missed_slot"),
        Failed(Reason.UNAVAILABLE, "503"),
        Throttled(ThrottleScope.RECIPIENT, "429", None),
    ],
)
def test_what_provably_was_not_sent_may_leave(outcome: Outcome) -> None:
    world, (key,) = world_of()
    hold_a(world, outcome)
    world.advance(120)
    assert by_hand(world).moved == 1
    assert world.row(key).course.first_try == 0
    (claim,) = world.claim("b")
    world.settle([(claim, Unknown("timeout"))])
    # What it is to "b" from here on, it is to "b" alone.
    world.advance(120)
    assert by_hand(world).moved == 0
    assert reroute(world.store, world.policy, "b", "a", reason="back", actor="ann").left == {"uncertain": 1}


def test_never_after_an_uncertain_outcome_even_when_its_key_holds() -> None:
    world, (key,) = world_of()
    hold_a(world, Unknown("timeout"))
    world.advance(60)
    assert (world.state(key), world.row(key).standing.maybe) == (State.QUEUED, True)
    (again,) = world.claim("a")
    world.settle([(again, HELD)])
    world.advance(MOVE_AFTER_S + 1)
    assert relieved(world) == 0
    assert by_hand(world).left == {"uncertain": 1}
    assert accounts(world, [key]) == ["a"]


def test_never_after_an_uncertain_outcome_even_when_it_was_found_absent() -> None:
    world, (key,) = world_of(class_="L")
    hold_a(world, Unknown("timeout"))
    world.advance(3_600)
    world.beat()
    asked = world.write(
        lambda tx: reconciler.doubts(tx, world.policy, accounts={"a": None}, secret=world.store.secret)
    )
    world.write(
        lambda tx: reconciler.resolve(tx, [(each, Absent(believable=True)) for each in asked], world.policy)
    )
    assert (world.state(key), world.row(key).standing.maybe) == (State.QUEUED, False)
    assert by_hand(world).left == {"uncertain": 1}


def test_a_delivery_moves_by_itself_only_once() -> None:
    world, (key,) = world_of()
    hold_a(world)
    world.advance(MOVE_AFTER_S + 1)
    assert relieved(world) == 1
    (claim,) = world.claim("b")
    world.settle([(claim, HELD)])
    probe = world.schedule("probe")
    world.write(lambda tx: tx.gates.save(pacing.resumed(tx.gates.lock("a"))))  # type: ignore[arg-type]
    world.advance(MOVE_AFTER_S + 1)
    assert world.write(lambda tx: relieve(tx, world.policy, "b")) == 0
    assert accounts(world, [key]) == ["b"]
    assert reroute(world.store, world.policy, "b", "a", reason="ann knows", actor="ann").moved == 1
    assert world.state(probe) is State.SCHEDULED


def test_who_may_not_send_as_its_sender_does_not_get_it() -> None:
    world, (key,) = world_of(sender="+12025550199")
    assert by_hand(world).left == {"sender": 1}
    world.policy = policy(sender="+12025550199", senders=("+12025550100",))
    assert by_hand(world, preview=True).moved == 1
    assert accounts(world, [key]) == ["a"]
    assert by_hand(world).moved == 1


def test_what_no_quota_of_the_other_ever_fits_stays() -> None:
    tiny = GateLimits((Limit(5, SECOND), Limit(1, 3_600 * SECOND, parts=True)), lanes=2)
    world = World(policy=policy(limits=tiny))
    key = world.schedule(data={"name": "x" * 200})
    world.pass_()
    assert by_hand(world).left == {"size": 1}
    assert accounts(world, [key]) == ["a"]


def test_nothing_goes_to_one_that_is_held_paused_or_closed() -> None:
    world, _ = world_of(3)
    hold_a(world)
    world.advance(MOVE_AFTER_S + 1)

    def gate_b(**changes: Any) -> None:
        def unit(tx: Tx) -> None:
            gate = tx.gates.lock("b")
            assert gate is not None
            tx.gates.save(replace(gate, **changes))

        world.write(unit)

    for changes in ({"ill_since": 1}, {"paused_until": 2**62}, {"closed_until": 2**62}):
        gate_b(**changes)
        assert relieved(world) == 0
        gate_b(ill_since=0, paused_until=0, closed_until=0)
        world.advance(6)
    assert relieved(world) == 3


def test_it_goes_on_behind_what_must_stay_and_no_faster_than_half_the_others_rate() -> None:
    slow = GateLimits((Limit(4, SECOND),), lanes=4)
    world, keys = world_of(60, limits=slow)
    claims = world.claim("a", most=30)
    world.settle([(claim, Unknown("timeout")) for claim in claims])
    world.settle([(claim, HELD) for claim in world.claim("a", most=1)])
    moved = []
    for _ in range(30):
        world.advance(MOVE_AFTER_S)
        moved.append(relieved(world))
        assert relieved(world) == 0  # another process, at the same moment
    assert max(moved) <= 10
    uncertain = {claim.key for claim in claims}
    assert {key for key in keys if world.row(key).course.account == "b"} == set(keys) - uncertain


def test_a_person_says_why_and_it_is_kept() -> None:
    world, keys = world_of(250)
    with pytest.raises(InvalidInput):
        by_hand(world, reason=" ")
    with pytest.raises(NotFound, match="use one of a, b"):
        reroute(world.store, world.policy, "a", "c", reason="x", actor="ann")
    with pytest.raises(InvalidInput, match="share nothing"):
        reroute(world.store, world.policy, "a", "a", reason="x", actor="ann")
    assert by_hand(world, category="b").left == {"filter": 250}
    assert by_hand(world).moved == 250
    assert set(accounts(world, keys)) == {"b"}
    last = world.read(lambda tx: tx.rows("view_audit", limit=1, before=2**62))[0]
    assert (last["action"], last["target"], json.loads(str(last["body"]))["moved"]) == ("move", "a", 250)
    assert verify(world.store).ok


def test_a_store_that_may_have_lost_a_move_asks_nobody() -> None:
    """The lost commits may have moved it and sent it elsewhere: no key and no look-up of "a" tells."""
    world, (key,) = world_of()
    world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))
    released(world.store, world.policy, reason="took over", actor="ann")
    assert world.state(key) is State.UNCERTAIN
    assert world.row(key).course.first_try == ELSEWHERE


def test_claims_and_moves_at_once_never_both_have_one() -> None:
    """Real threads: workers of both accounts claim while two processes move."""
    world, keys = world_of(120)
    had: list[Claim] = []
    failed: list[BaseException] = []
    begin = threading.Barrier(4)

    def claim(account: str) -> None:
        for _ in range(30):
            had.extend(world.claim(account, most=5))

    def move() -> None:
        for _ in range(3):
            by_hand(world)

    def run(what: Any, *given: str) -> None:
        try:
            begin.wait()
            what(*given)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=args) for args in ((claim, "a"), (claim, "b"), (move,), (move,))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len({each.key for each in had}) == len(had)
    for each in had:
        row = world.row(each.key)
        assert (row.course.account, row.standing.epoch) == (each.account, each.epoch)
    left = [key for key in keys if world.state(key) is State.QUEUED]
    assert set(accounts(world, left)) <= {"b"}
    assert verify(world.store).ok


def test_without_the_guard_an_uncertain_one_would_be_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guard is for: with it gone, the table itself still refuses."""
    world, _ = world_of()
    hold_a(world, Unknown("timeout"))
    world.advance(60)
    real = failover._judge
    monkeypatch.setattr(
        failover, "_judge", lambda *a, **k: "" if real(*a, **k) == "uncertain" else real(*a, **k)
    )
    with pytest.raises(AssertionError, match="nobody can have got"):
        by_hand(world)


def test_the_overview_says_what_an_account_keeps_of_its_share() -> None:
    def kept(world: World) -> dict[str, float | None]:
        seen = world.read(lambda tx: overview(tx, world.policy))
        return {each.name: each.keeps for each in seen.accounts}

    world, _ = world_of(2)
    assert kept(world) == {"a": 1.0, "b": 1.0}
    hold_a(world)
    assert kept(world) == {"a": pacing.PROBE_PART, "b": 1.0}
    assert set(kept(World("K", "N")).values()) == {None}
