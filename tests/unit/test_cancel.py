"""Cancelling: the answer is true for each delivery, the same when asked again, and made durable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Ending, Event, Facts, State
from sendonce.core.promise import settles_at
from sendonce.moves import FIRST_LOOK_US
from sendonce.pipeline import cancel as stage
from sendonce.pipeline.cancel import ANSWERS_MAX, By, Cancellation, Selection, cancel
from sendonce.pipeline.intake import Mode
from sendonce.preparation import Origin
from sendonce.store.sqlite import open_store
from sendonce.testing.clock import VirtualClock
from sendonce.withdrawal import Word
from tests.way_in import SECOND, WayIn, asked

KEY = "r-1:c-1:email"
SMS = "r-1:c-1:sms"
BOTH: dict[str, Any] = {"phone": "+12025550123"}
IN_FLIGHT = (Event.PUBLISHED, Event.CLAIMED)


@pytest.fixture
def way_in() -> WayIn:
    return WayIn()


def stop(way_in: WayIn, by: By, name: str, *, preview: bool = False, tenant: str = "default") -> Cancellation:
    return cancel(
        way_in.store,
        Selection(by, name, tenant),
        policy=way_in.policy,
        reason="paid",
        actor="operator:kim",
        preview=preview,
    )


CASES = [
    ((), Word.CANCELLED, State.CANCELLED),
    ((Event.PUBLISHED,), Word.CANCELLED, State.CANCELLED),
    (IN_FLIGHT, Word.PENDING, State.SENDING),
    ((*IN_FLIGHT, Event.FAILED), Word.CANCELLED, State.CANCELLED),
    ((*IN_FLIGHT, Event.UNKNOWN), Word.PENDING, State.UNCERTAIN),
    ((*IN_FLIGHT, Event.ACCEPTED), Word.ALREADY_SENT, State.ACCEPTED),
    ((*IN_FLIGHT, Event.REJECTED), Word.CANCELLED, State.CANCELLED),
    ((Event.EXPIRED,), Word.ALREADY_ENDED, State.EXPIRED),
    ((Event.SUPPRESSED,), Word.SUPPRESSED, State.SUPPRESSED),
    ((*IN_FLIGHT, Event.UNKNOWN, Event.ASSUMED_SENT), Word.ALREADY_ENDED, State.ASSUMED_SENT),
]


@pytest.mark.parametrize(("events", "word", "state"), CASES)
def test_the_answer_is_true_at_every_stage(
    way_in: WayIn, events: tuple[Event, ...], word: Word, state: State
) -> None:
    """CANC-01: never "cancelled" where a call may be on its way; the same answer to the same question."""
    way_in.take(asked())
    way_in.lead(KEY, *events, account="mail")
    before = way_in.deliveries()
    preview = stop(way_in, By.DELIVERY, KEY, preview=True)
    assert way_in.deliveries() == before
    first = stop(way_in, By.DELIVERY, KEY)
    after = way_in.deliveries()
    second = stop(way_in, By.DELIVERY, KEY)
    assert way_in.deliveries() == after
    for answer in (preview.answers[0], first.answers[0], second.answers[0]):
        assert (answer.key, answer.word, answer.state) == (KEY, word, state)
    assert after[KEY].standing.state is state
    assert second.changed == 0
    pending = word is Word.PENDING
    assert (after[KEY].standing.ending is Ending.CANCEL) == pending
    assert (first.changed == 1) == (word in (Word.CANCELLED, Word.PENDING))


def test_every_word_has_a_sentence() -> None:
    said = set()
    for events, word, _ in CASES:
        way_in = WayIn()
        way_in.take(asked())
        way_in.lead(KEY, *events)
        said.add((word, str(stop(way_in, By.DELIVERY, KEY).answers[0]).partition(": ")[2]))
    assert {word for word, _ in said} == set(Word)
    assert all(sentence for _, sentence in said)


def test_in_doubt_by_look_up_is_asked_about_soon(way_in: WayIn) -> None:
    """A queued retry that may have arrived: the look-up decides, long before absence could be believed."""
    way_in.take(asked(email="", **BOTH))
    way_in.lead(SMS, Event.PUBLISHED, Event.CLAIMED, account="text")
    steady = way_in.store.steady()
    way_in.lead(SMS, Event.UNKNOWN, facts=Facts(key_alive=True), course={"last_try": steady})
    assert way_in.states()[SMS] == "QUEUED"
    (answer,) = stop(way_in, By.DELIVERY, SMS).answers
    assert (answer.word, answer.state) == (Word.PENDING, State.RECONCILING)
    delivery = way_in.deliveries()[SMS]
    promise = way_in.policy.accounts["text"].promise
    assert settles_at(promise, steady, way_in.policy.lease_s) - steady > 30 * SECOND
    assert delivery.course.next_at == way_in.now + FIRST_LOOK_US


def test_in_doubt_without_a_look_up_is_uncertain(way_in: WayIn) -> None:
    way_in.take(asked())
    way_in.lead(KEY, Event.PUBLISHED, Event.CLAIMED, account="mail")
    way_in.lead(KEY, Event.UNKNOWN, facts=Facts(key_alive=True))
    (answer,) = stop(way_in, By.DELIVERY, KEY).answers
    assert (answer.word, answer.state) == (Word.PENDING, State.UNCERTAIN)


def test_an_opt_out_that_came_first_stays(way_in: WayIn) -> None:
    way_in.take(asked())
    way_in.lead(KEY, *IN_FLIGHT, Event.SUPPRESSED)
    assert stop(way_in, By.DELIVERY, KEY).answers[0].word is Word.PENDING
    assert way_in.deliveries()[KEY].standing.ending is Ending.OPT_OUT


def test_an_account_that_is_configured_no_more_stops_no_cancel(way_in: WayIn) -> None:
    way_in.take(asked())
    way_in.lead(KEY, Event.PUBLISHED, account="gone")
    assert stop(way_in, By.DELIVERY, KEY).answers[0].word is Word.CANCELLED


@pytest.mark.parametrize(
    ("by", "name", "cancelled"),
    [
        (By.REMINDER, "r-1", {KEY, SMS, "r-1:c-2:email"}),
        (By.DELIVERY, SMS, {SMS}),
        (By.CUSTOMER, "c-1", {KEY, SMS, "r-2:c-1:email"}),
        (By.GROUP, "g", {KEY, SMS}),
        (By.GROUP, "loan-7", {"loan-7/D-3:c-3:email", "loan-7/D:c-3:email"}),
        (By.IMPORT, "1", {"r-2:c-1:email"}),
    ],
)
def test_selections(way_in: WayIn, by: By, name: str, cancelled: set[str]) -> None:
    """CANC-05: every channel is cleaned, whatever path the cancel takes."""
    import_id = way_in.store.write(lambda tx: tx.runs.begin_import("default", "", "f", "a")).result()
    assert import_id == 1
    way_in.take(
        asked(group="g", **BOTH),
        asked(customer="c-2"),
        asked("loan-7", customer="c-3", plan="loan", date="2026-03-01", due="", channels=("email",)),
    )
    way_in.take(asked("r-2"), origin=Origin("", import_id))
    way_in.take(asked("r-9", customer="c-9"))
    done = stop(way_in, by, name)
    assert {answer.key for answer in done.answers} == cancelled
    states = {delivery.key for delivery in way_in.deliveries().values() if delivery.ended_at}
    assert states == cancelled
    assert done.counts == {"cancelled": len(cancelled)}


def test_a_tenant_sees_its_own_only(way_in: WayIn) -> None:
    way_in.take(asked(group="g"))
    for by, name in (
        (By.REMINDER, "r-1"), (By.CUSTOMER, "c-1"), (By.GROUP, "g"), (By.DELIVERY, KEY),
    ):  # fmt: skip
        with pytest.raises(NotFound, match="tenant other"):
            stop(way_in, by, name, tenant="other")
    assert way_in.states() == {KEY: "SCHEDULED"}


@pytest.mark.parametrize(
    ("by", "name", "error"),
    [
        (By.REMINDER, "r-404", NotFound),
        (By.IMPORT, "7", NotFound),
        (By.IMPORT, "seven", InvalidInput),
        (By.DELIVERY, "r-1", InvalidInput),
        (By.GROUP, "", NotFound),
    ],
)
def test_a_name_that_selects_nothing_is_said(
    way_in: WayIn, by: By, name: str, error: type[Exception]
) -> None:
    way_in.take(asked())
    with pytest.raises(error):
        stop(way_in, by, name)


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 201])
def test_a_reason_is_one_short_line(way_in: WayIn, reason: str) -> None:
    way_in.take(asked())
    with pytest.raises(InvalidInput, match="reason"):
        cancel(way_in.store, Selection(By.DELIVERY, KEY), policy=way_in.policy, reason=reason, actor="a")
    assert way_in.states() == {KEY: "SCHEDULED"}


def test_a_large_group_goes_in_pages(way_in: WayIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "ANSWERS_MAX", 100)
    count = 130
    way_in.take(*(asked(f"r-{n}", customer=f"c-{n}", group="g") for n in range(count)))
    seen: list[int] = []
    all_answers: list[str] = []
    done = cancel(
        way_in.store,
        Selection(By.GROUP, "g"),
        policy=way_in.policy,
        reason="recall",
        actor="operator:kim",
        progress=lambda so_far: seen.append(so_far.found),
        on_answer=lambda answer: all_answers.append(answer.key),
    )
    assert seen == [50, 100, 130]
    assert (done.found, done.changed, len(done.answers), done.more) == (count, count, 100, 30)
    assert len(set(all_answers)) == count
    assert set(way_in.states().values()) == {"CANCELLED"}
    assert ANSWERS_MAX == 1_000


def test_a_cancel_survives_the_death_of_everything(tmp_path: Path) -> None:
    """CANC-03: no worker up, then a new process; who and why stand in the ledger."""
    way_in = WayIn()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first = open_store(url, VirtualClock(), inline=True)
    templates = way_in.store.read(lambda tx: tx.templates.newest("default", "pay"))
    first.write(lambda tx: tx.templates.put(templates)).result()
    way_in.store = first
    way_in.take(asked())
    stop(way_in, By.REMINDER, "r-1")
    # No close: the process is gone.
    second = open_store(url, VirtualClock(), inline=True)
    (delivery,) = second.read(lambda tx: tx.deliveries.by_keys([("default", KEY)]))
    assert (delivery.standing.state, delivery.course.reason) == (State.CANCELLED, "paid")
    assert second._inline is not None
    bodies = [str(row[0]) for row in second._inline._execute("SELECT body FROM ledger ORDER BY seq")]
    assert '"actor":"operator:kim"' in bodies[-1]
    assert '"reason":"paid"' in bodies[-1]
    second.close()
    first.close()


def test_an_appointment_that_moves_goes_once_at_its_new_time(way_in: WayIn) -> None:
    """CANC-05 (b): nothing at the old time, one delivery a channel at the new one."""
    way_in.take(asked(**BOTH))
    way_in.lead(SMS, Event.PUBLISHED)
    way_in.take(asked(due="2026-03-01T09:00", **BOTH), mode=Mode.UPDATE)
    march = 1_772_352_000 * SECOND
    for delivery in way_in.deliveries().values():
        assert delivery.standing.state is State.SCHEDULED
        assert delivery.course.due_at == delivery.course.next_at == march
    assert len(way_in.deliveries()) == 2
