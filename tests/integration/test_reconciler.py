"""The reconciler: what became of deliveries in doubt, by the provider's word, and by the policy's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sendonce.core.lifecycle import Ending, Event, State
from sendonce.core.outcome import Absent, Accepted, Failed, Finding, Found, NoAnswer, Reason, Unknown
from sendonce.core.policy import UncertainPolicy
from sendonce.core.retry import RetryPolicy
from sendonce.moves import FIRST_LOOK_US
from sendonce.pipeline import reconciler
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.reconciler import ASK_AGAIN_US, PAGE, Doubt
from sendonce.pipeline.sentences import sentence
from sendonce.ports.store import Tx
from sendonce.withdrawal import Withdrawal
from tests.integration.world import SECOND, World, account_of, policy_of

SETTLES_S = 30.0 + 10.0 + 60.0 + 5.0
"""Lease, time-out, longest arrival and index lag of the world's class L."""


def _in_doubt(world: World, *, valid_s: float = 86_400.0) -> tuple[str, Claim]:
    key = world.schedule(account="sms-L", valid_s=valid_s)
    world.pass_()
    (claim,) = world.claim("sms-L")
    assert world.settle([(claim, Unknown("timeout"))]) == [State.RECONCILING]
    return key, claim


def _doubts(world: World, *accounts: str) -> list[Doubt]:
    names = dict.fromkeys(accounts or ("sms-L",))
    return world.write(
        lambda tx: reconciler.doubts(tx, world.policy, accounts=names, secret=world.store.secret)
    )


def _resolve(world: World, doubt: Doubt, finding: Finding) -> State:
    (state,) = world.write(lambda tx: reconciler.resolve(tx, [(doubt, finding)], world.policy))
    return state


def _asked(world: World, finding: Finding) -> State:
    (doubt,) = _doubts(world)
    return _resolve(world, doubt, finding)


# Asking


def test_it_is_asked_once_soon_and_then_when_absence_can_be_believed_by_its_own_reference() -> None:
    world = World("L")
    key, claim = _in_doubt(world)
    world.advance(FIRST_LOOK_US / SECOND - 0.001)
    assert _doubts(world) == []
    world.advance(0.001)
    (early,) = _doubts(world)
    assert _resolve(world, early, Absent(believable=True)) is State.RECONCILING
    world.advance(SETTLES_S - FIRST_LOOK_US / SECOND - 0.001)
    assert _doubts(world) == []
    world.advance(0.001)
    (doubt,) = _doubts(world)
    assert (doubt.key, doubt.epoch, doubt.account) == (key, claim.epoch, "sms-L")
    assert doubt.message.send_key == claim.message.send_key


def test_two_processes_do_not_ask_about_the_same_one_at_once() -> None:
    world = World("L")
    _in_doubt(world)
    world.advance(SETTLES_S)
    assert len(_doubts(world)) == 1
    assert _doubts(world) == []
    world.advance(ASK_AGAIN_US / SECOND)
    assert len(_doubts(world)) == 1


def test_one_whose_text_is_damaged_goes_to_a_person_and_hides_nobody() -> None:
    """There is nothing to ask with. Left in the line, it would stop every look-up behind it, for ever."""
    world = World("L")
    damaged = world.schedule("damaged")
    sound = world.schedule("sound")
    world.pass_()
    world.send(Unknown("timeout"))

    def spoil(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([("default", damaged)])
        (content,) = tx.contents.get([(row.id, row.standing.version)]).values()
        tx.contents.put([replace(content, payload="{")])

    world.write(spoil)
    world.advance(SETTLES_S)
    assert [doubt.key for doubt in _doubts(world)] == [sound]
    row = world.row(damaged)
    assert (row.standing.state, row.course.reason) == (State.UNCERTAIN, "bad_content:unreadable")
    assert sentence(world.lines(damaged)[-1], str) == (
        "The provider cannot be asked: its stored text is damaged; nobody can tell by itself, so a person or "
        "the policy decides."
    )


def test_doubts_of_other_accounts_hide_nobody() -> None:
    """A full page belongs to an account of another process; ours are asked about all the same."""
    mine, others = account_of("L", name="mine"), account_of("L", name="others")
    world = World(policy=policy_of(mine, others))
    for number in range(PAGE):
        world.schedule(f"r-{number}", account="others")
    world.schedule("r-mine", account="mine")
    world.pass_()
    for name in ("others", "mine"):
        claims = world.claim(name)
        world.settle([(claim, Unknown("timeout")) for claim in claims])
        world.advance(1)
    world.advance(SETTLES_S)
    assert [doubt.account for doubt in _doubts(world, "mine")] == ["mine"]


# Answers


def test_found_is_sent() -> None:
    world = World("L")
    key, _ = _in_doubt(world)
    world.advance(SETTLES_S)
    assert _asked(world, Found("receipt-9")) is State.ACCEPTED
    row = world.row(key)
    assert (row.course.receipt, row.course.reason) == ("receipt-9", "")
    assert world.lines(key)[-1].word("evidence") == "look_up"


def test_found_counts_at_any_time_and_from_any_state() -> None:
    world = World("L")
    key, _ = _in_doubt(world)
    world.advance(SETTLES_S)
    (doubt,) = _doubts(world)
    assert _resolve(world, doubt, Absent(believable=True)) is State.QUEUED
    assert _resolve(world, doubt, Found("r")) is State.ACCEPTED, "a second answer, another process's"
    assert _resolve(world, doubt, Found("r")) is State.ACCEPTED
    assert world.events(key).count("proven") == 1


def test_a_believable_absence_sends_again_without_doubt() -> None:
    world = World("L")
    key, first = _in_doubt(world)
    world.advance(SETTLES_S)
    assert _asked(world, Absent(believable=True)) is State.QUEUED
    row = world.row(key)
    assert (row.standing.maybe, row.course.first_try) == (False, 0)
    (second,) = world.claim("sms-L")
    assert second.epoch > first.epoch
    assert world.settle([(second, Accepted("r"))]) == [State.ACCEPTED]


@pytest.mark.parametrize(
    ("ending", "state"), [(Event.CANCELLED, State.CANCELLED), (Event.SUPPRESSED, State.SUPPRESSED)]
)
@pytest.mark.parametrize("finding", [Absent(believable=True), Found("r")])
def test_canc_01_a_pending_cancel_ends_as_what_is_found(
    ending: Withdrawal, state: State, finding: Finding
) -> None:
    world = World("L")
    key, _ = _in_doubt(world)
    assert world.withdraw(key, ending) == "cancel_pending"
    world.advance(SETTLES_S)
    assert _asked(world, finding) is (state if isinstance(finding, Absent) else State.ACCEPTED)
    assert world.row(key).standing.ending is Ending.NONE


@pytest.mark.parametrize("valid_s", [60.0, 86_400.0])
def test_absent_after_the_expiry_is_expired(valid_s: float) -> None:
    world = World("L")
    key, _ = _in_doubt(world, valid_s=valid_s)
    world.advance(max(valid_s, SETTLES_S))
    assert _asked(world, Absent(believable=True)) is State.EXPIRED
    assert not world.row(key).standing.maybe


def test_absent_without_budget_is_dead() -> None:
    account = account_of("L", retry=RetryPolicy(attempts_max=1))
    world = World(policy=policy_of(account))
    _in_doubt(world)
    world.advance(SETTLES_S)
    assert _asked(world, Absent(believable=True)) is State.DEAD


def test_an_absence_that_was_asked_too_early_proves_nothing() -> None:
    """The calendar was stepped, so it is asked early; the answer comes when it would have counted."""
    world = World("L")
    key, _ = _in_doubt(world)
    world.clock.step(SETTLES_S)
    (doubt,) = _doubts(world)
    world.advance(SETTLES_S)
    assert _resolve(world, doubt, Absent(believable=True)) is State.RECONCILING
    assert world.row(key).standing.maybe


def test_an_absence_from_before_a_later_claim_says_nothing_about_it() -> None:
    """The asking process froze; another settled it, sent it again and lost the answer."""
    world = World("L")
    key, _ = _in_doubt(world)
    world.advance(SETTLES_S)
    (frozen,) = _doubts(world)
    world.advance(31)
    assert _asked(world, Absent(believable=True)) is State.QUEUED
    (second,) = world.claim("sms-L")
    world.settle([(second, Unknown("timeout"))])
    world.advance(5)
    assert _resolve(world, frozen, Absent(believable=True)) is State.RECONCILING
    assert world.row(key).standing.maybe


@pytest.mark.parametrize("finding", [Absent(believable=False), NoAnswer("503")])
def test_what_proves_nothing_is_asked_again_until_the_expiry(finding: Finding) -> None:
    world = World("L")
    key, _ = _in_doubt(world, valid_s=600.0)
    world.advance(SETTLES_S)
    asked = 0
    while world.state(key) is State.RECONCILING:
        for doubt in _doubts(world):
            asked += 1
            _resolve(world, doubt, finding)
        if world.state(key) is State.RECONCILING:
            assert world.row(key).course.expires_at > world.now
            world.advance(30)
    assert asked == 18, "twice a minute for the rest of ten minutes"
    row = world.row(key)
    assert (row.standing.state, row.standing.maybe) == (State.UNCERTAIN, True)
    assert world.lines(key)[-1].word("reason") == "no_answer"


def test_an_early_absence_past_the_expiry_waits_for_its_settle_time() -> None:
    world = World("L")
    key, _ = _in_doubt(world, valid_s=60.0)
    world.clock.step(SETTLES_S)
    assert _asked(world, Absent(believable=True)) is State.RECONCILING
    world.advance(SETTLES_S)
    assert _asked(world, Absent(believable=True)) is State.EXPIRED
    assert world.state(key) is State.EXPIRED


def test_a_late_answer_of_the_call_itself_is_evidence_too() -> None:
    world = World("L")
    _, claim = _in_doubt(world)
    world.advance(SETTLES_S)
    (doubt,) = _doubts(world)
    assert world.settle([(claim, Accepted("late"))]) == [State.ACCEPTED]
    assert _resolve(world, doubt, Absent(believable=True)) is State.ACCEPTED


# Policies


def _policy(world: World, uncertain: UncertainPolicy) -> None:
    name = world.accounts[0]
    category = replace(world.policy.categories[name], uncertain=uncertain)
    world.policy = replace(world.policy, categories={name: category})


def test_hold_waits_for_a_person_and_is_looked_at_once() -> None:
    world = World("N")
    key = world.uncertain()
    assert world.apply_policy() == 0
    world.advance(86_400)
    assert world.apply_policy() == 0
    assert world.state(key) is State.UNCERTAIN
    assert world.claim() == []
    assert world.events(key)[-1] == "unknown"


def test_assume_sent_is_the_policys_word() -> None:
    world = World("N")
    _policy(world, UncertainPolicy.ASSUME_SENT)
    key = world.uncertain()
    assert world.apply_policy() == 1
    assert world.state(key) is State.ASSUMED_SENT
    assert world.lines(key)[-1].actor == "policy"


def test_dup_03_resend_makes_one_more_attempt_and_no_more() -> None:
    """A mail server that takes everything and never answers gets two copies, not one a second."""
    world = World("N", retry=RetryPolicy(attempts_max=99))
    _policy(world, UncertainPolicy.RESEND)
    key = world.schedule()
    world.pass_()
    sent: list[Claim] = []
    for _ in range(50):
        claims = world.claim()
        sent += claims
        world.settle([(claim, Unknown("timeout")) for claim in claims])
        world.apply_policy()
        world.advance(60)
    assert len(sent) == 2
    assert sent[0].message.send_key == sent[1].message.send_key
    assert (world.state(key), world.row(key).standing.permit) == (State.UNCERTAIN, False)
    world.permit(key)
    assert len(world.claim()) == 1, "a person may still decide"


def test_a_resend_that_provably_failed_is_in_doubt_as_before() -> None:
    world = World("N")
    _policy(world, UncertainPolicy.RESEND)
    key = world.uncertain()
    world.apply_policy()
    assert world.send(Failed(Reason.UNAVAILABLE, "421")) == [key]
    assert world.state(key) is State.UNCERTAIN


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_resend_never_sends_what_was_cancelled_or_is_over(how: str) -> None:
    world = World("N")
    _policy(world, UncertainPolicy.RESEND)
    key = world.uncertain(valid_s=600.0)
    if how == "cancelled":
        world.withdraw(key)
    else:
        world.advance(600)
    assert world.apply_policy() == 0
    assert world.state(key) is State.UNCERTAIN
    world.advance(60)
    assert world.claim() == []


def test_the_category_is_asked_before_the_channel() -> None:
    world = World("N")
    channels = {
        name: replace(channel, uncertain=UncertainPolicy.ASSUME_SENT)
        for name, channel in world.policy.channels.items()
    }
    world.policy = replace(world.policy, channels=channels)
    held = world.uncertain("r-1")
    _policy(world, UncertainPolicy.HOLD)
    assert world.apply_policy() == 0
    world.policy = replace(world.policy, categories={})
    sure = world.row(held)
    assert sure.standing.state is State.UNCERTAIN


def test_a_page_of_uncertain_ones_of_a_lost_account_hides_nobody() -> None:
    gone, here = account_of("N", name="gone"), account_of("N", name="here")
    world = World(policy=policy_of(gone, here))
    for number in range(PAGE):
        world.schedule(f"r-{number}", account="gone")
    mine = world.schedule("mine", account="here")
    world.pass_()
    for name in ("gone", "here"):
        world.settle([(claim, Unknown("timeout")) for claim in world.claim(name)])
        world.advance(1)
    category = replace(world.policy.categories["here"], uncertain=UncertainPolicy.ASSUME_SENT)
    world.policy = replace(
        world.policy,
        accounts={"here": here},
        categories={**world.policy.categories, "here": category},
    )
    assert world.apply_policy() == 1
    assert world.state(mine) is State.ASSUMED_SENT
