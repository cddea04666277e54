"""Reminders over HTTP: in, in bulk; read, changed, taken back; and each request once. On both stores."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from sendonce import preparation
from sendonce.api.idempotency import STALE_US
from sendonce.core.access import Scope
from sendonce.core.errors import StoreUnavailable
from sendonce.pipeline.story import story
from tests.integration.api_world import Answer, Api, reminder, served

LONE = "\\ud83d"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    if request.param == "sqlite":
        with served(folder) as made:
            yield made
        return
    schemas = request.getfixturevalue("postgres_schemas")
    url = schemas.take()
    with served(folder, url) as made:
        yield made
    schemas.give_back(url)


def hand_in(api: Api, *reminders: object, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    return api.post("/v1/reminders", {"reminders": list(reminders), **more}, headers=headers)


def test_each_reminder_has_an_answer_of_its_own_and_one_that_is_wrong_stops_no_other(api: Api) -> None:
    given = [
        reminder("bulk-1"),
        reminder("bulk-2", email="nobody"),
        5,
        reminder("bulk-3", nonsense=1),
        reminder("bulk-1"),
        reminder("bulk-4", tenant="acme"),
        reminder("bulk-5", due="2020-01-01T09:00Z"),
    ]
    document = hand_in(api, *given).ok()
    verdicts = [(result["index"], result["verdict"]) for result in document["results"]]
    assert verdicts == [
        (0, "accepted"), (1, "invalid"), (2, "invalid"), (3, "invalid"), (4, "unchanged"), (5, "invalid"),
        (6, "invalid"),
    ]  # fmt: skip
    assert document["counts"] == {"accepted": 1, "invalid": 5, "unchanged": 1}
    assert [result.get("field", "") for result in document["results"]] == [
        "", "email", "reminder", "nonsense", "", "tenant", "due",
    ]  # fmt: skip
    assert document["results"][0]["keys"] == ["bulk-1:c-1:email"]
    assert "Europe/Berlin" in document["results"][0]["notes"][0]


def test_the_ledger_says_by_which_key_it_came(api: Api) -> None:
    hand_in(api, reminder("who-1")).ok()
    (told,) = api.app.store.read(lambda tx: story(tx, "who-1", api.app.policy))
    assert told.moments[0].actor == f"api:{api.token[3:15]}"


def test_ten_thousand_go_in_one_call_and_no_more(api: Api) -> None:
    many = [reminder(f"many-{number}", due="2027-01-01T00:00Z") for number in range(10_001)]
    refused = hand_in(api, *many)
    assert (refused.status, refused.problem["field"]) == (422, "reminders")
    assert hand_in(api, *many[:300]).ok()["counts"] == {"accepted": 300}


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"", 400, "bad_json"),
        (b"[]", 422, "invalid_input"),
        (b'{"reminders": []}', 422, "invalid_input"),
        (b'{"reminders": {}}', 422, "invalid_input"),
        (b'{"reminders": [{}], "update": 1}', 422, "invalid_input"),
        (b'{"reminders": [{}], "udpate": true}', 422, "invalid_input"),
        (b'{"reminders": [', 400, "bad_json"),
        (b'{"reminders": [NaN]}', 400, "bad_json"),
        (b'{"reminders": [1' + b"0" * 5_000 + b"]}", 400, "bad_json"),
        (b'{"reminders": ["\xff"]}', 400, "bad_json"),
        ('{"reminders": []}'.encode("utf-16"), 400, "bad_json"),
        (b'\xef\xbb\xbf{"reminders": [{}]}', 400, "bad_json"),
        (b"[" * 100_000 + b"]" * 100_000, 400, "bad_json"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_whole(api: Api, raw: bytes, status: int, code: str) -> None:
    answer = api.post("/v1/reminders", raw=raw)
    assert (answer.status, answer.problem["code"]) == (status, code)


@pytest.mark.parametrize(
    "field",
    [
        f'"reminder": "a{LONE}"',
        f'"customer": "{LONE}"',
        f'"data": {{"name": "{LONE}"}}',
        f'"email": "{LONE}@example.com"',
        f'"template": "{LONE}"',
        f'"group": "g{LONE}"',
        f'"{LONE}": 1',
        '"data": {"name": "\\u0000"}',
        '"reminder": "a\\u0000b"',
        '"template": "a\\u0000"',
    ],
)
def test_half_characters_and_nul_hurt_only_their_own_reminder(api: Api, field: str) -> None:
    good = json.dumps(reminder("odd-1"))
    name = field.split('"')[1]
    rest = {each: value for each, value in reminder("odd-1", customer="c-odd").items() if each != name}
    odd = json.dumps(rest)[:-1] + f", {field}}}"
    answer = api.post("/v1/reminders", raw=f'{{"reminders": [{odd}, {good}]}}'.encode())
    first, second = answer.ok()["results"]
    assert second["verdict"] in ("accepted", "unchanged")
    assert first["verdict"] in ("invalid", "accepted", "unchanged"), first


def test_deep_data_hurts_only_its_own_reminder(api: Api) -> None:
    deep: object = "x"
    for _ in range(200):
        deep = [deep]
    first, second = hand_in(api, reminder("deep-1", data={"name": deep}), reminder("deep-2")).ok()["results"]
    assert (first["verdict"], first["field"]) == ("invalid", "data")
    assert second["verdict"] == "accepted"


def test_a_reminder_is_read_with_its_deliveries_and_a_masked_address(api: Api) -> None:
    hand_in(api, reminder("loan/2027 1", email="ann.may@example.com", phone="+12025550123", group="g")).ok()
    answer = api.get("/v1/reminders/loan%2F2027%201")
    (found,) = answer.ok()["reminders"]
    assert (found["reminder"], found["customer"], found["group"]) == ("loan/2027 1", "c-1", "g")
    assert [each["state"] for each in found["deliveries"]] == ["SCHEDULED", "SCHEDULED"]
    assert "ann.may" not in answer.body.decode()
    assert api.get("/v1/reminders/loan/2027%201").ok() == answer.document


def test_what_another_tenant_has_is_not_there(api: Api) -> None:
    hand_in(api, reminder("mine-1")).ok()
    token = api.key(tenant="acme")
    assert api.get("/v1/reminders/mine-1", token=token).problem["code"] == "not_found"
    for method, path, body in (
        ("PATCH", "/v1/reminders/mine-1", {"due": "in 5h"}),
        ("POST", "/v1/cancellations", {"reminder": "mine-1", "reason": "x"}),
        ("POST", "/v1/cancellations", {"delivery": "mine-1:c-1:email", "reason": "x"}),
    ):
        assert api.ask(method, path, body, token=token).status == 404
    (found,) = api.get("/v1/reminders/mine-1").ok()["reminders"]
    assert (found["version"], found["deliveries"][0]["state"]) == (1, "SCHEDULED")


def test_each_scope_opens_its_own_and_no_other(api: Api) -> None:
    hand_in(api, reminder("scoped-1")).ok()
    asks: dict[Scope, tuple[str, str, object]] = {
        Scope.SCHEDULE: ("POST", "/v1/reminders", {"reminders": [reminder("scoped-1")]}),
        Scope.READ: ("GET", "/v1/reminders/scoped-1", None),
        Scope.CANCEL: ("POST", "/v1/cancellations", {"reminder": "scoped-1", "reason": "x", "preview": True}),
    }
    for scope in Scope:
        token = api.key(scope)
        for needed, (method, path, body) in asks.items():
            status = api.ask(method, path, body, token=token).status
            assert status == (200 if needed is scope else 403), (scope, needed)


# Changing


def change(api: Api, id_: str, fields: dict[str, object], *, query: str = "", **given: Any) -> Answer:
    return api.ask("PATCH", f"/v1/reminders/{id_}{query}", fields, **given)


def only(api: Api, id_: str) -> Any:
    (found,) = api.get(f"/v1/reminders/{id_}").ok()["reminders"]
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"due": "2027-05-01T09:00", "timezone": "Europe/Paris"},
        {"due": "2027-05-01T09:00+05:30"},
        {"due": "2027-10-31T02:30", "timezone": "Europe/Berlin"},  # twice on that wall clock
        {"due": "2027-03-28T02:30", "timezone": "Europe/Berlin"},  # never
        {"due": "2027-10-31T01:30Z", "timezone": "Europe/Berlin"},  # the second of the two
        {"due": "2027-05-01T09:00Z", "expires": "90m", "phone": "+12025550123", "priority": 3},
        {"due": "2027-05-01T09:00Z", "phone": "+12025550123", "sender": "A <a@example.com>", "group": "g"},
    ],
)
def test_a_change_leaves_alone_what_it_does_not_name(api: Api, given: dict[str, object]) -> None:
    id_ = f"edit-{abs(hash(json.dumps(given)))}"
    hand_in(api, reminder(id_, **given)).ok()
    before = only(api, id_)
    assert change(api, id_, {"priority": before["priority"]}).ok()["verdict"] == "unchanged"
    assert change(api, id_, {"data": {"name": "Eve"}}).ok()["fields"] == ["data.name"]
    after = only(api, id_)
    assert after["version"] == 2
    for name in before.keys() - {"version", "data", "deliveries"}:
        assert after[name] == before[name], name
    times = ("due_at", "expires_at", "next_at")
    assert [[each[name] for name in times] for each in after["deliveries"]] == [
        [each[name] for name in times] for each in before["deliveries"]
    ]


def test_a_due_time_is_changed_and_the_span_until_its_expiry_goes_along(api: Api) -> None:
    hand_in(api, reminder("later-1", due="2027-05-01T09:00", expires="3h")).ok()
    assert change(api, "later-1", {"due": "2027-05-02T10:00"}).ok()["fields"] == ["due"]
    after = only(api, "later-1")
    assert (after["due_local"], after["timezone"]) == ("2027-05-02T10:00:00", "Europe/Berlin")
    assert (after["due_at"], after["expires_at"]) == (
        "2027-05-02T08:00:00.000000Z", "2027-05-02T11:00:00.000000Z",
    )  # fmt: skip


def test_an_address_for_another_channel_adds_that_channel(api: Api) -> None:
    hand_in(api, reminder("both-1")).ok()
    change(api, "both-1", {"phone": "+12025550123"}).ok()
    assert {each["channel"] for each in only(api, "both-1")["deliveries"]} == {"email", "sms"}


def test_a_change_that_knows_an_older_version_is_refused(api: Api) -> None:
    hand_in(api, reminder("match-1")).ok()
    change(api, "match-1", {"due": "in 3h"}, headers={"If-Match": '"1"'}).ok()
    answer = change(api, "match-1", {"due": "in 4h"}, headers={"If-Match": '"1"'})
    assert (answer.status, answer.problem["code"]) == (412, "changed")
    assert only(api, "match-1")["version"] == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reminder": "x"}, "reminder"),
        ({"customer": "x"}, "customer"),
        ({"id": "x"}, "id"),
        ({"tenant": "acme"}, "tenant"),
        ({"plan": "loan"}, "plan"),
        ({"due": "yesterday"}, "due"),
        ({"due": 5}, "due"),
        ({"template": "unheard-of"}, "template"),
        ({"colour": "red"}, "colour"),
        ({}, "body"),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(api: Api, fields: dict[str, object], field: str) -> None:
    hand_in(api, reminder("keep-1")).ok()
    answer = change(api, "keep-1", fields)
    assert (answer.status, answer.problem["field"]) == (422, field)
    assert only(api, "keep-1")["version"] == 1


def test_a_change_of_several_must_say_whose(api: Api) -> None:
    hand_in(api, reminder("shared-1", customer="a"), reminder("shared-1", customer="b")).ok()
    assert change(api, "shared-1", {"due": "in 9h"}).problem["field"] == "customer"
    change(api, "shared-1", {"due": "in 9h"}, query="?customer=b").ok()
    found = {one["customer"]: one["version"] for one in api.get("/v1/reminders/shared-1").ok()["reminders"]}
    assert found == {"a": 1, "b": 2}
    assert api.get("/v1/reminders/shared-1?customer=c").status == 404


def test_what_was_cancelled_is_not_changed(api: Api) -> None:
    hand_in(api, reminder("gone-1")).ok()
    api.post("/v1/cancellations", {"reminder": "gone-1", "reason": "returned"}).ok()
    answer = change(api, "gone-1", {"due": "in 9h"})
    assert (answer.status, answer.problem["code"]) == (409, "refused")


# Taking back


def test_a_cancellation_answers_truly_and_a_preview_changes_nothing(api: Api) -> None:
    hand_in(api, reminder("stop-1", group="stop"), reminder("stop-2", group="stop")).ok()
    asked = {"group": "stop", "reason": "paid"}
    preview = api.post("/v1/cancellations", {**asked, "preview": True}).ok()
    assert (preview["changed"], preview["preview"]) == (2, True)
    assert only(api, "stop-1")["deliveries"][0]["state"] == "SCHEDULED"
    done = api.post("/v1/cancellations", asked).ok()
    assert (done["changed"], done["counts"]) == (2, {"cancelled": 2})
    again = api.post("/v1/cancellations", asked).ok()
    assert (again["changed"], again["counts"]) == (0, {"cancelled": 2})


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"reason": "x"}, 422),
        ({"reminder": "a", "group": "b", "reason": "x"}, 422),
        ({"reminder": "a", "reason": ""}, 422),
        ({"reminder": "a"}, 422),
        ({"reminder": "a", "reason": "x", "perview": True}, 422),
        ({"reminder": "a", "reason": "x", "preview": "false"}, 422),
        ({"delivery": "no key", "reason": "x"}, 422),
        ({"reminder": "unheard-of", "reason": "x"}, 404),
    ],
)
def test_a_cancellation_that_cannot_be(api: Api, asked: dict[str, object], status: int) -> None:
    assert api.post("/v1/cancellations", asked).problem["status"] == status


# Once


KEYED = {"Idempotency-Key": '"req-1"'}


def test_a_repetition_is_answered_as_before_and_says_so(api: Api) -> None:
    first = hand_in(api, reminder("once-1"), headers=KEYED)
    again = hand_in(api, reminder("once-1"), headers=KEYED)
    assert first.ok()["counts"] == {"accepted": 1}
    assert (again.body, again.headers["idempotency-replayed"]) == (first.body, "true")
    assert "idempotency-replayed" not in first.headers
    assert hand_in(api, reminder("once-1")).ok()["counts"] == {"unchanged": 1}


def test_what_is_kept_of_an_answer_quotes_nobody(api: Api) -> None:
    headers = {"Idempotency-Key": "req-quoted"}
    given = [reminder("quote-1"), reminder("quote-2", email="ann.may.example.com")]
    first = hand_in(api, *given, headers=headers)
    assert "ann.may" in first.ok()["results"][1]["why"]
    known = api.app.store.read(lambda tx: tx.answers.get("default", "req-quoted"))
    assert known is not None
    kept = zlib.decompress(base64.b85decode(known.answer))
    again = hand_in(api, *given, headers=headers)
    assert again.body == kept
    assert b"ann.may" not in kept
    parts = ("counts", "index", "verdict", "keys", "field")
    for before, after in zip(first.document["results"], again.document["results"], strict=True):
        assert [before.get(name) for name in parts] == [after.get(name) for name in parts]


def test_another_request_under_a_key_that_is_taken_is_refused(api: Api) -> None:
    headers = {"Idempotency-Key": "req-2"}
    hand_in(api, reminder("once-2"), headers=headers).ok()
    other = [
        hand_in(api, reminder("once-3"), headers=headers),
        api.post("/v1/cancellations", {"reminder": "once-2", "reason": "x"}, headers=headers),
    ]
    assert [(answer.status, answer.problem["code"]) for answer in other] == [(422, "key_reused")] * 2
    assert api.get("/v1/reminders/once-3").status == 404
    token = api.key(tenant="acme")  # keys of another tenant are other keys
    assert api.post("/v1/reminders", {"reminders": [reminder("once-3")]}, token=token, headers=headers).ok()


def test_one_that_comes_while_the_first_is_answered_is_told_so(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = preparation.prepare

    def slow(*given: Any, **more: Any) -> Any:
        entered.set()
        go_on.wait(10)
        return real(*given, **more)

    monkeypatch.setattr("sendonce.pipeline.hand_in.prepare", slow)
    answers: list[Answer] = []
    headers = {"Idempotency-Key": "req-3"}
    first = threading.Thread(target=lambda: answers.append(hand_in(api, reminder("once-4"), headers=headers)))
    first.start()
    assert entered.wait(10)
    try:
        answer = hand_in(api, reminder("once-4"), headers=headers)
        assert (answer.status, answer.problem["code"], answer.headers["retry-after"]) == (
            409,
            "in_flight",
            "1",
        )
    finally:
        go_on.set()
        first.join()
    answers[0].ok()
    assert hand_in(api, reminder("once-4"), headers=headers).headers["idempotency-replayed"] == "true"


def test_after_an_error_the_same_request_is_tried_anew(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"Idempotency-Key": "req-4"}
    asked = {"reminder": "once-5", "reason": "x"}
    assert api.post("/v1/cancellations", asked, headers=headers).status == 404
    hand_in(api, reminder("once-5")).ok()
    assert api.post("/v1/cancellations", asked, headers=headers).ok()["changed"] == 1

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr("sendonce.pipeline.hand_in.prepare", away)
        failed = hand_in(api, reminder("once-6"), headers={"Idempotency-Key": "req-5"})
        assert (failed.status, failed.problem["code"]) == (503, "store_unavailable")
    done = hand_in(api, reminder("once-6"), headers={"Idempotency-Key": "req-5"})
    assert done.ok()["counts"] == {"accepted": 1}


def test_what_a_process_began_that_died_is_taken_over(api: Api) -> None:
    headers = {"Idempotency-Key": "req-6"}
    first = hand_in(api, reminder("once-7"), headers=headers).ok()
    known = api.app.store.read(lambda tx: tx.answers.get("default", "req-6"))
    assert known is not None
    fingerprint = known.fingerprint

    def died(tx: Any) -> None:
        tx.answers.forget(2**62, 1_000)
        at = tx.now - STALE_US - 1
        tx.answers.begin("default", "req-6", fingerprint, at=at, stale=0, keep_until=2**61)

    api.app.store.write(died).result()
    again = hand_in(api, reminder("once-7"), headers=headers)
    assert again.ok()["counts"] == {"unchanged": 1}
    assert first["counts"] == {"accepted": 1}


def test_an_answer_is_kept_for_longer_than_what_it_is_about(api: Api) -> None:
    hand_in(api, reminder("far-1", due="2150-01-01T00:00Z"), headers={"Idempotency-Key": "req-7"}).ok()

    def forgotten(tx: Any) -> bool:
        tx.answers.forget(5_680_281_600_000_000, 1_000)  # 2150-01-01
        return tx.answers.get("default", "req-7") is None

    assert not api.app.store.write(forgotten).result()


@pytest.mark.parametrize("key", ['""', "", "x" * 201, '"a', "a b", "é"])
def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    answer = hand_in(api, reminder("once-8"), headers={"Idempotency-Key": key.encode().decode("latin-1")})
    assert (answer.status, answer.problem["code"]) == (400, "bad_request")
