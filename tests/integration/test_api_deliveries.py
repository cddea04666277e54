"""Deliveries over HTTP: filters, pages, story and ledger; and each tenant its own. On both stores."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, urlencode

import apsw
import pytest

from sendonce.config import StoreKind
from sendonce.pipeline import listing
from sendonce.store.sqlite import TOKENS
from sendonce.store.statements import expand
from tests.integration.api_world import Answer, Api, reminder, served

MANY = 23


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    if request.param == "sqlite":
        with served(folder) as made:
            fill(made)
            yield made
        return
    schemas = request.getfixturevalue("postgres_schemas")
    url = schemas.take()
    with served(folder, url) as made:
        fill(made)
        yield made
    schemas.give_back(url)


def fill(api: Api) -> None:
    """Ids against the order of the due times; a customer with two; another tenant's beside."""
    given = [
        reminder(
            f"r-{number}",
            customer=f"c-{number % 5}",
            due=f"2027-03-{MANY - number + 1:02d}T09:00Z",
            group="odd" if number % 2 else "even",
            category="payment" if number % 3 == 0 else "shipment",
            **({"phone": "+12025550123"} if number == 4 else {}),
        )
        for number in range(MANY)
    ]
    api.post("/v1/reminders", {"reminders": given}).ok()
    api.post("/v1/cancellations", {"group": "odd", "reason": "paid"}).ok()
    api.post("/v1/reminders", {"reminders": given[:3]}, token=api.key(tenant="acme")).ok()


def listed(api: Api, **query: object) -> Answer:
    return api.get(f"/v1/deliveries?{urlencode(query)}")


def keys(api: Api, *, limit: int = 100, **query: object) -> list[str]:
    """All pages of a query."""
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        document = listed(api, **query, limit=limit, cursor=cursor).ok()
        found += [each["key"] for each in document["deliveries"]]
        assert len(document["deliveries"]) <= limit
        cursor = document["next"]
    return found


def expected(*numbers: int) -> list[str]:
    return [f"r-{number}:c-{number % 5}:email" for number in numbers]


@pytest.mark.parametrize("limit", [1, 7, 500])
@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"group": "odd"}, range(21, 0, -2)),
        ({"customer": "c-1"}, (21, 16, 11, 6, 1)),
        ({"customer": "c-1", "group": "odd"}, (21, 11, 1)),
        ({"reminder": "r-7"}, (7,)),
        ({"category": "payment", "state": "CANCELLED"}, (21, 15, 9, 3)),
        ({"channel": "email", "state": "SCHEDULED", "customer": "c-3"}, (18, 8)),
        ({"due_from": "2027-03-01T00:00Z", "due_to": "2027-03-05T00:00Z"}, (22, 21, 20)),
        ({"account": "nobody"}, ()),
        ({"reminder": "' OR 1=1 --"}, ()),
    ],
)
def test_filters_choose_and_pages_meet_each_once(
    api: Api, query: dict[str, str], numbers: tuple[int, ...], limit: int
) -> None:
    assert keys(api, limit=limit, **query) == expected(*numbers)


def test_without_a_filter_all_of_the_tenant_come_newest_first(api: Api) -> None:
    found = keys(api, limit=5)
    assert len(found) == len(set(found)) == MANY + 1
    assert [key for key in found if key.endswith("email")] == expected(*range(MANY - 1, -1, -1))


def test_pieces_of_the_ids_may_be_empty_and_lead_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SPAN", 2)
    monkeypatch.setattr(listing, "SPANS_MAX", 2)
    first = listed(api, category="payment", state="CANCELLED", limit=1).ok()
    assert first["next"] is not None
    assert keys(api, limit=2, category="payment", state="CANCELLED") == expected(21, 15, 9, 3)


def test_what_people_have_is_found(api: Api) -> None:
    assert keys(api, find="+1 202 555 0147") == []
    assert keys(api, find="tel:+1-202-555-0123") == ["r-4:c-4:sms"]
    assert len(keys(api, find="ANN@example.com", limit=4)) == MANY
    assert listed(api, find="x", state="DEAD").problem["field"] == "find"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": 10**9}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"state": "LOST"}, "state"),
        ({"channel": "fax"}, "channel"),
        ({"due_from": "soon"}, "due_from"),
        ({"due_from": "2027-03-05T00:00Z", "due_to": "2027-03-01T00:00Z"}, "due_to"),
        ({"due_from": "2027-03-05T00:00Z", "due_to": "2029-03-01T00:00Z"}, "due_to"),
        ({"customer": "x" * 300}, "customer"),
    ],
)
def test_a_filter_that_cannot_be(api: Api, query: dict[str, object], field: str) -> None:
    assert listed(api, **query).problem["field"] == field


def test_a_cursor_leads_nowhere_in_another_query(api: Api) -> None:
    cursor = listed(api, group="odd", limit=2).ok()["next"]
    assert listed(api, group="odd", limit=9, cursor=cursor).status == 200
    foreign = [
        listed(api, group="even", cursor=cursor),
        listed(api, cursor=cursor),
        listed(api, group="odd", cursor=cursor[:-1] + ("A" if cursor[-1] != "A" else "B")),
        listed(api, group="odd", cursor="bm9ib2R5"),
        listed(api, group="odd", cursor="é"),
        api.get(f"/v1/deliveries?group=odd&cursor={cursor}", token=api.key(tenant="acme")),
    ]
    assert [(answer.status, answer.problem["code"]) for answer in foreign] == [(400, "bad_cursor")] * 6


def test_a_delivery_has_its_story_and_its_ledger(api: Api) -> None:
    delivery = api.get("/v1/deliveries/r-1:c-1:email").ok()
    assert (delivery["state"], delivery["reason"]) == ("CANCELLED", "paid")
    told = api.get("/v1/deliveries/r-1:c-1:email/story").ok()
    assert (told["reminder"], len(told["moments"]), told["said"]) == ("r-1", 2, None)
    assert "ann@" not in str(told)
    ledger = api.get("/v1/deliveries/r-1:c-1:email/ledger").ok()
    assert [entry["event"] for entry in ledger["entries"]] == ["scheduled", "cancelled"]
    assert ledger["head"] == ledger["entries"][-1]["hash"]


def test_an_id_with_anything_in_it_is_reached(api: Api) -> None:
    id_ = "a:b%c/d e?f#g/story"
    (result,) = api.post("/v1/reminders", {"reminders": [reminder(id_)]}).ok()["results"]
    (key,) = result["keys"]
    for suffix in ("", "/story", "/ledger"):
        assert api.get(f"/v1/deliveries/{quote(key, safe='')}{suffix}").ok()["key"] == key


@pytest.mark.parametrize("suffix", ["", "/story", "/ledger"])
@pytest.mark.parametrize("key", ["r-0:c-0:sms", "r-0", "a:b:fax", "%00", "%ED%A0%80:a:sms", "..%2F..", "%25"])
def test_what_is_not_there_is_not_found(api: Api, key: str, suffix: str) -> None:
    assert api.get(f"/v1/deliveries/{key}{suffix}").problem["code"] == "not_found"


@pytest.mark.parametrize("suffix", ["", "/story", "/ledger"])
def test_what_another_tenant_has_is_not_there(api: Api, suffix: str) -> None:
    token = api.key(tenant="acme")
    assert api.get(f"/v1/deliveries/r-0:c-0:email{suffix}", token=token).status == 200  # its own
    assert api.get(f"/v1/deliveries/r-9:c-4:email{suffix}", token=token).status == 404
    assert len(api.get("/v1/deliveries", token=token).ok()["deliveries"]) == 3
    assert api.get("/v1/deliveries?customer=c-4", token=token).ok()["deliveries"] == []


@pytest.mark.parametrize(
    ("view", "index"),
    [
        ("view_list_span", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("view_list_customer", "delivery_customer"),
        ("view_list_reminder", "delivery_reminder"),
        ("view_list_group", "delivery_reminder"),
        ("view_list_due", "delivery_due"),
    ],
)
def test_each_list_goes_by_its_index(api: Api, view: str, index: str) -> None:
    if api.app.settings.store_url.kind is StoreKind.POSTGRESQL:
        return
    raw = apsw.Connection(str(api.app.settings.path.parent / "store.db"), flags=apsw.SQLITE_OPEN_READONLY)
    texts = ("tenant", "reminder", "customer", "group", "channel", "account", "category", "state")
    names = dict.fromkeys(texts, "")
    numbers = dict.fromkeys(("before", "floor", "since", "until", "after_due", "after_id", "limit"), 1)
    plan = raw.execute(f"EXPLAIN QUERY PLAN {expand(TOKENS)[view]}", {**names, **numbers}).fetchall()
    raw.close()
    text = " ".join(str(row[3]) for row in plan)
    assert index in text, text
