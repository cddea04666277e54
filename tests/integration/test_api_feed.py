"""The feed over HTTP and from Python: pages, waiting, what is refused; and what else an application asks for
after the fact: imports, seals, sending again."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sendonce import Client
from sendonce.api import feed
from sendonce.core.access import Scope
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.reminder import COLUMNS
from sendonce.pipeline.importer import import_rows
from sendonce.pipeline.sealer import Sealer
from sendonce.table_file import TableFile
from tests.integration.api_world import Api, reminder, served


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("feed")
    if request.param == "sqlite":
        with served(folder) as made:
            yield made
        return
    schemas = request.getfixturevalue("postgres_schemas")
    url = schemas.take()
    with served(folder, url) as made:
        yield made
    schemas.give_back(url)


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{api.port}", key=api.token) as made:
        yield made


def end(api: Api, *ids: str) -> None:
    """Reminders that are cancelled at once."""
    api.post("/v1/reminders", {"reminders": [reminder(id_) for id_ in ids]}).ok()
    for id_ in ids:
        api.post("/v1/cancellations", {"reminder": id_, "reason": "paid"}).ok()


def here(api: Api) -> str:
    """A cursor behind all that is there."""
    cursor = ""
    while (page := api.get(f"/v1/events?limit=1000&after={cursor}").ok())["more"] or page["events"]:
        cursor = page["cursor"]
    return str(page["cursor"])


def test_ends_come_in_order_page_by_page_and_each_once(api: Api) -> None:
    cursor = here(api)
    end(api, "f-1", "f-2", "f-3")
    found = []
    for _ in range(2):
        page = api.get(f"/v1/events?limit=2&after={cursor}").ok()
        found += page["events"]
        cursor = page["cursor"]
    assert [each["reminder"] for each in found] == ["f-1", "f-2", "f-3"]
    assert {(e["kind"], e["event"], e["state"], e["over"], e["reason"]) for e in found} == {
        ("disposition", "cancelled", "CANCELLED", True, "paid")
    }
    assert found[0]["id"].startswith("f-1:c-1:email/")
    assert api.get(f"/v1/events?after={cursor}").ok()["events"] == []


def test_whoever_waits_is_answered_when_something_comes(api: Api) -> None:
    cursor = here(api)
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(api.get(f"/v1/events?wait=20&after={cursor}").ok())
    )
    waiting.start()
    end(api, "w-1")
    waiting.join()
    assert [each["reminder"] for each in answers[0]["events"]] == ["w-1"]


def test_where_nothing_comes_the_answer_is_empty_and_the_cursor_holds(api: Api) -> None:
    cursor = here(api)
    page = api.get(f"/v1/events?wait=0.3&after={cursor}").ok()
    assert (page["events"], page["more"]) == ([], False)
    end(api, "w-2")
    assert api.get(f"/v1/events?after={page['cursor']}").ok()["events"][0]["reminder"] == "w-2"


def test_more_that_wait_than_there_is_room_for_are_told_to_come_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_waiting", threading.BoundedSemaphore(1))
    cursor = here(api)
    with feed._waiting:
        problem = api.get(f"/v1/events?wait=5&after={cursor}").problem
        assert problem["code"] == "busy"
        assert api.get(f"/v1/events?after={cursor}").ok()["events"] == []


def test_a_stop_does_not_wait_for_those_that_wait(tmp_path: Path) -> None:
    answers: list[Any] = []
    with served(tmp_path) as api:
        cursor = here(api)
        waiting = threading.Thread(
            target=lambda: answers.append(api.get(f"/v1/events?wait=25&after={cursor}"))
        )
        waiting.start()
        _until(lambda: feed._waiting._value < feed.WAITING_MAX)
        begun = time.monotonic()
    waiting.join()
    assert answers[0].status in (200, 503)
    assert time.monotonic() - begun < feed.WAIT_MAX_S / 2


def _until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("after=made-up", 400, "bad_cursor"),
        ("limit=0", 422, "invalid_input"),
        ("limit=-1", 422, "invalid_input"),
        ("limit=1000000000", 422, "invalid_input"),
        ("limit=x", 422, "invalid_input"),
        ("wait=-1", 422, "invalid_input"),
        ("wait=26", 422, "invalid_input"),
        ("wait=nan", 422, "invalid_input"),
        ("since=yesterday-ish", 422, "invalid_input"),
    ],
)
def test_what_cannot_be_asked(api: Api, query: str, status: int, code: str) -> None:
    problem = api.get(f"/v1/events?{query}").problem
    assert (problem["status"], problem["code"]) == (status, code)


def test_a_cursor_of_another_tenant_or_another_list_is_refused(api: Api) -> None:
    end(api, "t-1")
    cursor = here(api)
    other = api.key(tenant="acme")
    assert api.get(f"/v1/events?after={cursor}", token=other).problem["code"] == "bad_cursor"
    assert api.get(f"/v1/deliveries?cursor={cursor}").problem["code"] == "bad_cursor"
    page = api.get("/v1/deliveries?limit=1").ok()
    if page["next"]:
        assert api.get(f"/v1/events?after={page['next']}").problem["code"] == "bad_cursor"
    assert api.get("/v1/events", token=other).ok()["events"] == []


def test_what_is_gone_says_how_to_go_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = here(api)
    api.app.store.write(lambda tx: tx.set_meta("epoch", str(tx.epoch + 1))).result()
    problem = api.get(f"/v1/events?after={cursor}").problem
    assert (problem["status"], problem["code"]) == (410, "events_gone")
    assert "since=" in problem["detail"]


# From Python


def test_the_client_follows_it_over_http_and_on_the_store(api: Api, client: Client) -> None:
    cursor = here(api)
    end(api, "p-1", "p-2")
    page = client.events(after=cursor, limit=1, wait_s=5)
    with Client.of(api.app) as local:
        assert local.events(after=cursor, limit=1) == page
        rest = local.events(after=page.cursor, wait_s=1)
    assert [each.reminder for each in (*page.told, *rest.told)] == ["p-1", "p-2"]
    since = datetime.now(UTC) - timedelta(hours=1)
    assert {"p-1", "p-2"} <= {each.reminder for each in client.events(since=since, limit=1000).told}
    with pytest.raises(InvalidInput):
        client.events(after="x")
    with pytest.raises(InvalidInput, match="no offset"):
        client.events(since=datetime(2026, 12, 1))  # noqa: DTZ001


def test_what_ended_is_sent_again_once(api: Api, client: Client) -> None:
    end(api, "again")
    first = client.again("again:c-1:email", reason="deleted")
    assert (first.verdict.value, first.reminder, first.keys) == (
        "accepted",
        "again/again-1",
        ("again/again-1:c-1:email",),
    )
    assert client.again("again:c-1:email", reason="deleted").verdict.value == "unchanged"
    (linked,) = api.get("/v1/reminders/again%2Fagain-1").ok()["reminders"]
    assert linked["linked"] == "again:c-1:email"
    with pytest.raises(Refused, match="still on its way"):
        client.again("again/again-1:c-1:email", reason="deleted")
    with pytest.raises(NotFound):
        client.again("nothing:c-1:email", reason="deleted")
    other = api.key(tenant="acme")
    asked = {"delivery": "again:c-1:email", "reason": "x"}
    assert api.post("/v1/repetitions", asked, token=other).problem["status"] == 404


# Imports and seals


def imported(api: Api, *ids: str) -> int:
    rows = "reminder,customer,email,due,template,name\n" + "".join(
        f"{id_},c-1,ann@example.com,in 2h,hello,Ann\n" for id_ in ids
    )
    app = api.app
    table = TableFile(io.BytesIO(rows.encode()), COLUMNS)
    return import_rows(app.store, app.policy, table, actor="test", file="list.csv", book=app.book).import_id


def test_an_import_is_listed_read_and_undone(api: Api) -> None:
    numbers = [imported(api, f"i-{n}", f"j-{n}") for n in range(3)]
    first = api.get("/v1/imports?limit=2").ok()
    second = api.get(f"/v1/imports?limit=2&cursor={first['next']}").ok()
    listed = [each["number"] for each in (*first["imports"], *second["imports"])]
    assert listed[:3] == numbers[::-1]
    one = api.get(f"/v1/imports/{numbers[0]}").ok()
    assert (one["file"], one["counts"]["accepted"], one["undone_at"]) == ("list.csv", 2, None)
    undone = api.post("/v1/import-undos", {"number": numbers[0], "reason": "wrong list"}).ok()
    assert (undone["complete"], undone["counts"]) == (True, {"cancelled": 2})
    assert api.get(f"/v1/imports/{numbers[0]}").ok()["undone_at"]
    preview = {"import": str(numbers[1]), "reason": "x", "preview": True}
    assert api.post("/v1/cancellations", preview).ok()["counts"] == {"cancelled": 2}
    other = api.key(tenant="acme")
    assert api.get(f"/v1/imports/{numbers[0]}", token=other).problem["status"] == 404
    asked = {"number": numbers[1], "reason": "x"}
    assert api.post("/v1/import-undos", asked, token=other).problem["status"] == 404


def test_an_undo_that_takes_long_is_answered_and_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from sendonce.api import imports
    from sendonce.pipeline import importer

    number = imported(api, *(f"u-{n}" for n in range(5)))
    monkeypatch.setattr(importer, "PAGE", 2)
    monkeypatch.setattr(imports, "RUN_S", 0.0)
    asked = {"number": number, "reason": "wrong list"}
    first = api.post("/v1/import-undos", asked).ok()
    assert (first["complete"], first["counts"]) == (False, {"cancelled": 2})
    monkeypatch.setattr(imports, "RUN_S", 20.0)
    rest = api.post("/v1/import-undos", asked).ok()
    assert rest["complete"] is True
    assert api.get("/v1/reminders/u-4").ok()["reminders"][0]["deliveries"][0]["state"] == "CANCELLED"


def test_how_far_the_ledger_is_sealed(api: Api) -> None:
    end(api, "s-1")
    Sealer(api.app.store, None, every_s=10).seal_one()
    seals = api.get("/v1/seals").ok()
    assert seals["block"] >= 1
    assert seals["sealed_upto"] > 0
    assert len(seals["hash"]) == 64
    before = seals["acts_sealed_upto"] + seals["unsealed_acts"]
    assert (seals["unsealed"], seals["unsealed_acts"]) == (0, 0)
    api.post("/v1/pauses", {"what": "group", "name": "loan-7", "reason": "wrong text"}).ok()
    seals = api.get("/v1/seals").ok()
    assert (seals["acts_sealed_upto"], seals["unsealed_acts"]) == (before, 1)
    assert api.get("/v1/seals", token=api.key(Scope.READ)).problem["status"] == 403


def test_a_ledger_says_whether_its_chain_holds(api: Api) -> None:
    end(api, "v-1")
    assert api.get("/v1/deliveries/v-1:c-1:email/ledger").ok()["fault"] == ""


# Lists


@pytest.mark.parametrize("what", ["accounts", "keys", "pauses"])
def test_every_list_comes_in_pages_that_meet_each_once(api: Api, what: str) -> None:
    for number in range(3):
        api.key(Scope.READ)
        api.post("/v1/pauses", {"what": "group", "name": f"g-{number}", "reason": "x"}).ok()
    whole = api.get(f"/v1/{what}?limit=500").ok()
    assert whole["next"] is None
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(f"/v1/{what}?limit=1&cursor={cursor}").ok()
        assert len(page[what]) == 1
        found += page[what]
        cursor = page["next"]
    names = [each.get("prefix") or each["name"] for each in found]
    assert names == [each.get("prefix") or each["name"] for each in whole[what]]
    assert len(set(names)) == len(names) >= 2
    for query in ("limit=0", "limit=-1", "limit=1000000000"):
        assert api.get(f"/v1/{what}?{query}").problem["field"] == "limit"
    assert api.get(f"/v1/{what}?cursor=AAAA").problem["code"] == "bad_cursor"
