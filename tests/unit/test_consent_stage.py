"""Consent: a record and its effect are one, and at once in force."""

from __future__ import annotations

from typing import Any

import pytest

from sendonce.core.consent import ANY_CATEGORY, Kind, NoRecord, refusal
from sendonce.core.delivery import Channel, address_tag
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import Ending, Event
from sendonce.pipeline.consent import (
    PAGE,
    Record,
    Recorded,
    list_records,
    record,
    record_of,
    records_of,
    remove,
)
from sendonce.ports.store import Tx
from sendonce.withdrawal import PAGE as DELIVERIES_PAGE
from sendonce.withdrawal import Word
from tests.way_in import DAY, WayIn, asked

ANN = "ann@example.com"
PHONE = "+12025550123"


@pytest.fixture
def way_in() -> WayIn:
    return WayIn()


def one(way_in: WayIn, **fields: Any) -> Record:
    given: dict[str, Any] = {
        "tenant": "default",
        "channel": Channel.EMAIL,
        "address": ANN,
        "category": ANY_CATEGORY,
        "kind": Kind.OPT_OUT,
        "at": way_in.now,
        "source": "page",
        "evidence": "",
    }
    return Record(**{**given, **fields})


def keep(way_in: WayIn, *records: Record) -> Recorded:
    return record(way_in.store, records, policy=way_in.policy, actor="operator:kim")


def test_an_opt_out_takes_back_the_open_deliveries_of_its_address(way_in: WayIn) -> None:
    """CANC-07: three more planned for the number are suppressed without a call; email goes on."""
    for number in range(3):
        way_in.take(asked(f"r-{number}", phone=PHONE))
    done = keep(way_in, one(way_in, channel=Channel.SMS, address=PHONE, source="provider"))
    assert done.counts == {"suppressed": 3}
    assert (done.records, done.new) == (1, 1)
    for number in range(3):
        assert way_in.states()[f"r-{number}:c-1:sms"] == "SUPPRESSED"
        assert way_in.states()[f"r-{number}:c-1:email"] == "SCHEDULED"
        assert way_in.deliveries()[f"r-{number}:c-1:sms"].course.reason == "opted_out:provider"


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ((), Word.SUPPRESSED),
        ((Event.PUBLISHED,), Word.SUPPRESSED),
        ((Event.PUBLISHED, Event.CLAIMED), Word.PENDING),
        ((Event.PUBLISHED, Event.CLAIMED, Event.FAILED), Word.SUPPRESSED),
        ((Event.PUBLISHED, Event.CLAIMED, Event.UNKNOWN), Word.PENDING),
        ((Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED), None),
        ((Event.CANCELLED,), None),
    ],
)
def test_what_is_open_is_taken_back_or_marked(
    way_in: WayIn, events: tuple[Event, ...], word: Word | None
) -> None:
    way_in.take(asked())
    way_in.lead("r-1:c-1:email", *events)
    before = way_in.states()
    done = keep(way_in, one(way_in))
    assert dict(done.counts) == ({word.value: 1} if word else {})
    standing = way_in.deliveries()["r-1:c-1:email"].standing
    assert (standing.ending is Ending.OPT_OUT) == (word is Word.PENDING)
    if word is None:
        assert way_in.states() == before
    after = way_in.deliveries()
    again = keep(way_in, one(way_in))
    assert again.new == 0
    assert way_in.deliveries() == after


@pytest.mark.parametrize(
    ("category", "suppressed"),
    [
        ("*", {"r-1:c-1:email", "r-2:c-1:email"}),
        ("payment", {"r-1:c-1:email"}),
        ("shipment", {"r-2:c-1:email"}),
    ],
)
def test_a_record_covers_its_category(way_in: WayIn, category: str, suppressed: set[str]) -> None:
    way_in.take(asked(), asked("r-2", category="shipment"), asked("r-3", email="bob@example.com"))
    keep(way_in, one(way_in, category=category))
    assert {key for key, state in way_in.states().items() if state == "SUPPRESSED"} == suppressed


@pytest.mark.parametrize("spelling", ["ANN@example.com", " ann@EXAMPLE.com ", "ann@example.com\u200b"])
def test_an_opt_out_of_one_spelling_holds_for_all(way_in: WayIn, spelling: str) -> None:
    way_in.take(asked(email="Ann@Example.com"))
    given = record_of({"address": spelling, "kind": "opt_out"}, way_in.policy, now=way_in.now)
    assert keep(way_in, given).counts == {"suppressed": 1}


def test_other_tenants_and_addresses_are_not_touched(way_in: WayIn) -> None:
    way_in.take(asked())
    keep(way_in, one(way_in, tenant="other"), one(way_in, address="ann+may@example.com"))
    assert way_in.states() == {"r-1:c-1:email": "SCHEDULED"}


def test_an_old_opt_out_does_not_undo_a_later_opt_in(way_in: WayIn) -> None:
    """A list imported late says what was said when."""
    way_in.take(asked())
    keep(way_in, one(way_in, kind=Kind.OPT_IN, at=way_in.now - DAY))
    keep(way_in, one(way_in, at=way_in.now - 2 * DAY))
    assert way_in.states() == {"r-1:c-1:email": "SCHEDULED"}
    keep(way_in, one(way_in, at=way_in.now))
    assert way_in.states() == {"r-1:c-1:email": "SUPPRESSED"}


def test_an_opt_in_does_not_lift_a_suppression(way_in: WayIn) -> None:
    keep(way_in, one(way_in, kind=Kind.SUPPRESSED, source="bounce"))
    keep(way_in, one(way_in, kind=Kind.OPT_IN))
    way_in.take(asked())
    assert _refusal(way_in) == "suppressed:bounce"


def test_removing_a_record_revives_nothing(way_in: WayIn) -> None:
    way_in.take(asked())
    keep(way_in, one(way_in, kind=Kind.SUPPRESSED))
    common: dict[str, Any] = {
        "tenant": "default", "channel": Channel.EMAIL, "address": "ANN@example.com", "actor": "operator:kim",
    }  # fmt: skip
    with pytest.raises(InvalidInput, match="reason"):
        remove(way_in.store, reason="", **common)
    assert remove(way_in.store, reason="mailbox works again", **common) is True
    assert remove(way_in.store, reason="mailbox works again", **common) is False
    assert way_in.states() == {"r-1:c-1:email": "SUPPRESSED"}
    assert _refusal(way_in) is None
    assert way_in.take(asked("r-2"))[0].keys == ("r-2:c-1:email",)
    assert way_in.states()["r-2:c-1:email"] == "SCHEDULED"


def _refusal(way_in: WayIn) -> str | None:
    key = ("default", "email", address_tag(way_in.store.secret, "default", "email", ANN))

    def read(tx: Tx) -> str | None:
        return refusal(tx.preferences.of([key]).get(key, []), "payment", NoRecord.ALLOW)

    return way_in.store.read(read)


def test_records_can_be_asked_for_and_listed_without_addresses(way_in: WayIn) -> None:
    many = [one(way_in, address=f"person{n}@example.com", evidence="list of 2025") for n in range(60)]
    keep(way_in, *many, one(way_in, kind=Kind.SUPPRESSED), one(way_in, category="payment"))
    listed = list(list_records(way_in.store, page=7))
    assert len(listed) == 62
    assert len({(row["address_tag"], row["kind"], row["category"]) for row in listed}) == 62
    assert all("person" not in str(value) for row in listed for value in row.values())
    found = records_of(way_in.store, tenant="default", channel=Channel.EMAIL, address="ANN@example.com")
    assert {(row["kind"], row["category"]) for row in found} == {("suppressed", "*"), ("opt_out", "payment")}
    assert found[0]["masked"] == "a***@example.com"
    assert found[0]["actor"] == "operator:kim"
    assert records_of(way_in.store, tenant="default", channel=Channel.SMS, address=PHONE) == []


def test_a_long_list_goes_in_units_and_reports_progress(way_in: WayIn) -> None:
    way_in.take(asked())
    records = [one(way_in, address=f"person{n}@example.com") for n in range(PAGE * 2)]
    seen: list[int] = []
    done = record(
        way_in.store,
        iter([*records, one(way_in)]),
        policy=way_in.policy,
        actor="a",
        progress=lambda so_far: seen.append(so_far.records),
    )
    assert seen == [PAGE, PAGE * 2, PAGE * 2 + 1]
    assert (done.new, done.counts) == (PAGE * 2 + 1, {"suppressed": 1})


def test_an_address_with_more_deliveries_than_a_page(way_in: WayIn) -> None:
    count = DELIVERIES_PAGE + 5
    way_in.take(*(asked(f"r-{n}") for n in range(count)))
    assert keep(way_in, one(way_in)).counts == {"suppressed": count}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"address": ANN}, (Channel.EMAIL, ANN, "*", Kind.SUPPRESSED, "operator")),
        ({"address": "+1 202 555 0123"}, (Channel.SMS, PHONE, "*", Kind.SUPPRESSED, "operator")),
        (
            {"address": ANN, "kind": "Opt-Out", "category": "payment", "source": "crm"},
            (Channel.EMAIL, ANN, "payment", Kind.OPT_OUT, "crm"),
        ),
        (
            {"address": PHONE, "channel": "SMS", "kind": "opt_in"},
            (Channel.SMS, PHONE, "*", Kind.OPT_IN, "operator"),
        ),
    ],
)
def test_rows_become_records(way_in: WayIn, values: dict[str, str], expected: tuple[object, ...]) -> None:
    found = record_of(values, way_in.policy, now=way_in.now)
    assert (found.channel, found.address, found.category, found.kind, found.source) == expected
    assert found.at == way_in.now


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "phone"),
        ({"address": "ann@"}, "email"),
        ({"address": ANN, "channel": "fax"}, "channel"),
        ({"address": ANN, "category": "gossip"}, "category"),
        ({"address": ANN, "kind": "maybe"}, "kind"),
        ({"address": ANN, "at": "2027-01-01T00:00"}, "at"),
        ({"address": ANN, "at": "yesterday"}, "at"),
        ({"address": ANN, "source": "two words"}, "source"),
        ({"address": ANN, "evidence": "x" * 501}, "evidence"),
    ],
)
def test_bad_rows_name_their_field(way_in: WayIn, values: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        record_of(values, way_in.policy, now=way_in.now)
    assert error.value.field == field
