"""Dead letters: listed by what killed them, shown whole, and redriven at a pace under the same key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel, send_key
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Failed, Reason, Rejected, Unknown
from sendonce.core.policy import Recipients
from sendonce.pipeline.chosen import Filter, meant
from sendonce.pipeline.redrive import Redrive, dead_letters, groups, redrive, show
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Tx
from tests.integration.world import SECOND, World


def again(world: World, chosen: Filter | None = None, **given: Any) -> Redrive:
    options = {"reason": "provider mended", "actor": "operator:ann", "per_s": 1_000.0, **given}
    return redrive(world.store, chosen or Filter(), world.policy, **options)


def sendable(world: World) -> list[str]:
    """What a worker could send within the next second."""
    world.advance(1)
    return [claim.key for claim in world.claim()]


# Listing and showing


def test_dead_letters_are_grouped_by_what_killed_them() -> None:
    world = World("K", "N")
    for number in range(3):
        world.dead(f"d-{number}")
    world.dead("c-1", reason=Reason.CONNECTION, account="email-N")
    world.schedule("x-1", account="email-N")
    world.pass_()
    world.send(Rejected(Reason.INVALID_ADDRESS, "550"), "email-N")
    found = world.read(groups)
    assert [(group.state, group.reason, group.account, group.count) for group in found] == [
        ("DEAD", "failed:unavailable", "sms-K", 3),
        ("DEAD", "failed:connection", "email-N", 1),
        ("REJECTED", "invalid_address", "email-N", 1),
    ]
    assert found[0].words == "the attempts failed (the provider or the receiving side is down)"
    assert found[0].first_due < found[0].last_due


def test_pages_meet_every_dead_letter_once() -> None:
    """API-09."""
    world = World("K")
    keys = [world.dead(f"d-{number}") for number in range(3)]
    world.send(Accepted("r"))
    world.advance(300)
    keys += world.rejected(*(f"x-{number}" for number in range(5)))
    seen: list[str] = []
    sizes = []
    after: tuple[str, int, int] | None = None
    while True:
        page = world.read(partial(dead_letters, chosen=Filter(), limit=3, after=after))
        seen += [delivery.key for delivery in page.found]
        sizes.append(len(page.found))
        if (after := page.after) is None:
            break
    assert sorted(seen) == sorted(keys)
    assert sizes == [3, 3, 2]


FILTERS = [
    (Filter(channel="sms"), {"a", "b"}),
    (Filter(channel=" SMS "), {"a", "b"}),
    (Filter(account="email-N"), {"c"}),
    (Filter(reason="failed"), {"a", "b", "c"}),
    (Filter(reason="failed:connection"), {"b"}),
    (Filter(reason="fail"), set()),
    (Filter(template="other"), {"b"}),
    (Filter(group="loan-7"), {"c"}),
    (Filter(tenant="nobody"), set()),
    (Filter(keys=("a:c-1:sms",)), {"a"}),
]


@pytest.fixture(scope="module")
def filled() -> World:
    world = World("K", "N")
    world.template("other", Channel.SMS, "Hello {{ name }}")
    world.dead("a")
    world.dead("b", reason=Reason.CONNECTION, template="other")
    world.dead("c", account="email-N", group="loan-7")
    return world


@pytest.mark.parametrize(
    ("chosen", "expected"),
    FILTERS,
    ids=lambda value: ",".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_filter_chooses(filled: World, chosen: Filter, expected: set[str]) -> None:
    done = again(filled, chosen, preview=True)
    assert done.redriven == len(expected)
    if not chosen.keys:
        page = filled.read(lambda tx: dead_letters(tx, chosen))
        assert {delivery.key.split(":")[0] for delivery in page.found} == expected


@pytest.mark.parametrize(
    ("chosen", "everything", "means"),
    [
        (Filter(), False, False),
        (Filter(), True, True),
        (Filter(group="not at all"), False, True),
        (Filter(until=1), False, True),
        (Filter(channel="sms"), True, True),
        (Filter(keys=("d-1:c-1:sms",)), False, True),
        (Filter(keys=("d-1:c-1:sms",)), True, False),
        (Filter(keys=("d-1:c-1:sms",), channel="sms"), False, False),
    ],
)
def test_a_choice_says_what_is_meant(chosen: Filter, everything: bool, means: bool) -> None:
    """All of them only where that was said, and a name that ends in "all" does not say it."""
    if means:
        assert meant(chosen, everything=everything, how="--all") == chosen
        return
    with pytest.raises(InvalidInput) as error:
        meant(chosen, everything=everything, how="--all")
    assert error.value.field == "keys"


def test_a_time_range_chooses_by_due_time(filled: World) -> None:
    due = sorted(filled.row(key).course.due_at for key in ("a:c-1:sms", "b:c-1:sms", "c:c-1:email"))
    assert again(filled, Filter(since=due[1]), preview=True).redriven == 2
    assert again(filled, Filter(until=due[1]), preview=True).redriven == 1
    assert again(filled, Filter(since=due[1], until=due[2]), preview=True).redriven == 1


def test_show_tells_every_attempt_and_what_has_changed() -> None:
    world = World("K")
    key = world.dead("d-1")
    again(world)
    world.fail_until_dead(key)
    world.template("t", Channel.SMS, "New text for {{ name }}", version=2)
    world.opt_out(Channel.SMS)
    world.advance(90_000)
    letter = world.read(lambda tx: show(tx, key, world.policy))
    assert [attempt.number for attempt in letter.attempts] == [1, 2, 3, 4, 5, 6]
    assert {attempt.outcome for attempt in letter.attempts} == {"failed"}
    assert {attempt.code for attempt in letter.attempts} == {"503"}
    assert letter.attempts[0].account == "sms-K"
    assert letter.attempts[0].worker == "w-1"
    assert letter.rounds == 1
    assert letter.changed[0] == "template 't' is at version 2, its text was made from 1"
    assert letter.changed[1] == "the customer opted out (test)"
    assert letter.changed[2].startswith("its expiry passed")
    assert letter.refused == "the customer opted out (test)"


def test_show_of_one_that_may_go_refuses_nothing() -> None:
    world = World("K")
    key = world.dead("d-1")
    letter = world.read(lambda tx: show(tx, key, world.policy))
    assert letter.refused == ""
    assert letter.words == "the attempts failed (the provider or the receiving side is down)"
    assert len(letter.changed) == 1
    assert letter.changed[0].startswith("it is valid for another 23 h")
    with pytest.raises(NotFound, match="no delivery has the key"):
        world.read(lambda tx: show(tx, "x:c-1:sms", world.policy))


# Redriving


def test_a_redrive_keeps_key_settings_and_history_over_three_deaths() -> None:
    """DLQ-05: channel, expiry, group, priority, account and all rounds survive; the second death shows."""
    world = World("K")
    key = world.dead("d-1", group="loan-7", priority=5, valid_s=40_000)
    before = world.row(key)
    key_then = send_key(world.store.secret, "default", key, before.standing.version)
    for round_ in (1, 2):
        assert again(world).redriven == 1
        queued = world.row(key)
        assert queued.standing.state is State.QUEUED
        assert (queued.course.failures, queued.course.throttles) == (0, 0)
        assert queued.course.attempts == 3 * round_
        world.fail_until_dead(key)
        assert world.row(key).course.attempts == 3 * (round_ + 1)
    after = world.row(key)
    assert after.standing.version == before.standing.version
    assert (after.group, after.priority, after.channel) == (before.group, before.priority, before.channel)
    assert after.course.expires_at == before.course.expires_at
    assert after.course.account == before.course.account
    assert send_key(world.store.secret, "default", key, after.standing.version) == key_then
    assert [group.count for group in world.read(groups)] == [1]
    letter = world.read(lambda tx: show(tx, key, world.policy))
    assert (len(letter.attempts), letter.rounds) == (9, 2)
    assert verify(world.store).ok


def test_a_redrive_sends_the_same_bytes_under_the_same_key_once() -> None:
    world = World("K")
    key = world.dead("d-1")
    first = world.lines(key)[2]
    world.template("t", Channel.SMS, "Another text", version=2)
    again(world)
    (claim,) = world.claim()
    assert claim.key == key
    assert claim.message.send_key[:16] == first.word("send_key")
    world.settle([(claim, Accepted("r-1"))])
    assert world.state(key) is State.ACCEPTED
    claimed = [line for line in world.lines(key) if line.event == Event.CLAIMED]
    assert len({line.word("payload") for line in claimed}) == 1
    redriven = next(line for line in world.lines(key) if line.event == Event.REDRIVEN)
    assert redriven.actor == "operator:ann"
    assert redriven.details["reason"] == "provider mended"
    assert redriven.details["was"] == "failed:unavailable"
    assert again(world).seen == 0
    assert verify(world.store).ok


def test_a_second_entry_of_the_same_customer_is_no_duplicate_of_a_dead_one() -> None:
    """DLQ-07: nothing is dropped as a duplicate of what was never sent."""
    world = World("K")
    first = world.dead("list-a")
    second = world.accepted("list-b")
    again(world)
    assert sendable(world) == [first]
    assert world.state(second) is State.ACCEPTED


def test_a_crash_in_the_last_attempt_blocks_nobody_and_can_be_recovered() -> None:
    """DLQ-09: after the lease it is no longer claimed, nothing behind it waits."""
    world = World("K")
    key = world.schedule("d-1")
    world.pass_()
    for _ in range(2):
        world.send(Failed(Reason.UNAVAILABLE, "503"))
        world.advance(5)
    behind = world.schedule("d-2")
    world.pass_()
    assert {claim.key for claim in world.claim()} == {key, behind}
    world.clock.advance(120)  # the process is gone: no heartbeat
    world.process = "w-2"
    world.beat()
    assert world.reap() == 2
    assert world.state(key) is State.UNCERTAIN  # its budget is spent
    assert world.state(behind) is State.QUEUED
    assert again(world, Filter(keys=(key,))).refused == {
        "it may have been sent: decide it with `sendonce resolve`": 1
    }
    world.advance(5)
    assert world.send(Accepted("r")) == [behind]


def test_the_pace_spreads_them_over_time() -> None:
    world = World("K")
    keys = world.rejected(*(f"d-{number}" for number in range(6)))
    start = world.now
    done = again(world, per_s=2.0)
    assert done.redriven == 6
    assert [world.row(key).course.next_at - start for key in keys] == [
        number * SECOND // 2 for number in range(6)
    ]
    assert done.last_at == start + 5 * SECOND // 2
    assert [claim.key for claim in world.claim()] == keys[:1]
    world.advance(1)
    assert [claim.key for claim in world.claim()] == keys[1:3]
    world.advance(10)
    assert [claim.key for claim in world.claim()] == keys[3:]


def test_a_pace_beyond_the_expiry_is_refused() -> None:
    world = World("K")
    world.rejected("d-0", "d-1", "d-2", valid_s=600)
    done = again(world, per_s=0.002)
    assert done.redriven == 2
    assert list(done.refused) == [
        "at this pace its turn comes after its expiry: use a higher pace, or extend it"
    ]


def refuse_opt_out(world: World, key: str) -> None:
    world.opt_out(Channel.SMS)


def refuse_suppressed(world: World, key: str) -> None:
    world.opt_out(Channel.SMS, kind=Kind.SUPPRESSED)


def refuse_expired(world: World, key: str) -> None:
    world.advance(90_000)


def refuse_account(world: World, key: str) -> None:
    accounts = {name: account for name, account in world.policy.accounts.items() if name != "sms-K"}
    world.policy = replace(world.policy, accounts=accounts)


def refuse_category(world: World, key: str) -> None:
    world.policy = replace(world.policy, categories={})


def refuse_recipient(world: World, key: str) -> None:
    world.policy = replace(world.policy, recipients=Recipients(allow=("*@example.com",)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (refuse_opt_out, "the customer opted out (test)"),
        (
            refuse_suppressed,
            "the address is on the suppression list (test); mended: `sendonce suppress remove` first",
        ),
        (refuse_expired, "its expiry has passed: extend it, or send it again as a new reminder"),
        (refuse_account, "its account 'sms-K' is not configured any more"),
        (refuse_category, "its category 'sms-K' is not configured any more"),
        (refuse_recipient, "the configuration lets nothing go to this address"),
    ],
)
@pytest.mark.parametrize("preview", [True, False])
def test_the_world_is_read_again(change: Callable[[World, str], None], why: str, preview: bool) -> None:
    world = World("K", "N")
    key = world.dead("d-1", also=[Channel.EMAIL])
    entries = world.row(key).seq
    change(world, key)
    done = again(world, preview=preview)
    assert (done.redriven, dict(done.refused)) == (0, {why: 1})
    assert done.examples == [(key, why)]
    assert world.row(key).seq == entries


def test_what_is_no_dead_letter_is_refused_with_a_reason() -> None:
    world = World("K", "N")
    accepted = world.accepted("a")
    uncertain = world.uncertain("u", account="email-N")
    queued = world.schedule("q", due_in_s=60)
    done = again(world, Filter(keys=(accepted, uncertain, queued, "x:y:sms", accepted)))
    assert dict(done.examples) == {
        accepted: "it was sent: to send it again, schedule a new reminder that names it, with a reason",
        uncertain: "it may have been sent: decide it with `sendonce resolve`",
        queued: "only dead letters (DEAD, REJECTED) are redriven; this one is SCHEDULED",
        "x:y:sms": "no delivery has this key",
    }
    assert done.redriven == 0


def test_what_has_no_text_waits_for_a_mended_template() -> None:
    """A text that could not be made has neither content nor account: the same bytes cannot go out."""
    world = World("K")
    key = world.schedule("d-1", data={})
    world.pass_()
    assert world.state(key) is State.REJECTED
    done = again(world)
    assert (done.redriven, done.refused.total()) == (0, 1)
    assert "it has no text: mend the template" in done.examples[0][1]
    letter = world.read(lambda tx: show(tx, key, world.policy))
    assert letter.changed[0] == "its text was never made; template 't' is at version 1"
    assert letter.attempts == ()


@pytest.mark.parametrize("with_text", [True, False])
def test_content_made_anew_goes_out_as_the_next_version(with_text: bool) -> None:
    """A mended template: rendered again by the next pass, under a key of its own."""
    world = World("K")
    key = world.schedule("d-1", data={"name": "Ann"} if with_text else {}, group="loan-7")
    world.pass_()
    if with_text:
        world.send(Rejected(Reason.TOO_LARGE, "552"))
    before = world.row(key)
    assert before.standing.state is State.REJECTED
    world.template("t", Channel.SMS, "Short text", version=2)
    letter = world.read(lambda tx: show(tx, key, world.policy))
    assert (letter.refused == "", letter.fresh_refused) == (with_text, "")
    assert again(world, fresh=True, preview=True).redriven == 1
    assert again(world, fresh=True).redriven == 1
    assert world.state(key) is State.SCHEDULED
    assert world.pass_().counts["published"] == 1
    (claim,) = world.claim()
    assert claim.key == key
    assert "Short text" in str(claim.message.content)
    assert claim.message.send_key != send_key(world.store.secret, "default", key, before.standing.version)
    world.settle([(claim, Accepted("r"))])
    after = world.row(key)
    assert (after.standing.state, after.standing.version, after.group) == (State.ACCEPTED, 2, "loan-7")
    assert verify(world.store).ok


def test_what_was_damaged_goes_again_only_with_its_text_made_anew() -> None:
    world = World("K")
    key = world.schedule()
    world.pass_()

    def spoil(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([("default", key)])
        (content,) = tx.contents.get([(row.id, row.standing.version)]).values()
        tx.contents.put([replace(content, payload="{")])

    world.write(spoil)
    assert world.claim() == []
    assert world.state(key) is State.REJECTED
    letter = world.read(lambda tx: show(tx, key, world.policy))
    assert letter.refused == "its stored text is damaged: redrive it with its content made anew"
    assert again(world).redriven == 0
    assert again(world, fresh=True).redriven == 1
    world.pass_()
    assert world.send(Accepted("r")) == [key]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_cancel_after_death_is_kept(fresh: bool) -> None:
    """ "Paid", said after every attempt had failed: a later redrive must not send it."""
    world = World("K")
    key = world.dead("d-1")
    world.withdraw(key, reason="paid")
    assert again(world, fresh=fresh).seen == 0
    done = again(world, Filter(keys=(key,)), fresh=fresh)
    assert list(done.refused) == ["only dead letters (DEAD, REJECTED) are redriven; this one is CANCELLED"]


def test_an_extension_revives_what_had_expired() -> None:
    world = World("K")
    (expired,) = world.rejected("d-1", valid_s=600)
    (long_valid,) = world.rejected("d-2", valid_s=400_000)
    ends = world.row(long_valid).course.expires_at
    world.advance(3_600)
    assert again(world, Filter(keys=(expired,))).redriven == 0
    done = again(world, extend_s=7_200.0)
    assert done.redriven == 2
    assert world.row(expired).course.expires_at == world.now + 7_200 * SECOND
    assert world.row(long_valid).course.expires_at == ends
    line = world.lines(expired)[-1]
    assert line.details["expires"] == world.now + 7_200 * SECOND
    assert "expires" not in world.lines(long_valid)[-1].details
    world.advance(1)
    assert sorted(world.send(Accepted("r"))) == [expired, long_valid]
    assert verify(world.store).ok


def test_a_preview_gives_the_same_numbers_and_changes_nothing() -> None:
    world = World("K")
    for number in range(130):
        world.schedule(f"d-{number}", to=f"+120255501{number % 40:02}")
    world.pass_()
    while claims := world.claim():
        world.settle([(claim, Rejected(Reason.OTHER, "x")) for claim in claims])
        world.advance(1)
    world.opt_out(Channel.SMS, "+12025550107")
    told: list[int] = []
    preview = again(world, preview=True)
    assert str(preview) == ("126 will be sent, 4 refused: 4 because the customer opted out (test)"), str(
        preview
    )
    assert [group.count for group in world.read(groups)] == [130]
    done = again(world, progress=lambda so_far: told.append(so_far.seen))
    assert (done.redriven, done.refused) == (preview.redriven, preview.refused)
    assert told == [0, 50, 100, 130]  # no DEAD ones, then REJECTED in units
    assert [group.count for group in world.read(groups)] == [4]
    assert verify(world.store).ok


def test_a_redrive_is_audited_with_the_person_and_the_reason() -> None:
    world = World("K")
    world.dead("d-1")
    again(world, Filter(reason="failed"))
    (row,) = world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=5))
    assert (row["actor"], row["action"], row["reason"]) == ("operator:ann", "redrive", "provider mended")
    assert row["target"] == "tenant=default reason=failed"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"reason": "  "}, "reason"),
        ({"per_s": 0.0}, "per_s"),
        ({"per_s": 1e9}, "per_s"),
        ({"per_s": float("nan")}, "per_s"),
        ({"extend_s": -1.0}, "extend_s"),
        ({"extend_s": 1e9}, "extend_s"),
        ({"chosen": Filter(channel="fax")}, "channel"),
        ({"chosen": Filter(keys=("nonsense",))}, "delivery_key"),
        ({"chosen": Filter(keys=("d-1:c-1:sms",), group="loan-7")}, "keys"),
    ],
)
def test_requests_that_make_no_sense_are_refused(given: dict[str, Any], field: str) -> None:
    world = World("K")
    world.dead("d-1")
    with pytest.raises(InvalidInput) as error:
        again(world, **given)
    assert error.value.field == field


def test_a_letter_that_dies_again_during_the_redrive_is_not_taken_twice() -> None:
    world = World("K")
    world.rejected(*(f"d-{number}" for number in range(60)))

    def meanwhile(_: Redrive) -> None:
        world.advance(1)
        world.settle([(claim, Rejected(Reason.OTHER, "x")) for claim in world.claim()])

    done = again(world, progress=meanwhile)
    assert done.redriven == 60


def test_an_unknown_outcome_after_a_redrive_counts_the_key_from_the_first_attempt() -> None:
    """The key is never taken for younger than it is: a day later it is dead, so nobody guesses."""
    world = World("K")
    key = world.dead("d-1", valid_s=400_000)
    world.advance(90_000)
    again(world)
    world.send(Unknown("timeout"))
    assert world.state(key) is State.UNCERTAIN
