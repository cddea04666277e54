"""With one guard of the product taken away, what must hold does not hold, and the simulator sees it.

A test that cannot fail proves nothing: so each guard is taken away once. The first three are defects that
the simulator itself found, and this keeps them from coming back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sendonce import moves, withdrawal
from sendonce.core import lifecycle, pacing, promise
from sendonce.core.lifecycle import Event, Guard
from sendonce.pipeline import claimer, events, failover, reaper, reconciler, restore, sender, settler, worker
from sendonce.pipeline.heartbeat import Heartbeat
from sendonce.store.transaction import SqlTx
from sendonce.testing.simulator import Fault, Profile, run_seed


def lanes_of_untold_claims(patch: pytest.MonkeyPatch) -> None:
    """A claim whose commit was not told of kept its lane for as long as its process lived."""
    patch.setattr(reaper, "_is_nobodys", lambda *_: False)


def lapsed_leases(patch: pytest.MonkeyPatch) -> None:
    """A process that woke after its lease claimed, was reaped, renewed its lease, and sent."""
    claim = claimer.claim
    patch.setattr(worker, "claim", lambda *args, lease_until, **given: claim(*args, **given))
    since = property(lambda self: 0, lambda self, value: None)
    patch.setattr(Heartbeat, "unbroken_since", since, raising=False)


def lanes_for_hints(patch: pytest.MonkeyPatch) -> None:
    """A pull of many hints was claimed as far as the rate went, whatever the lanes."""
    ahead = pacing.slots_ahead
    patch.setattr(pacing, "slots_ahead", lambda gate, most, **given: ahead(gate, 64, **given))


def last_moment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sender, "_check", lambda *_: None)


def settle_time(patch: pytest.MonkeyPatch) -> None:
    for module in (reconciler, moves, promise):
        patch.setattr(module, "settles_at", lambda *_: 0)


def key_age(patch: pytest.MonkeyPatch) -> None:
    for module in (promise, claimer):
        patch.setattr(module, "key_dies_at", lambda promise, first_try: first_try + 10**15)


def cancels_that_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(lifecycle.GUARDS, Guard.NO_ENDING, lambda standing, facts: True)


def sticky_maybe(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(lifecycle.GUARDS, Guard.NOT_MAYBE, lambda standing, facts: True)


def fenced_outcomes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settler, "_is_current", lambda *_: True)


def held_stores(patch: pytest.MonkeyPatch) -> None:
    """A server took over without the last commits, and everybody went on."""
    patch.setattr(SqlTx, "held", property(lambda self: False))


def doubts_at_the_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restore, "doubt", lambda tx, rows, *_, **__: list(rows))


def doubts_before_a_cancel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(withdrawal, "doubted", lambda tx, rows, policy: list(rows))


def receipts_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A provider's word about a receipt was taken for one about the same receipt of another provider."""
    patch.setattr(events, "_was_receipt_of", lambda *_: True)


F = Fault
AGEING = {F.LOST_RESPONSE: 0.5, F.OUTAGE: 0.5, F.PAUSE_CHANNEL: 0.6, F.ERROR_BUT_TAKEN: 0.3}
CASES: list[tuple[Callable[[pytest.MonkeyPatch], None], dict[Fault, float], int, str]] = [
    (lanes_of_untold_claims, {F.LOST_COMMIT_ACK: 0.15}, 1, "lane kept"),
    (lapsed_leases, {F.PAUSE: 0.1, F.SLOW_COMMIT: 0.1, F.BEATS_LOST: 0.3}, 56, "over limit"),
    (lanes_for_hints, {F.QUEUE_ERROR: 0.01}, 24, "over limit"),
    (last_moment, {F.SLOW: 0.2}, 1, "over limit"),
    (settle_time, {F.LATE_ARRIVAL: 0.3, F.LOST_RESPONSE: 0.2, F.CLOCK_FORWARD: 0.5}, 7, "duplicate"),
    (key_age, AGEING, 3, "duplicate"),
    (cancels_that_wait, {F.CANCEL: 0.4, F.LOST_RESPONSE: 0.4}, 1, "claimed after cancel"),
    (sticky_maybe, {F.CANCEL: 0.3, F.LOST_RESPONSE: 0.5}, 1, "cancelled yet sent"),
    (held_stores, {F.FAILOVER: 0.9}, 22, "cancelled yet sent"),
    (doubts_at_the_release, {F.FAILOVER: 0.9}, 2, "cancelled yet sent"),
    (doubts_before_a_cancel, {F.FAILOVER: 0.9, F.CANCEL: 0.6}, 1, "cancelled yet sent"),
    (receipts_of_anybody, {F.EVENT: 0.9, F.EVENT_FOREIGN: 0.5}, 1, "event"),
    (fenced_outcomes, {F.PAUSE: 0.05, F.CRASH: 0.02}, 1, "stage failed"),
]
"""What is taken away, what must go wrong for it to matter, a seed in which it does, and what breaks."""


def of_these(faults: dict[Fault, float], *, beyond: bool = False) -> Profile:
    return Profile("these", faults, share=1.0, deliveries=40, active_s=15.0, beyond=beyond)


@pytest.mark.parametrize(
    ("take_away", "faults", "seed", "kind"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_without_its_guard_it_is_seen(
    take_away: Callable[[pytest.MonkeyPatch], None],
    faults: dict[Fault, float],
    seed: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    forget_the_table: Callable[[], None],
) -> None:
    assert run_seed(seed, of_these(faults)).broken == ()
    take_away(monkeypatch)
    forget_the_table()
    assert kind in {broken.kind for broken in run_seed(seed, of_these(faults)).broken}


def test_a_freeze_beyond_the_promise_is_seen() -> None:
    """The residual that is stated: longer between the last check and the first byte than the margin."""
    faults = {F.PAUSE_BEFORE_BYTE: 0.3}
    assert run_seed(6, of_these(faults)).broken == ()
    assert "duplicate" in {broken.kind for broken in run_seed(6, of_these(faults, beyond=True)).broken}


OUTAGES = Profile(
    "these",
    {F.ACCOUNT_ERROR: 0.08, F.OUTAGE: 0.7, F.LOST_RESPONSE: 0.5},
    share=1.0,
    deliveries=40,
    active_s=15.0,
    shared=1.0,
)


def nothing_after_doubt(patch: pytest.MonkeyPatch) -> None:
    """What waits goes to another account, whatever the first one may have."""
    judge = failover._judge

    def careless(*args: Any, **given: Any) -> str:
        why = judge(*args, **given)
        return "" if why == "uncertain" else why

    patch.setattr(failover, "_judge", careless)
    (rule,) = lifecycle._BY_EVENT[Event.REROUTED]
    patch.setitem(lifecycle._BY_EVENT, Event.REROUTED, (replace(rule, guards=()),))


def test_what_may_be_sent_would_be_sent_twice_through_another_account(
    monkeypatch: pytest.MonkeyPatch, forget_the_table: Callable[[], None]
) -> None:
    assert run_seed(13, OUTAGES).broken == ()
    nothing_after_doubt(monkeypatch)
    forget_the_table()
    broken = {broken.kind for broken in run_seed(13, OUTAGES, to_the_end=True).broken}
    assert {"duplicate", "moved in doubt"} <= broken


@pytest.mark.parametrize("seed", [3, 8, 11])
def test_what_waits_leaves_an_account_that_is_held_and_nothing_breaks(seed: int) -> None:
    """Of classes K and L: crashes, lost answers and outages, while deliveries move."""
    faults = {F.ACCOUNT_ERROR: 0.08, F.OUTAGE: 0.6, F.LOST_RESPONSE: 0.3, F.CRASH: 0.01}
    outcome = run_seed(seed, replace(OUTAGES, chances=faults, active_s=30.0))
    assert outcome.broken == ()
    assert any("rerouted" in rule for rule in outcome.hit)
