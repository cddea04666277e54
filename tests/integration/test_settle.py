"""Settling: every outcome, from every promise of a provider, with and without doubt, with and without a
cancel that waits; what the gate hears; what a late outcome may still do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from sendonce import telemetry
from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import SAYS_NOT_SENT, Ending, Event, State
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.pacing import Gate
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.retry import RetryPolicy
from sendonce.moves import move_on
from sendonce.pipeline import settler
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.settler import settle
from sendonce.ports.store import Move, Tx
from tests.integration.world import SECOND, World, account_of, policy_of

BUDGET = RetryPolicy(attempts_max=3, throttles_max=3, base_s=2.0)
LAST = RetryPolicy(attempts_max=1, throttles_max=1, base_s=2.0)

OUTCOMES: dict[str, tuple[Outcome, RetryPolicy]] = {
    "accepted": (Accepted("receipt-1", "201"), BUDGET),
    "rejected": (Rejected(Reason.BLOCKED, "30007"), BUDGET),
    "throttled": (Throttled(ThrottleScope.RECIPIENT, "429"), BUDGET),
    "throttled, cap spent": (Throttled(ThrottleScope.RECIPIENT, "429"), LAST),
    "account error": (AccountError(Reason.CREDIT, "402"), BUDGET),
    "failed": (Failed(Reason.UNAVAILABLE, "503"), BUDGET),
    "failed, budget spent": (Failed(Reason.UNAVAILABLE, "503"), LAST),
    "unknown": (Unknown("timeout"), BUDGET),
    "unknown, budget spent": (Unknown("timeout"), LAST),
    "not started": (NotStarted("stopping"), BUDGET),
}

# The state after the outcome, for the four kinds of account: K, K whose key has died meanwhile, L, N.
# Written down from the life cycle in the design, not from the code. A delivery in doubt that is sent all
# the same is sent under its key (K) or by a permit (L, N).
STATES = {
    "acc": State.ACCEPTED,
    "rej": State.REJECTED,
    "dead": State.DEAD,
    "wait": State.QUEUED,
    "ask": State.RECONCILING,
    "?": State.UNCERTAIN,
    "end": None,  # CANCELLED or SUPPRESSED, as was asked
}
KINDS = ("K", "K dead", "L", "N")
TABLE = """
                      | sure                | in doubt            | sure, cancelled | in doubt, cancelled
accepted              | acc  acc  acc  acc  | acc  acc  acc  acc  | acc acc acc acc | acc acc acc acc
rejected              | rej  rej  rej  rej  | ?    ?    ask  ?    | end end end end | ?   ?   ask ?
throttled             | wait wait wait wait | wait ?    wait wait | end end end end | ?   ?   ask ?
throttled, cap spent  | dead dead dead dead | ?    ?    ask  ?    | end end end end | ?   ?   ask ?
account error         | wait wait wait wait | wait ?    wait wait | end end end end | ?   ?   ask ?
failed                | wait wait wait wait | wait ?    ask  ?    | end end end end | ?   ?   ask ?
failed, budget spent  | dead dead dead dead | ?    ?    ask  ?    | end end end end | ?   ?   ask ?
unknown               | wait ?    ask  ?    | wait ?    ask  ?    | ?   ?   ask ?   | ?   ?   ask ?
unknown, budget spent | ?    ?    ask  ?    | ?    ?    ask  ?    | ?   ?   ask ?   | ?   ?   ask ?
not started           | wait wait wait wait | wait ?    wait wait | end end end end | ?   ?   ask ?
"""
SITUATIONS = ((False, False), (True, False), (False, True), (True, True))
ENDS = {Ending.NONE: None, Ending.CANCEL: State.CANCELLED, Ending.OPT_OUT: State.SUPPRESSED}


def _cases() -> Iterator[tuple[str, str, bool, Ending, State]]:
    """(outcome, kind of account, in doubt, ending, the state after it)."""
    for line in TABLE.strip().splitlines()[1:]:
        name, *cells = (cell.strip() for cell in line.split("|"))
        for (maybe, ending), cell in zip(SITUATIONS, cells, strict=True):
            for kind, word in zip(KINDS, cell.split(), strict=True):
                for asked in (Ending.CANCEL, Ending.OPT_OUT) if ending else (Ending.NONE,):
                    expected = STATES[word] or ENDS[asked]
                    assert expected is not None
                    yield name, kind, maybe, asked, expected


def test_the_table_names_every_outcome() -> None:
    assert {name for name, *_ in _cases()} == set(OUTCOMES)
    assert {type(outcome) for outcome, _ in OUTCOMES.values()} == set(Outcome.__args__)
    assert len(list(_cases())) == len(OUTCOMES) * len(KINDS) * 6


@pytest.mark.parametrize("name", OUTCOMES)
def test_where_an_outcome_leads(name: str) -> None:
    for case, kind, maybe, ending, expected in _cases():
        if case != name:
            continue
        what = f"{name}, {kind}, {'in doubt' if maybe else 'sure'}, {ending.value or 'nothing pending'}"
        outcome, retry = OUTCOMES[name]
        world, claim = _sending(kind, retry, maybe=maybe)
        if ending is not Ending.NONE:
            world.withdraw(claim.key, Event.CANCELLED if ending is Ending.CANCEL else Event.SUPPRESSED)
            assert world.state(claim.key) is State.SENDING, "a cancel moves nothing that is being sent"
        if kind == "K dead":
            world.advance(31)
        assert world.settle([(claim, outcome)]) == [expected], what
        after = world.row(claim.key).standing
        in_doubt = maybe or isinstance(outcome, Unknown)
        if expected in (State.QUEUED, State.RECONCILING, State.UNCERTAIN):
            assert after.maybe == in_doubt, what
        if expected in SAYS_NOT_SENT:
            assert not after.maybe, what
        still_waits = expected in (State.RECONCILING, State.UNCERTAIN)
        assert after.ending is (ending if still_waits else Ending.NONE), what
        assert world.read(lambda tx: tx.calls.count("a")) == 0, what


def _sending(kind: str, retry: RetryPolicy, *, maybe: bool) -> tuple[World, Claim]:
    """A delivery in SENDING, in doubt or not, on an account of this kind."""
    letter = kind[0]
    # The provider forgets keys after 110 s: 10 s for a call and a margin of 60 s leave 40.
    keyed = Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=100.0)
    account = account_of(f"{letter}:sms", name="a", retry=replace(retry, attempts_max=9, throttles_max=9))
    if letter == "K":
        account = replace(account, promise=keyed)
    unkeyed = replace(account, promise=Promise(ProviderClass.NEITHER, timeout_s=10.0))
    world = World(policy=policy_of(account if letter == "K" else unkeyed))
    key = world.schedule()
    world.pass_()
    if maybe:
        world.send(Unknown("reset"))
        if letter != "K":
            world.permit(key)
        world.advance(2)
    # What the account promises, and what is left of the budgets, is decided when the outcome comes.
    world.policy = policy_of(replace(account, retry=retry))
    (claim,) = world.claim()
    assert world.row(key).standing.maybe is maybe
    return world, claim


# What an outcome costs


@pytest.mark.parametrize(
    ("outcome", "attempts", "failures", "throttles"),
    [
        (NotStarted("slot_missed"), 0, 0, 0),
        (Throttled(ThrottleScope.RATE, "429", 60.0), 1, 0, 1),
        (Throttled(ThrottleScope.RECIPIENT, "429"), 1, 0, 1),
        (AccountError(Reason.AUTHENTICATION, "535"), 1, 0, 0),
        (Failed(Reason.UNAVAILABLE, "503"), 1, 1, 0),
        (Unknown("timeout"), 1, 1, 0),
    ],
)
def test_rate_07_only_failures_spend_the_retry_budget(
    outcome: Outcome, attempts: int, failures: int, throttles: int
) -> None:
    world = World("K")
    key = world.schedule()
    world.pass_()
    world.send(outcome)
    course = world.row(key).course
    assert (course.attempts, course.failures, course.throttles) == (attempts, failures, throttles)
    assert (course.first_try == 0) == (attempts == 0)


def test_the_key_counts_from_the_first_call_even_if_that_failed() -> None:
    """A provider may count a key's life from its first use, whatever it answered then."""
    world = World("K")
    key = world.schedule()
    world.pass_()
    first_at = world.store.steady()
    world.send(Failed(Reason.UNAVAILABLE, "503"))
    world.advance(20)
    world.send(Unknown("timeout"))
    assert world.row(key).course.first_try == first_at


def test_a_permit_that_was_not_used_is_kept() -> None:
    world, claim = _sending("N", BUDGET, maybe=True)
    assert world.settle([(claim, NotStarted("stopping"))]) == [State.QUEUED]
    assert world.row(claim.key).standing.permit
    assert [again.key for again in world.claim()] == [claim.key]


@pytest.mark.parametrize(
    ("asked_s", "least_s", "most_s"),
    [
        (None, 1.0, 2.0),  # our own backoff: full jitter over a floor
        (300.0, 300.0, 305.0),
        (10.0**9, 86_400.0, 86_405.0),  # capped
    ],
)
def test_rate_05_a_failure_that_names_a_time_is_honoured_and_capped(
    asked_s: float | None, least_s: float, most_s: float
) -> None:
    for chance in (0.0, 0.5, 0.999):
        world = World("K", chance=chance)
        key = world.schedule(valid_s=10 * 86_400.0)
        world.pass_()
        world.send(Failed(Reason.UNAVAILABLE, "503", asked_s))
        waits_s = (world.row(key).course.next_at - world.now) / SECOND
        assert least_s <= waits_s <= most_s
        world.advance(waits_s - 0.001)
        assert world.claim() == []
        world.advance(0.001)
        assert len(world.claim()) == 1


@pytest.mark.parametrize("scope", list(ThrottleScope))
@pytest.mark.parametrize("asked_s", [60.0, None])
def test_rate_07_two_hours_of_throttling_kill_nothing(scope: ThrottleScope, asked_s: float | None) -> None:
    """Also RATE-03: an answer without a usable time never becomes a tight loop."""
    world = World("K")
    key = world.schedule()
    world.pass_()
    calls: list[float] = []
    start, end = world.now, world.now + 7_200 * SECOND
    while world.now < end:
        claimed = world.claimed()
        for claim in claimed.claims:
            calls.append((world.now - start) / SECOND)
            world.settle([(claim, Throttled(scope, "429", asked_s))])
        steady = world.store.steady()
        waits_us = max(claimed.again_at - steady, world.row(key).course.next_at - world.now, SECOND // 20)
        world.advance(min(waits_us, end - world.now) / SECOND)
    row = world.row(key)
    assert row.standing.state is State.QUEUED
    assert row.course.failures == 0
    assert 2 <= len(calls) <= 121
    assert sum(at < 10 for at in calls) <= 10
    world.advance(3_700)
    assert world.send(Accepted("r")) == [key]
    assert world.state(key) is State.ACCEPTED


# What the gate hears


def _gate(world: World, account: str = "") -> Gate:
    gate = world.write(lambda tx: tx.gates.lock(account or world.accounts[0]))
    assert gate is not None
    return gate


def _queued(world: World, count: int, account: str = "") -> list[str]:
    """Published reminders, each with a customer of its own."""
    named = account or world.accounts[0]
    keys = [world.schedule(f"{named}-{number}", account=named) for number in range(count)]
    world.pass_()
    return keys


@pytest.mark.parametrize("scope", [ThrottleScope.RATE, ThrottleScope.QUOTA, ThrottleScope.UNDECLARED])
def test_a_429_closes_the_gate_for_everybody_until_its_time(scope: ThrottleScope) -> None:
    world = World("K", "N")
    _queued(world, 4)
    _queued(world, 1, account="email-N")
    (first,) = world.claim(most=1)
    world.settle([(first, Throttled(scope, "429", 120.0))])
    world.process = "another"
    world.beat()
    assert world.claim() == []
    assert len(world.claim("email-N")) == 1, "another account hears nothing of it"
    world.advance(119.9)
    assert world.claim() == []
    world.advance(0.2)
    assert world.claim() != [], "it opens by itself"


def test_a_recipients_own_429_holds_that_delivery_alone() -> None:
    world = World("K")
    keys = _queued(world, 3)
    (first,) = world.claim(most=1)
    world.settle([(first, Throttled(ThrottleScope.RECIPIENT, "429", 120.0))])
    assert {claim.key for claim in world.claim()} == set(keys) - {first.key}
    world.advance(133)
    assert [claim.key for claim in world.claim()] == [first.key]


def test_a_concurrency_429_takes_lanes_not_pace() -> None:
    world = World("K")
    _queued(world, 60)
    claims = world.claim()
    assert len(claims) == 49, "one each 1.03 ms, for 50 ms"
    world.advance(0.5)
    world.settle([(claim, Throttled(ThrottleScope.CONCURRENCY, "429")) for claim in claims])
    after = _gate(world)
    assert (after.pace, after.closed_until) == (1.0, 0)
    assert after.lane_pace < 1.0
    assert len(world.claim()) == 11, "the untried ones go on; those that were refused wait a little"
    world.advance(1.0)
    assert len(world.claim()) == 25, "36 of 50 lanes are left, and 11 are taken"


def test_account_errors_hold_the_account_and_spend_nothing() -> None:
    world = World("K")
    keys = _queued(world, 5)
    claims = world.claim(most=3)
    world.settle([(claim, AccountError(Reason.AUTHENTICATION, "401")) for claim in claims])
    assert world.claim() == []
    assert _gate(world).closed_why == "account:401"
    for key in keys:
        row = world.row(key)
        assert (row.standing.state, row.course.failures, row.course.throttles) == (State.QUEUED, 0, 0)
    world.advance(61)
    (probe,) = world.claim()
    assert world.claim() == [], "one at a time until one is well"
    world.settle([(probe, Accepted("r"))])
    assert len(world.claim()) == 4


def test_the_breaker_opens_after_failures_in_a_row_and_closes_on_success() -> None:
    world = World("K", retry=RetryPolicy(attempts_max=99))
    _queued(world, 30)
    claims = world.claim(most=10)
    more = world.claim(most=10)
    failed = Failed(Reason.UNAVAILABLE, "503")
    world.settle([(claim, failed) for claim in claims[:9]])
    assert _gate(world).closed_until == 0, "nine are bad luck"
    world.settle([(claims[9], Unknown("timeout"))])
    assert world.claimed().why == "breaker"
    world.settle([(claim, failed) for claim in more])
    world.advance(1.1)  # those were open already: the same news
    (probe,) = world.claim()
    world.settle([(probe, Failed(Reason.UNAVAILABLE, "503"))])
    assert world.claim() == []
    world.advance(2.1)
    (probe,) = world.claim()
    world.settle([(probe, Accepted("r"))])
    gate = _gate(world)
    assert (gate.probing, gate.streak) == (False, 0)
    assert len(world.claim()) > 1


def test_half_of_them_failing_is_no_row_of_failures() -> None:
    world = World("K", retry=RetryPolicy(attempts_max=99))
    _queued(world, 30)
    claims = world.claim()
    assert len(claims) == 30
    failed = Failed(Reason.UNAVAILABLE, "503")
    world.settle([(claim, failed if n % 2 else Accepted("r")) for n, claim in enumerate(claims)])
    gate = _gate(world)
    assert (gate.closed_until, gate.streak) == (0, 1)


def test_a_rejection_says_that_the_provider_is_well() -> None:
    world = World("K")
    _queued(world, 12)
    claims = world.claim(most=9)
    world.settle([(claim, Failed(Reason.UNAVAILABLE, "503")) for claim in claims])
    assert _gate(world).streak == 9
    (next_,) = world.claim(most=1)
    world.settle([(next_, Rejected(Reason.INVALID_ADDRESS, "21211"))])
    assert _gate(world).streak == 0


# Late outcomes: state is fenced, evidence is not


def _overtaken(world: World) -> tuple[Claim, Claim]:
    """Two claims of one delivery: the first one's process lost its lease, the second one is open."""
    world.schedule()
    world.pass_()
    (first,) = world.claim()
    world.clock.advance(world.policy.lease_s + 1)
    world.process = "w-2"
    world.beat()
    assert world.reap() == 1
    world.advance(3)
    (second,) = world.claim()
    assert second.epoch > first.epoch
    return first, second


def test_dup_05_a_late_success_settles_and_the_newer_outcome_changes_nothing() -> None:
    world = World("K")
    first, second = _overtaken(world)
    assert first.message.send_key == second.message.send_key, "both calls carry the same key"
    assert world.settle([(second, Accepted("receipt-b"))]) == [State.ACCEPTED]
    before = world.row(second.key)
    assert world.settle([(first, Accepted("receipt-a"))]) == [State.ACCEPTED]
    after = world.row(second.key)
    assert after.course == before.course
    assert after.standing == before.standing
    assert world.events(second.key)[-1] == "late_outcome"
    assert world.lines(second.key)[-1].word("receipt") == "receipt-a"


@pytest.mark.parametrize(
    "late",
    [
        Failed(Reason.UNAVAILABLE, "503"),
        Rejected(Reason.BLOCKED, "30007"),
        Throttled(ThrottleScope.RECIPIENT, "429", 60.0),
        AccountError(Reason.CREDIT, "402"),
        Unknown("timeout"),
        NotStarted("lease_lost"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
@pytest.mark.parametrize("settled", [True, False], ids=["b done", "b sending"])
def test_dup_05_a_late_failure_moves_no_newer_attempt(late: Outcome, settled: bool) -> None:
    world = World("K")
    first, second = _overtaken(world)
    if settled:
        world.settle([(second, Accepted("receipt-b"))])
    before = world.row(first.key)
    world.settle([(first, late)])
    after = world.row(first.key)
    assert after.standing == before.standing
    assert after.course == before.course, "no retry was planned, no budget spent"
    assert world.lines(first.key)[-1].number("attempt_epoch") == first.epoch
    open_calls = world.read(lambda tx: tx.calls.count("sms-K"))
    assert open_calls == (0 if settled else 1), "its own lane is free, and only its own"
    world.settle([(first, late)])
    assert world.read(lambda tx: tx.calls.count("sms-K")) == open_calls, "told twice frees nothing twice"


def test_a_late_success_settles_what_is_being_sent_again() -> None:
    world = World("K")
    first, second = _overtaken(world)
    assert world.settle([(first, Accepted("receipt-a"))]) == [State.ACCEPTED]
    assert world.row(first.key).course.receipt == "receipt-a"
    # The second call's failure comes back to a delivery that is done.
    assert world.settle([(second, Failed(Reason.UNAVAILABLE, "503"))]) == [State.ACCEPTED]
    assert world.claim() == []


def test_a_group_may_hold_two_outcomes_of_one_delivery() -> None:
    world = World("K")
    first, second = _overtaken(world)
    assert world.settle([(second, Failed(Reason.UNAVAILABLE, "503")), (first, Accepted("r-a"))]) == [
        State.QUEUED,
        State.ACCEPTED,
    ]
    assert world.state(first.key) is State.ACCEPTED
    assert world.read(lambda tx: tx.calls.count("sms-K")) == 0


@pytest.mark.parametrize("kind", ["N", "L:sms"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_late_evidence_settles_doubt(kind: str, cancelled: bool) -> None:
    world = World(kind)
    key = world.schedule()
    world.pass_()
    (claim,) = world.claim()
    world.settle([(claim, Unknown("timeout"))])
    if cancelled:
        world.withdraw(key)
    assert world.state(key) in (State.UNCERTAIN, State.RECONCILING)
    assert world.settle([(claim, Accepted("late"))]) == [State.ACCEPTED]
    row = world.row(key)
    assert (row.course.receipt, row.standing.ending) == ("late", Ending.NONE)


def test_evidence_wins_over_the_word_that_it_was_not_sent_and_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[telemetry.Event] = []
    monkeypatch.setattr(settler, "tell", lambda event, **fields: told.append(event))
    world = World("N")
    key = world.uncertain()
    (claimed,) = [line for line in world.lines(key) if line.event == "claimed"]

    def not_sent(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([("default", key)])
        move = move_on(row, Event.NOT_SENT, world.policy, tx, actor="operator")
        assert isinstance(move, Move)
        tx.deliveries.move([move])

    claim = _old_claim(world, key, claimed.number("epoch"))
    world.write(not_sent)
    assert world.state(key) is State.NOT_SENT
    assert telemetry.PROVEN_ALARM not in told
    assert world.settle([(claim, Accepted("late"))]) == [State.ACCEPTED]
    assert telemetry.PROVEN_ALARM in told


def _old_claim(world: World, key: str, epoch: int) -> Claim:
    """A claim as the process still holds it that made it long ago."""
    other = World("N")
    other.schedule()
    other.pass_()
    (claim,) = other.claim()
    return replace(claim, delivery_id=world.row(key).id, key=key, epoch=epoch)


# CANC-07: the provider says that this person said stop


def test_canc_07_an_opted_out_answer_takes_back_what_else_was_planned() -> None:
    world = World("K", "N")
    (now, *later) = [world.schedule(f"r-{number}", due_in_s=number * 3_600.0) for number in range(4)]
    email = world.schedule("by-email", account="email-N")
    world.pass_()
    (claim,) = world.claim()
    outcome = Rejected(Reason.OPTED_OUT, "21610", suppress=True)
    assert world.settle([(claim, outcome)]) == [State.REJECTED]
    assert world.row(now).course.attempts == 1
    for key in later:
        row = world.row(key)
        assert row.standing.state is State.SUPPRESSED
        assert row.course.reason.endswith(":provider")
        assert row.course.attempts == 0
    assert world.send(Accepted("r"), "email-N") == [email]
    # A reminder that is asked for afterwards meets the record, until the person says otherwise.
    world.advance(4 * 3_600)
    another = world.schedule("r-8")
    world.pass_()
    assert world.state(another) is State.SUPPRESSED
    world.advance(1)
    world.opt_out(Channel.SMS, kind=Kind.OPT_IN)
    welcome = world.schedule("r-9")
    world.pass_()
    assert world.state(welcome) is State.QUEUED


def test_no_opt_in_brings_back_an_address_that_does_not_exist() -> None:
    world = World("K")
    world.schedule()
    world.pass_()
    world.send(Rejected(Reason.INVALID_ADDRESS, "21211", suppress=True))
    world.advance(1)
    world.opt_out(Channel.SMS, kind=Kind.OPT_IN)
    again = world.schedule("r-2")
    world.pass_()
    row = world.row(again)
    assert (row.standing.state, row.course.reason) == (State.SUPPRESSED, "suppressed:provider")


def test_a_rejection_without_suppression_is_about_this_message_alone() -> None:
    world = World("K")
    first, later = world.schedule("r-0"), world.schedule("r-1", due_in_s=3_600.0)
    world.pass_()
    world.send(Rejected(Reason.BLOCKED, "30007"))
    assert world.state(first) is State.REJECTED
    assert world.state(later) is State.SCHEDULED


def test_an_address_that_is_refused_while_its_calls_are_open_ends_truly() -> None:
    """One call is refused for good while another to the same address is open: that one may be sent."""
    world = World("K")
    keys = [world.schedule("r-0"), world.schedule("r-1")]
    world.pass_()
    claims = world.claim()
    world.settle([(claims[0], Rejected(Reason.OPTED_OUT, "21610", suppress=True))])
    assert world.state(keys[1]) is State.SENDING
    assert world.row(keys[1]).standing.ending is Ending.OPT_OUT
    assert world.settle([(claims[1], Accepted("r"))]) == [State.ACCEPTED]


def test_all_of_a_group_or_nothing() -> None:
    """A unit that fails halfway leaves every call open, so that settling it again settles all of it."""
    world = World("K")
    keys = _queued(world, 3)
    claims = world.claim()
    steady = world.store.steady()
    attempts = [Attempted(claim, Accepted(f"r-{claim.key}"), claim.slot_at, steady) for claim in claims]
    poison = replace(attempts[2], outcome=Accepted("\ud800"))

    def settled(group: list[Attempted]) -> list[State]:
        unit = partial(settle, attempts=group, policy=world.policy, process="w-1", chance=lambda: 0.5)
        return [each.state for each in world.write(unit)]

    with pytest.raises(UnicodeEncodeError):
        settled([*attempts[:2], poison])
    assert [world.state(key) for key in keys] == [State.SENDING] * 3
    assert world.read(lambda tx: tx.calls.count("sms-K")) == 3
    assert settled(attempts) == [State.ACCEPTED] * 3
