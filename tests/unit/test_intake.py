"""The way in: what is checked, what the same content again does, and what may still be revised."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.lifecycle import Event, State
from sendonce.core.reminder import AUTOMATIC, Asked
from sendonce.pipeline.intake import Mode, Verdict, again, differences
from sendonce.preparation import Origin, due_of, prepared_again
from tests.way_in import DAY, SECOND, WayIn, asked

FEB_1_0900_BERLIN = 1_769_932_800 * SECOND  # 2026-02-01T08:00:00Z
BOTH: dict[str, Any] = {"phone": "+12025550123"}


@pytest.fixture
def way_in() -> WayIn:
    return WayIn()


def refused(way_in: WayIn, request: Asked) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        way_in.prepare(request)
    return error.value


# Checked before anything is stored


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"reminder": " "}, "reminder", "empty"),
        ({"reminder": "a\nb"}, "reminder", "control"),
        ({"reminder": "x" * 201}, "reminder", "at most 200"),
        ({"customer": "\u202ec"}, "customer", "invisible"),
        ({"email": ""}, "email", "no address"),
        ({"email": "not-an-address"}, "email", "not-an-address"),
        ({"email": "ann@example.com\r\nBcc: spy@example.net"}, "email", "address"),
        ({"email": "", "phone": "12345"}, "phone", "short code"),
        ({"email": "", "phone": "+442079460958"}, "phone", ""),
        ({"due": ""}, "due", "empty"),
        ({"due": "tomorrow"}, "due", "no ISO 8601"),
        ({"due": "2026-02-30T09:00"}, "due", "not in the calendar"),
        ({"due": "2026-02-01"}, "due", "date without a time"),
        ({"due": "in 90"}, "due", "has no unit"),
        ({"timezone": "Europe/Berlinn"}, "timezone", "Europe/Berlin"),
        ({"timezone": "PST"}, "timezone", "PST"),
        ({"template": ""}, "template", "empty"),
        ({"template": "payy", "template_version": 0}, "template", "no template 'payy'"),
        ({"template_version": 9}, "template", "no version 9"),
        ({"data": {}}, "subject", ""),
        ({"data": {"name": "Ann\x00"}}, "name", "NUL"),
        ({"data": {"name": "\ud800"}}, "name", "half a character"),
        ({"data": {"name": object()}}, "name", "object"),
        ({"data": {"name": "x" * 70_000}}, "name", "65536"),
        ({"channels": ("fax",)}, "channel", "unknown channel 'fax'"),
        ({"channels": ("sms",)}, "phone", "has no phone"),
        ({"sender": "Ann <ann>"}, "sender", "ann"),
        ({"sender": "A\nB <ann@example.com>"}, "sender", "line break"),
        ({"reply_to": "nobody"}, "reply_to", "nobody"),
        ({"email": "", "phone": "+12025550123", "sms_sender": "far too long a name"}, "sms_sender", "sender"),
        ({"category": "gossip"}, "category", "payment, shipment"),
        ({"group": "a\tb\x01"}, "group", "control"),
        ({"priority": 10}, "priority", "from 0"),
        ({"expires": "90"}, "expires", "no unit"),
        ({"expires": "0s"}, "expires", "not after the due time"),
        ({"expires": "2026-01-31T09:00+01:00"}, "expires", "not after the due time"),
        ({"date": "2026-02-01"}, "date", "belongs to a plan"),
        ({"plan": "loan"}, "due", "makes its own due times"),
        ({"tenant": ""}, "tenant", "empty"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_field(
    way_in: WayIn, fields: dict[str, Any], field: str, says: str
) -> None:
    error = refused(way_in, asked(**{"template_version": 3, **fields}))
    if "data" in fields and not fields["data"]:
        assert error.code == "missing_variable"
        assert "name" in str(error)
    else:
        assert error.field == field
    assert says in str(error)


def test_a_variable_that_the_template_lacks_is_found_per_channel(way_in: WayIn) -> None:
    error = refused(way_in, asked(template_version=2, data={"name": "Ann"}))
    assert error.code == "missing_variable"
    assert "amount" in str(error)
    assert way_in.prepare(asked(template_version=2, email="", phone="+12025550123"))


def test_a_channel_without_a_part_of_the_template_is_refused(way_in: WayIn) -> None:
    error = refused(way_in, asked(template="mail-only", **BOTH))
    assert error.field == "template"
    assert "no sms part" in str(error)
    assert way_in.prepare(asked(template="mail-only", channels=("email",), **BOTH))


@pytest.mark.parametrize("name", AUTOMATIC)
def test_automatic_variables_cannot_be_given(way_in: WayIn, name: str) -> None:
    assert "filled in" in str(refused(way_in, asked(data={"name": "Ann", name: "x"})))


@pytest.mark.parametrize(
    "text",
    [
        "\u202d+1 202 555 0123\u202c",
        "+1 202\u00a0555\u00a00123",
        "\u200e+12025550123",
        "+1\ufe0d-202-555-0123",
        "+1 (202) 555-0123",
        " tel:+1-202-555-0123 ",
    ],
)
def test_spellings_of_one_number_are_one(way_in: WayIn, text: str) -> None:
    """CONT-07."""
    way_in.take(asked(customer="", email="", phone="+12025550123"))
    (result,) = way_in.take(asked(customer="", email="", phone=text))
    assert result.verdict is Verdict.UNCHANGED
    assert len(way_in.states()) == 1


@pytest.mark.parametrize("address", ["ann+may@example.com", "+1@example.com"])
def test_plus_addresses_are_kept_and_never_merged(way_in: WayIn, address: str) -> None:
    """CONT-09."""
    first, second = way_in.take(
        asked(customer="", email=address), asked(customer="", email="ann@example.com")
    )
    assert (first.verdict, second.verdict) == (Verdict.ACCEPTED, Verdict.ACCEPTED)
    assert way_in.reminder(first.reminder_id).recipients["email"]["to"] == address


def test_the_same_person_with_other_capitals_is_one(way_in: WayIn) -> None:
    """API-03: kept as first given, compared without case."""
    spellings = "Ann@Example.com", "ann@example.com ", "ann@example.com"
    results = way_in.take(*(asked(customer="", email=text) for text in spellings))
    assert [result.verdict for result in results] == [Verdict.ACCEPTED, Verdict.UNCHANGED, Verdict.UNCHANGED]
    assert way_in.reminder(1).recipients["email"]["to"] == "Ann@Example.com"


def test_a_customer_made_from_an_address_does_not_show_it(way_in: WayIn) -> None:
    (prepared,) = way_in.prepare(asked(customer="", email="Ann@Example.com", **BOTH))
    assert prepared.reminder.customer.startswith("person-")
    assert "ann" not in prepared.reminder.customer
    (other,) = way_in.prepare(asked(customer="", email="ann@example.com"))
    assert other.reminder.customer == prepared.reminder.customer


def test_breaks_and_turning_characters_in_names_reach_no_header(way_in: WayIn) -> None:
    """CONT-01, CONT-17: taken, and harmless where they are rendered."""
    for name in ("Ann\r\nBcc: spy@example.net", "Ann\u2028Bcc: x", "Ann\u0085x", "Ali\u202e", "علي", "דנה"):
        assert way_in.prepare(asked(data={"name": name}))


# Times


@pytest.mark.parametrize(
    ("due", "timezone", "at", "local", "zone"),
    [
        ("2026-02-01T09:00", "", FEB_1_0900_BERLIN, "2026-02-01T09:00:00", "Europe/Berlin"),
        ("2026-02-01T09:00", "europe/berlin", FEB_1_0900_BERLIN, "2026-02-01T09:00:00", "Europe/Berlin"),
        ("2026-02-01T09:00+01:00", "", FEB_1_0900_BERLIN, "2026-02-01T09:00:00", ""),
        ("2026-02-01T08:00Z", "Asia/Tokyo", FEB_1_0900_BERLIN, "2026-02-01T17:00:00", "Asia/Tokyo"),
        ("2026-02-01 08:00:00z", "", FEB_1_0900_BERLIN, "2026-02-01T08:00:00", ""),
    ],
)
def test_due_times_keep_instant_wall_clock_and_zone(
    way_in: WayIn, due: str, timezone: str, at: int, local: str, zone: str
) -> None:
    reminder = way_in.prepare(asked(due=due, timezone=timezone))[0].reminder
    assert (reminder.due_at, reminder.due_local, reminder.zone) == (at, local, zone)


@pytest.mark.parametrize(
    ("text", "wait_s"), [("now", 0), ("+20s", 20), ("in 20s", 20), ("IN 1h30m", 5_400), ("+500ms", 0.5)]
)
def test_relative_times_count_from_now(text: str, wait_s: float) -> None:
    now = 1_767_225_600 * SECOND
    due, notes = due_of(text, "America/New_York", "UTC", now)
    assert due.at == now + round(wait_s * SECOND)
    assert due.local.startswith("2025-12-31T")
    assert notes == ()


def test_the_tenants_zone_is_reported_when_used(way_in: WayIn) -> None:
    assert way_in.prepare(asked())[0].notes == ("no timezone given: Europe/Berlin was assumed",)
    assert way_in.prepare(asked(timezone="Europe/Paris"))[0].notes == ()
    assert way_in.prepare(asked(due="2026-02-01T09:00Z"))[0].notes == ()


def test_clock_changes_are_reported(way_in: WayIn) -> None:
    """TIME-01: the reminder of the missing hour goes out, an hour later, and the report says so."""
    prepared = way_in.prepare(asked(due="2026-03-29T02:30", timezone="Europe/Berlin"))[0]
    assert prepared.reminder.due_at == 1_774_747_800 * SECOND  # 01:30Z, 03:30 on the wall
    assert "does not exist" in prepared.notes[0]


@pytest.mark.parametrize(
    ("ago", "verdict"), [("2026-01-01T00:30", Verdict.ACCEPTED), ("2025-12-31T20:00", Verdict.INVALID)]
)
def test_past_times_as_far_as_the_policy_allows(way_in: WayIn, ago: str, verdict: Verdict) -> None:
    (result,) = way_in.take(asked(due=ago))  # now is 01:00 in Berlin, an hour may be late
    assert result.verdict is verdict
    assert result.field == ("due" if verdict is Verdict.INVALID else "")
    assert len(way_in.states()) == (verdict is Verdict.ACCEPTED)


def test_what_has_expired_already_is_invalid_with_the_fix(way_in: WayIn) -> None:
    (result,) = way_in.take(asked(due="2026-01-01T00:30", expires="10m"))
    assert (result.verdict, result.field) == (Verdict.INVALID, "expires")
    assert "20 min ago" in result.why
    assert "later" in result.why


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 86_400),
        ({"email": "", "phone": "+12025550123"}, 3_600),
        ({"category": "shipment"}, 7_200),
        ({"expires": "90s"}, 90),
        ({"expires": "2026-02-01T10:00", "timezone": "Europe/Berlin"}, 3_600),
        ({"expires": "2026-02-01T09:00Z"}, 3_600),
    ],
)
def test_expiry_by_row_category_or_channel(way_in: WayIn, fields: dict[str, Any], seconds: int) -> None:
    (target,) = way_in.prepare(asked(**fields))[0].targets
    assert target.expires_at == FEB_1_0900_BERLIN + seconds * SECOND


# Deliveries


def test_one_reminder_fans_out_into_one_delivery_per_channel(way_in: WayIn) -> None:
    (result,) = way_in.take(asked(group="g", priority=4, sender="Shop <us@example.com>", **BOTH))
    assert result.keys == ("r-1:c-1:email", "r-1:c-1:sms")
    email, sms = (way_in.deliveries()[key] for key in result.keys)
    assert (email.channel, sms.channel) == (Channel.EMAIL, Channel.SMS)
    assert email.reminder_id == sms.reminder_id == result.reminder_id
    assert (email.group, email.priority, email.standing.state) == ("g", 4, State.SCHEDULED)
    assert email.course.next_at == email.course.due_at == FEB_1_0900_BERLIN
    assert email.address_tag != sms.address_tag
    assert email.course.expires_at - sms.course.expires_at == (86_400 - 3_600) * SECOND
    recipients = way_in.reminder(result.reminder_id).recipients
    assert recipients["email"]["sender"] == "Shop <us@example.com>"
    assert "sender" not in recipients["sms"]


def test_a_plan_becomes_one_reminder_for_each_step(way_in: WayIn) -> None:
    results = way_in.take(
        asked("loan-77", plan="loan", date="2026-03-31", due="", timezone="America/New_York", **BOTH)
    )
    assert [key for result in results for key in result.keys] == [
        "loan-77/D-3:c-1:sms",
        "loan-77/D-3:c-1:email",
        "loan-77/D:c-1:email",
        "loan-77/D+2:c-1:sms",
    ]
    locals_ = [way_in.reminder(result.reminder_id).due_local for result in results]
    assert locals_ == ["2026-03-28T09:00:00", "2026-03-31T09:00:00", "2026-04-02T10:00:00"]
    assert {delivery.group for delivery in way_in.deliveries().values()} == {"loan-77"}


def test_a_plan_goes_only_where_the_row_allows(way_in: WayIn) -> None:
    plan: dict[str, Any] = {"plan": "loan", "date": "2026-03-31", "due": ""}
    only = way_in.prepare(asked("loan-77", channels=("email",), **plan))
    assert [target.key for one in only for target in one.targets] == [
        "loan-77/D-3:c-1:email",
        "loan-77/D:c-1:email",
    ]
    error = refused(way_in, asked("loan-77", **plan))
    assert error.field == "phone"
    assert "step D-3" in str(error)
    assert "loan" in str(refused(way_in, asked("loan-77", **{**plan, "plan": "lona"})))


def test_a_step_that_has_passed_does_not_stop_the_others(way_in: WayIn) -> None:
    results = way_in.take(asked("loan-77", plan="loan", date="2026-01-02", due="", **BOTH))
    assert [result.verdict for result in results] == [Verdict.INVALID, Verdict.ACCEPTED, Verdict.ACCEPTED]


# The same again, and other content


SAME: list[dict[str, Any]] = [
    {},
    {"email": "ANN@example.com"},
    {"data": {"name": "Ann"}, "channels": ("email",)},
    {"timezone": "Europe/Berlin"},
    {"due": "2026-02-01T09:00:00", "category": "payment"},
    {"sender": ""},
]


@pytest.mark.parametrize("fields", SAME)
@pytest.mark.parametrize("mode", Mode)
def test_the_same_content_changes_nothing(way_in: WayIn, fields: dict[str, Any], mode: Mode) -> None:
    way_in.take(asked())
    before = way_in.deliveries(), way_in.reminder(1)
    (result,) = way_in.take(asked(**fields), mode=mode)
    assert (result.verdict, result.reminder_id) == (Verdict.UNCHANGED, 1)
    assert (way_in.deliveries(), way_in.reminder(1)) == before


OTHER: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"due": "2026-02-01T10:00"}, ("due",)),
    ({"due": "2026-02-01T09:00", "timezone": "Europe/London"}, ("due", "timezone")),
    ({"timezone": "Europe/Paris"}, ("timezone",)),
    ({"template": "mail-only"}, ("template",)),
    ({"template_version": 3}, ("template_version",)),
    ({"data": {"name": "Bob"}}, ("data.name",)),
    ({"data": {"name": "Ann", "b": None, "a": [1]}}, ("data.a", "data.b")),
    ({"email": "bob@example.com"}, ("email",)),
    ({"phone": "+12025550123"}, ("channels",)),
    ({"sender": "a@example.com"}, ("sender",)),
    ({"reply_to": "a@example.com"}, ("reply_to",)),
    ({"category": "shipment"}, ("category", "expires")),
    ({"group": "g"}, ("group",)),
    ({"priority": 1}, ("priority",)),
    ({"expires": "1h"}, ("expires",)),
]


@pytest.mark.parametrize(("fields", "named"), OTHER)
def test_other_content_is_a_conflict_that_names_the_fields(
    way_in: WayIn, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    """API-07: nothing changes, and the first answer is never given for it."""
    way_in.take(asked())
    before = way_in.deliveries(), way_in.reminder(1)
    (result,) = way_in.take(asked(**fields))
    assert result.verdict is Verdict.CONFLICTING
    assert set(named) <= set(result.fields)
    assert all(name in result.why for name in named)
    assert (way_in.deliveries(), way_in.reminder(1)) == before


@pytest.mark.parametrize(("fields", "named"), OTHER)
def test_an_update_revises_what_was_not_attempted(
    way_in: WayIn, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    way_in.take(asked())
    (result,) = way_in.take(asked(**fields), mode=Mode.UPDATE)
    assert result.verdict is Verdict.REVISED
    assert set(named) <= set(result.fields)
    (wanted,) = way_in.prepare(asked(**fields))
    reminder = way_in.reminder(1)
    assert differences(reminder, wanted.reminder) == ()
    assert (reminder.version, reminder.spec_hash) == (2, wanted.reminder.spec_hash)
    delivery = way_in.deliveries()["r-1:c-1:email"]
    assert (delivery.standing.state, delivery.standing.version, delivery.standing.epoch) == (
        State.SCHEDULED, 2, 1,
    )  # fmt: skip
    assert (delivery.category, delivery.group, delivery.priority) == (
        reminder.category, reminder.group, reminder.priority,
    )  # fmt: skip
    assert delivery.course.due_at == delivery.course.next_at == reminder.due_at
    assert delivery.address_tag == wanted.targets[0].address_tag
    assert way_in.take(asked(**fields))[0].verdict is Verdict.UNCHANGED


def test_the_second_row_of_one_unit_meets_the_first(way_in: WayIn) -> None:
    request = asked()
    other = replace(request, data={"name": "Bob"})
    verdicts = [result.verdict for result in way_in.take(request, request, other, request)]
    assert verdicts == [Verdict.ACCEPTED, Verdict.UNCHANGED, Verdict.CONFLICTING, Verdict.UNCHANGED]
    verdicts = [result.verdict for result in way_in.take(other, request, request, mode=Mode.UPDATE)]
    assert verdicts == [Verdict.REVISED, Verdict.REVISED, Verdict.UNCHANGED]


def test_a_relative_time_is_the_same_text_again_and_not_a_new_time(way_in: WayIn) -> None:
    way_in.take(asked(due="+20s"))
    way_in.clock.advance(60)
    assert way_in.take(asked(due="+20s"))[0].verdict is Verdict.UNCHANGED
    assert way_in.take(asked(due="+30s"))[0].verdict is Verdict.CONFLICTING


def test_a_known_reminder_is_no_worse_for_being_past(way_in: WayIn) -> None:
    way_in.take(asked())
    way_in.clock.advance(60 * 86_400)
    assert way_in.take(asked())[0].verdict is Verdict.UNCHANGED
    assert way_in.take(asked(data={"name": "Bob"}), mode=Mode.UPDATE)[0].verdict is Verdict.INVALID


def test_the_configuration_may_change_without_making_conflicts(way_in: WayIn) -> None:
    way_in.take(asked())
    way_in.policy = replace(way_in.policy, zones={"default": "Europe/London"}, default_category="shipment")
    assert way_in.take(asked())[0].verdict is Verdict.UNCHANGED


def test_an_update_adds_and_removes_channels(way_in: WayIn) -> None:
    way_in.take(asked(**BOTH))
    (result,) = way_in.take(asked(email="", **BOTH), mode=Mode.UPDATE)
    assert (result.verdict, result.fields) == (Verdict.REVISED, ("channels",))
    assert way_in.states() == {"r-1:c-1:email": "CANCELLED", "r-1:c-1:sms": "SCHEDULED"}
    assert way_in.deliveries()["r-1:c-1:email"].course.reason == "channel_removed"
    (result,) = way_in.take(asked(**BOTH), mode=Mode.UPDATE)
    assert result.verdict is Verdict.REFUSED
    assert "email: it has ended: CANCELLED" in result.why


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((Event.PUBLISHED,), ""),
        ((Event.PUBLISHED, Event.CLAIMED), "may already be sent (SENDING)"),
        ((Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED), "already sent"),
        ((Event.PUBLISHED, Event.CLAIMED, Event.UNKNOWN), "may already be sent (UNCERTAIN)"),
        ((Event.PUBLISHED, Event.CLAIMED, Event.FAILED), ""),
        ((Event.CANCELLED,), "it has ended: CANCELLED"),
        ((Event.EXPIRED,), "it has ended: EXPIRED"),
    ],
)
def test_what_may_have_been_sent_is_never_revised(
    way_in: WayIn, events: tuple[Event, ...], says: str
) -> None:
    """All of the reminder or nothing: the other channel stays as it is, too."""
    way_in.take(asked(**BOTH))
    way_in.lead("r-1:c-1:sms", *events)
    before = way_in.deliveries(), way_in.reminder(1)
    (result,) = way_in.take(asked(data={"name": "Bob"}, **BOTH), mode=Mode.UPDATE)
    if not says:
        assert result.verdict is Verdict.REVISED
        assert set(way_in.states().values()) == {"SCHEDULED"}
    else:
        assert result.verdict is Verdict.REFUSED
        assert says in result.why
        assert (way_in.deliveries(), way_in.reminder(1)) == before


def test_a_channel_in_flight_cannot_be_left_out(way_in: WayIn) -> None:
    way_in.take(asked(**BOTH))
    way_in.lead("r-1:c-1:sms", Event.PUBLISHED, Event.CLAIMED)
    (result,) = way_in.take(asked(), mode=Mode.UPDATE)
    assert result.verdict is Verdict.REFUSED
    assert "may already be sent" in result.why
    assert way_in.states()["r-1:c-1:email"] == "SCHEDULED"


def test_a_revision_starts_its_tries_anew_and_keeps_the_count_of_calls(way_in: WayIn) -> None:
    way_in.take(asked())
    key = "r-1:c-1:email"
    way_in.lead(key, Event.PUBLISHED, Event.CLAIMED, account="mail")
    way_in.lead(key, Event.FAILED, course={"attempts": 1, "failures": 1, "first_try": 7, "last_try": 7})
    way_in.take(asked(data={"name": "Bob"}), mode=Mode.UPDATE)
    course = way_in.deliveries()[key].course
    assert (course.attempts, course.failures, course.first_try, course.last_try) == (1, 0, 0, 0)
    assert (course.account, course.reason) == ("", "")


def test_cancelled_stays_cancelled_and_the_answer_says_so(way_in: WayIn) -> None:
    """ "Stop when paid", and the stale file of yesterday again."""
    way_in.take(asked())
    way_in.lead("r-1:c-1:email", Event.CANCELLED)
    (result,) = way_in.take(asked())
    assert result.verdict is Verdict.UNCHANGED
    assert "cancelled" in result.why
    assert way_in.states() == {"r-1:c-1:email": "CANCELLED"}


def test_the_source_that_was_first_keeps_the_reminder(way_in: WayIn) -> None:
    way_in.take(asked(), origin=Origin("crm", 0))
    way_in.take(asked(data={"name": "Bob"}), mode=Mode.UPDATE, origin=Origin("shop", 0))
    assert way_in.reminder(1).source == "crm"


def test_the_ledger_holds_no_address_and_no_text(way_in: WayIn) -> None:
    way_in.take(asked(customer="", data={"name": "Ann Smith"}, **BOTH))
    way_in.take(asked(customer="", data={"name": "Bob Smith"}, **BOTH), mode=Mode.UPDATE)
    connection = way_in.store._inline
    assert connection is not None
    bodies = [str(row[0]) for row in connection._execute("SELECT body FROM ledger")]
    assert len(bodies) == 4
    for body in bodies:
        assert "example.com" not in body
        assert "202555" not in body
        assert "Smith" not in body
    assert json.loads(bodies[-1])["changed"] == "data.name"


def test_prepared_again_is_what_was_prepared(way_in: WayIn) -> None:
    (result,) = way_in.take(asked(group="g", **BOTH))
    stored = way_in.reminder(result.reminder_id)
    back = prepared_again(stored, secret=way_in.store.secret)
    assert back.targets == way_in.prepare(asked(group="g", **BOTH))[0].targets


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(texts.filter(lambda name: name not in AUTOMATIC), json_values, max_size=5))
def test_any_json_data_in_any_order_is_the_same_content(data: dict[str, object]) -> None:
    """API-07."""
    way_in = WayIn()
    request = asked(template="mail-only", data={**data, "name": "x"})
    way_in.take(request)
    turned = dict(reversed(list(request.data.items())))
    assert way_in.take(replace(request, data=turned))[0].verdict is Verdict.UNCHANGED
    assert json.loads(way_in.reminder(1).data) == request.data


# Again


def send_again(way_in: WayIn, key: str = "r-1:c-1:email", reason: str = "asked on the phone") -> str:
    result = way_in.store.write(
        lambda tx: again(tx, key, tenant="default", policy=way_in.policy, reason=reason, actor="operator:kim")
    ).result()
    return result.keys[0]


def test_again_makes_a_linked_reminder_due_now(way_in: WayIn) -> None:
    way_in.take(asked(group="g", **BOTH))
    way_in.lead("r-1:c-1:email", Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED)
    key = send_again(way_in)
    assert key == "r-1/again-1:c-1:email"
    delivery = way_in.deliveries()[key]
    reminder = way_in.reminder(delivery.reminder_id)
    assert (reminder.linked, reminder.group, reminder.reminder) == ("r-1:c-1:email", "g", "r-1/again-1")
    assert delivery.course.due_at == way_in.now
    assert delivery.course.expires_at == way_in.now + DAY
    assert set(reminder.recipients) == {"email"}
    assert way_in.states()["r-1:c-1:email"] == "ACCEPTED"


def test_pressing_twice_sends_once(way_in: WayIn) -> None:
    """API-11."""
    way_in.take(asked())
    way_in.lead("r-1:c-1:email", Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED)
    assert send_again(way_in) == send_again(way_in) == "r-1/again-1:c-1:email"
    way_in.lead("r-1/again-1:c-1:email", Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED)
    assert send_again(way_in) == "r-1/again-2:c-1:email"


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((), "still on its way"),
        ((Event.PUBLISHED, Event.CLAIMED), "still on its way"),
        ((Event.PUBLISHED, Event.CLAIMED, Event.UNKNOWN), "resolve it first"),
        ((Event.PUBLISHED, Event.CLAIMED, Event.REJECTED), "redrive"),
        ((Event.SUPPRESSED,), "opt-in"),
    ],
)
def test_again_is_refused_where_something_else_is_right(
    way_in: WayIn, events: tuple[Event, ...], says: str
) -> None:
    way_in.take(asked())
    way_in.lead("r-1:c-1:email", *events)
    with pytest.raises(Refused, match=says):
        send_again(way_in)
    assert len(way_in.states()) == 1


def test_again_needs_a_delivery_and_a_reason(way_in: WayIn) -> None:
    with pytest.raises(NotFound):
        send_again(way_in)
    with pytest.raises(InvalidInput, match="reason is empty"):
        send_again(way_in, reason=" ")
