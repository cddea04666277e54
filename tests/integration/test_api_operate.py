"""What operators, support and applications do besides, over HTTP: accounts, pauses, the desk, preferences,
templates, keys. On both stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sendonce.core.access import Scope
from sendonce.core.lifecycle import State
from sendonce.ports.store import Tx
from sendonce.testing.conformance.store import WAY_TO, along
from tests.integration.api_world import Api, add_templates, reminder, served


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


def there(api: Api, id_: str, state: State, *, tenant: str = "default", **more: str) -> str:
    """A delivery that has come into this state; its key."""
    token = api.key(tenant=tenant)
    given = {"reminders": [reminder(id_, due="2027-05-01T09:00Z", **more)]}
    (result,) = api.post("/v1/reminders", given, token=token).ok()["results"]
    (key,) = result["keys"]

    def unit(tx: Tx) -> None:
        for event, facts in WAY_TO[state]:
            (row,) = tx.deliveries.by_keys([(tenant, key)])
            (done,) = tx.deliveries.move([along(row, event, facts)])
            assert done

    api.app.store.write(unit).result()
    return str(key)


# Accounts and pauses


def test_accounts_say_what_waits_and_why(api: Api) -> None:
    accounts = {each["name"]: each for each in api.get("/v1/accounts").ok()["accounts"]}
    assert accounts.keys() == {"mail", "text", "spare"}
    assert accounts["mail"]["gate"]["limits"] == {"limits": ["10/s"], "lanes": 1, "headroom": 0.0}
    assert api.get("/v1/accounts/mail").ok()["channel"] == "email"
    assert api.get("/v1/accounts/fax").status == 404


def test_limits_are_changed_while_everything_runs(api: Api) -> None:
    asked = {"limits": ["7/s", "900/d"], "headroom": 0.1, "reason": "a slow day"}
    changed = api.ask("PATCH", "/v1/accounts/text/limits", asked).ok()
    assert changed["before"]["limits"] == ["10/s"]
    assert changed["after"] == {"limits": ["7/s", "900/d"], "lanes": 1, "headroom": 0.1}
    gate = api.get("/v1/accounts/text").ok()["gate"]
    assert (gate["changed"], gate["limits"]) == (True, changed["after"])


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"limits": ["0/s"], "reason": "x"}, "limits"),
        ({"limits": ["many"], "reason": "x"}, "limits"),
        ({"lanes": 0, "reason": "x"}, "lanes"),
        ({"lanes": 2**70, "reason": "x"}, "lanes"),
        ({"headroom": 1.0, "reason": "x"}, "headroom"),
        ({"lanes": 2, "reason": ""}, "reason"),
        ({"lanes": "2", "reason": "x"}, "lanes"),
        ({"lanes": 2}, "reason"),
    ],
)
def test_limits_that_cannot_be_change_nothing(api: Api, asked: dict[str, object], field: str) -> None:
    before = api.get("/v1/accounts/mail").ok()["gate"]["limits"]
    assert api.ask("PATCH", "/v1/accounts/mail/limits", asked).problem["field"] == field
    assert api.get("/v1/accounts/mail").ok()["gate"]["limits"] == before


def test_an_account_is_paused_until_and_resumed(api: Api) -> None:
    paused = api.post("/v1/pauses", {"what": "account", "name": "mail", "until": "in 2h", "reason": "x"}).ok()
    assert paused["until"] is not None
    gate = api.get("/v1/accounts/mail").ok()["gate"]
    assert (gate["state"], 7_000 < gate["left_s"] <= 7_200) == ("paused", True)
    assert [each["name"] for each in api.get("/v1/pauses").ok()["pauses"]] == ["mail"]
    done = api.post("/v1/resumptions", {"what": "account", "name": "mail", "reason": "x"}).ok()
    assert done["was_paused"] is True
    assert api.get("/v1/accounts/mail").ok()["gate"]["state"] == "open"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"what": "moon", "reason": "x"}, "what"),
        ({"what": "scheduler", "name": "x", "reason": "x"}, "name"),
        ({"what": "channel", "reason": "x"}, "name"),
        ({"what": "channel", "name": "fax", "reason": "x"}, "channel"),
        ({"what": "account", "name": "nobody", "reason": "x"}, "account"),
        ({"what": "account", "name": "mail", "until": "2020-01-01T00:00Z", "reason": "x"}, "until"),
    ],
)
def test_a_pause_that_cannot_be(api: Api, asked: dict[str, object], field: str) -> None:
    assert api.post("/v1/pauses", asked).problem["field"] == field


def test_what_waits_moves_to_an_account_that_shares_with_it(api: Api) -> None:
    token = api.key(tenant="shared")
    add_templates(api.app, "shared")
    given = {"reminders": [reminder(f"waits-{n}", due="now", group="waits") for n in range(3)]}
    api.post("/v1/reminders", given, token=token).ok()
    api.app.scheduler().run(trigger="test")
    before = {each["name"]: each["ready"] for each in api.get("/v1/accounts").ok()["accounts"]}
    asked = {"to": "spare", "group": "waits", "reason": "an outage"}
    path = "/v1/accounts/mail/moves"
    assert api.post(path, {**asked, "preview": True}).ok()["moved"] == 3
    assert api.post(path, asked, headers={"Idempotency-Key": "move-1"}).ok()["moved"] == 3
    again = api.post(path, asked, headers={"Idempotency-Key": "move-1"}).ok()
    assert (again["account"], again["to"], again["moved"]) == ("mail", "spare", 3)
    assert api.post(path, asked).ok()["moved"] == 0
    ready = {each["name"]: each["ready"] for each in api.get("/v1/accounts").ok()["accounts"]}
    assert (before["mail"] - ready["mail"], ready["spare"] - before["spare"]) == (3, 3)
    assert api.post(path, {**asked, "to": "text"}).problem["field"] == "to"
    assert api.post(path, {**asked, "to": "fax"}).status == 404
    assert api.post(path, asked, token=api.key(Scope.OPERATE)).problem["scope"] == "admin"


def test_a_group_is_its_tenants_and_the_rest_takes_admin(api: Api) -> None:
    operator = api.key(Scope.OPERATE, tenant="acme")
    group = {"what": "group", "name": "loan", "reason": "x"}
    assert api.post("/v1/pauses", group, token=operator).ok()["held"] == 0
    for what in (
        {"what": "account", "name": "mail"},
        {"what": "channel", "name": "sms"},
        {"what": "scheduler"},
    ):
        answer = api.post("/v1/pauses", {**what, "reason": "x"}, token=operator)
        assert (answer.status, answer.problem["scope"]) == (403, "admin")
    assert api.get("/v1/pauses").ok()["pauses"] == []  # another tenant's group is not there
    assert [each["name"] for each in api.get("/v1/pauses", token=operator).ok()["pauses"]] == ["loan"]
    assert api.post("/v1/resumptions", group).ok()["was_paused"] is False
    assert api.post("/v1/resumptions", group, token=operator).ok()["was_paused"] is True


# The desk


def test_dead_letters_are_listed_read_and_redriven(api: Api) -> None:
    keys = [there(api, f"dead-{number}", State.DEAD) for number in range(3)]
    there(api, "dead-acme", State.DEAD, tenant="acme")
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(f"/v1/dead-letters?limit=2&cursor={cursor}").ok()
        seen += [each["key"] for each in page["deliveries"]]
        cursor = page["next"]
    assert sorted(seen) == keys
    assert sum(each["count"] for each in api.get("/v1/dead-letter-groups").ok()["groups"]) == 3
    letter = api.get(f"/v1/dead-letters/{keys[0]}").ok()
    assert (letter["state"], len(letter["attempts_made"])) == ("DEAD", 1)
    asked = {"keys": keys[:2], "reason": "mended", "per_second": 100.0}
    preview = api.post("/v1/redrives", {**asked, "preview": True}).ok()
    done = api.post("/v1/redrives", asked).ok()
    assert preview["redriven"] + sum(each["count"] for each in preview["refused"]) == 2
    assert {**done, "last_at": None} == {**preview, "preview": False, "last_at": None}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"reason": "x"}, 422),
        ({"keys": ["no key"], "reason": "x"}, 422),
        ({"all": True, "reason": "x", "per_second": 0}, 422),
        ({"all": True, "reason": "x", "per_second": 1e9}, 422),
        ({"all": True, "reason": "x", "extend": "2"}, 422),
        ({"all": True, "reason": "x", "channel": "fax"}, 422),
        ({"all": True, "reason": "\n"}, 422),
        ({"keys": ["a:b:sms"] * 1_001, "reason": "x"}, 422),
    ],
)
def test_a_redrive_that_cannot_be(api: Api, asked: dict[str, object], status: int) -> None:
    assert api.post("/v1/redrives", asked).problem["status"] == status


def test_uncertain_deliveries_are_decided_by_a_person(api: Api) -> None:
    key, other = there(api, "maybe-1", State.UNCERTAIN), there(api, "maybe-2", State.UNCERTAIN)
    foreign = there(api, "maybe-acme", State.UNCERTAIN, tenant="acme")
    assert {each["key"] for each in api.get("/v1/uncertain").ok()["uncertain"]} == {key, other}
    risky = api.post("/v1/resolutions", {"keys": [key], "decision": "resend", "reason": "x"})
    assert (risky.status, risky.problem["reason"]) == (409, "duplicate_risk")
    asked = {"keys": [key, foreign, other], "decision": "not_sent", "reason": "asked them"}
    answers = api.post("/v1/resolutions", asked).ok()["answers"]
    assert [(each["done"], each["state"]) for each in answers] == [
        (True, "NOT_SENT"), (False, ""), (True, "NOT_SENT"),
    ]  # fmt: skip
    theirs = api.get("/v1/uncertain", token=api.key(tenant="acme")).ok()["uncertain"]
    assert [each["key"] for each in theirs] == [foreign]
    assert api.get(f"/v1/deliveries/{key}/story").ok()["moments"][-1]["actor"] == f"api:{api.token[3:15]}"


def test_uncertain_deliveries_are_decided_by_a_filter_after_a_preview(api: Api) -> None:
    key = there(api, "maybe-3", State.UNCERTAIN, group="storm")
    there(api, "maybe-4", State.UNCERTAIN)
    (listed,) = api.get("/v1/uncertain?group=storm").ok()["uncertain"]
    assert listed["key"] == key
    asked = {"group": "storm", "decision": "not_sent", "reason": "asked them"}
    said = {"decision": "not_sent", "resolved": 1, "refused": [], "examples": [], "answers": []}
    assert api.post("/v1/resolutions", {**asked, "preview": True}).ok() == {**said, "preview": True}
    risky = {**asked, "decision": "resend"}
    assert api.post("/v1/resolutions", risky).problem["reason"] == "duplicate_risk"
    assert api.post("/v1/resolutions", {**risky, "preview": True}).status == 200
    assert api.get(f"/v1/deliveries/{key}").ok()["state"] == "UNCERTAIN"
    assert api.post("/v1/resolutions", asked).ok() == {**said, "preview": False}
    assert api.get(f"/v1/deliveries/{key}").ok()["state"] == "NOT_SENT"


@pytest.mark.parametrize(
    "asked", [{}, {"all": True, "keys": ["a:b:sms"]}, {"group": "x", "keys": ["a:b:sms"]}]
)
@pytest.mark.parametrize("path", ["/v1/resolutions", "/v1/redrives"])
def test_a_choice_that_is_none_or_two_is_refused(api: Api, path: str, asked: dict[str, object]) -> None:
    more = {"decision": "sent"} if path == "/v1/resolutions" else {}
    answer = api.post(path, {**asked, **more, "reason": "x"})
    assert (answer.status, answer.problem["field"]) == (422, "keys")


def test_what_another_tenant_has_on_its_desk_is_not_there(api: Api) -> None:
    key = there(api, "dead-theirs", State.DEAD, tenant="acme")
    assert api.get(f"/v1/dead-letters/{key}").status == 404
    done = api.post("/v1/redrives", {"keys": [key], "reason": "x"}).ok()
    assert (done["redriven"], done["refused"][0]["why"]) == (0, "no delivery has this key")


# Preferences


def test_an_opt_out_takes_back_what_is_open_before_it_is_answered(api: Api) -> None:
    given = reminder("pref-1", email="eve@example.com")
    api.post("/v1/reminders", {"reminders": [given]}).ok()
    records = [
        {"address": "EVE@example.com", "kind": "opt_out", "evidence": "ticket 7"},
        {"address": "nobody"},
    ]
    headers = {"Idempotency-Key": "opt-out-1"}
    done = api.post("/v1/preferences", {"records": records}, headers=headers).ok()
    again = api.post("/v1/preferences", {"records": records}, headers=headers).ok()
    assert "nobody" in done["problems"][0]["why"]
    assert {**again, "problems": []} == {**done, "problems": []}
    assert "nobody" not in str(again)
    assert (done["records"], done["new"], done["deliveries"]) == (1, 1, {"suppressed": 1})
    assert [(each["index"], each["field"]) for each in done["problems"]] == [(1, "phone")]
    assert api.get("/v1/deliveries/pref-1:c-1:email").ok()["state"] == "SUPPRESSED"
    (known,) = api.get("/v1/preferences?address=eve%40example.com").ok()["records"]
    assert (known["kind"], known["evidence"]) == ("opt_out", "ticket 7")
    assert "eve@" not in str(known)
    assert api.get("/v1/preferences?address=eve%40example.com", token=api.key(tenant="acme")).ok() == {
        "records": [], "next": None,
    }  # fmt: skip
    removal = {"address": "eve@example.com", "kind": "opt_out", "reason": "a typing error"}
    assert api.post("/v1/preference-removals", removal).ok() == {"removed": 1}
    assert api.post("/v1/preference-removals", removal).status == 404


def test_records_are_read_page_by_page(api: Api) -> None:
    records = [{"address": f"page-{number}@example.com"} for number in range(5)]
    api.post("/v1/preferences", {"records": records}).ok()
    seen: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(f"/v1/preferences?limit=2&cursor={cursor}").ok()
        seen += page["records"]
        cursor = page["next"]
    assert len([each for each in seen if each["address"].startswith("p***")]) == 5, seen


# Templates


def test_templates_are_added_read_and_tried_out(api: Api) -> None:
    asked = {
        "name": "news",
        "sms": {"text": "Hi {{ name }}"},
        "email": {"subject": "S", "text": "T {{ name }}"},
    }
    added = api.post("/v1/templates", asked).ok()
    assert (added["version"], added["new"], set(added["channels"])) == (1, True, {"sms", "email"})
    assert api.post("/v1/templates", asked).ok()["new"] is False
    assert {each["name"] for each in api.get("/v1/templates").ok()["templates"]} == {"hello", "news"}
    assert {part["text"] for part in api.get("/v1/templates/news").ok()["parts"]} == {
        "Hi {{ name }}",
        "T {{ name }}",
    }
    preview = api.post("/v1/template-previews", {"name": "news", "data": {"name": "Ann"}}).ok()
    texts = {each["channel"]: (each["text"], each["parts"]) for each in preview["previews"]}
    assert texts["sms"] == ("Hi Ann", 1)
    assert api.get("/v1/templates/news", token=api.key(tenant="acme")).status == 404
    assert api.get("/v1/templates/news?version=9").status == 404


def test_versions_are_listed_page_by_page_and_never_cut(api: Api) -> None:
    for number in range(5):
        both = {"email": {"subject": "S", "text": f"{number}"}, "sms": {"text": f"{number}"}}
        api.post("/v1/templates", {"name": "paged", **(both if number % 2 else {"sms": both["sms"]})}).ok()
    whole = api.get("/v1/templates").ok()
    assert whole["next"] is None
    for limit in (1, 2, 3):
        seen: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = api.get(f"/v1/templates?limit={limit}&cursor={cursor}").ok()
            assert len({(each["name"], each["version"]) for each in page["templates"]}) <= limit
            seen += page["templates"]
            cursor = page["next"]
        assert seen == whole["templates"]


@pytest.mark.parametrize(
    "asked",
    [
        {"name": "../news", "sms": {"text": "x"}},
        {"name": "bad", "sms": {"text": "{{ name"}},
        {"name": "bad", "email": {"subject": "only"}},
        {"name": "bad"},
        {"name": "bad", "sms": {"text": "x" * 70_000}},
        {"name": "bad", "sms": {"text": "{% import 'os' as os %}"}},
        {"name": "bad", "sms": {"text": "\ud83d"}},
    ],
)
def test_a_template_that_cannot_be(api: Api, asked: dict[str, object]) -> None:
    answer = api.post("/v1/templates", asked)
    assert answer.problem["status"] in (400, 422), answer.body
    assert api.get("/v1/templates/bad").status == 404


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", {}),
        ("{{ 'x' * 100000000 }}", {}),
        ("{{ 9 ** 9 ** 9 }}", {}),
        ("{{ missing }}", {}),
        ("{{ name }}", {"name": "x" * 100_000}),
        ("{{ name.__class__.__mro__ }}", {"name": "x"}),
        ("{{ reminder }}", {"reminder": "mine"}),
    ],
)
def test_a_template_that_explodes_is_a_clear_answer(api: Api, text: str, data: dict[str, object]) -> None:
    added = api.post("/v1/templates", {"name": "boom", "sms": {"text": text}})
    if added.status == 200:
        added = api.post("/v1/template-previews", {"name": "boom", "data": data})
    assert added.status == 422, added.body
    assert added.problem["detail"]


# Keys


def test_a_key_makes_and_ends_keys_of_its_own_tenant_only(api: Api) -> None:
    admin = api.key(Scope.ADMIN, tenant="acme")
    made = api.post("/v1/keys", {"name": "shop", "scopes": ["read"], "rate": 5}, token=admin)
    document = made.ok(201)
    assert (document["tenant"], document["scopes"]) == ("acme", ["read"])
    api.get("/v1/deliveries", token=document["token"]).ok()
    rotated = api.post("/v1/key-rotations", {"prefix": document["prefix"], "reason": "x"}, token=admin).ok(
        201
    )
    gone = api.ask("DELETE", f"/v1/keys/{rotated['prefix']}?reason=leaked", token=admin).ok()
    assert (gone["state"], "token" in gone) == ("revoked", False)
    assert api.ask("DELETE", f"/v1/keys/{document['prefix']}?reason=x").status == 404  # ours is default
    assert api.ask("DELETE", f"/v1/keys/{document['prefix']}", token=admin).problem["field"] == "reason"
    listed = api.get("/v1/keys", token=admin).ok()["keys"]
    assert {each["tenant"] for each in listed} == {"acme"}
    assert document["token"][16:] not in str(listed)
    assert api.post("/v1/keys", {"name": "x", "scopes": ["root"]}, token=admin).problem["field"] == "scopes"


def test_what_will_leave_when_is_told_and_scraped_with_a_key_that_operates(api: Api) -> None:
    token = api.key(Scope.OPERATE)
    there(api, "foreseen", State.SCHEDULED)
    said = api.get("/v1/forecast", token=token).ok()
    assert {each["account"] for each in said["accounts"]} == {"mail", "text", "spare"}
    assert all(each["bound"] in ("rate", "lanes", "closed") for each in said["accounts"])
    assert (said["missed"], said["held"]) == (0, "")
    assert api.get("/v1/forecast?at=in%206h", token=token).ok()["until"] > said["now"]
    wrong = api.get("/v1/forecast?at=25:00", token=token)
    assert (wrong.status, wrong.problem["field"]) == (422, "at")
    assert api.get("/v1/forecast", token=api.key(Scope.READ)).status == 403
    assert api.get("/metrics", token="").status == 401
    assert api.get("/metrics", token=api.key(Scope.READ)).status == 403
    shown = api.get("/metrics", token=token)
    assert shown.status == 200
    assert shown.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'sendonce_lanes{account="mail",channel="email"} 1.0' in shown.body
