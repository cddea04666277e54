"""`sendonce.Client` over HTTP: the same calls, answers and errors as on a store."""

from __future__ import annotations

import http.client
import io
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sendonce import Asked, Client
from sendonce import remote as module
from sendonce.core.access import Scope
from sendonce.core.errors import ConfigError, InvalidInput, NotFound, Refused, StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.core.reminder import COLUMNS
from sendonce.pipeline.importer import import_rows
from sendonce.pipeline.intake import Verdict
from sendonce.pipeline.story import Story
from sendonce.remote import Remote
from sendonce.table_file import TableFile
from tests.integration.api_world import Api, reminder, served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("api")) as made:
        yield made


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{api.port}", key=api.token) as made:
        yield made


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("sendonce.remote.time.sleep", waited.append)
    return waited


def test_each_reminder_has_its_own_answer_in_its_place(client: Client) -> None:
    due = datetime(2030, 1, 2, 9, 0, tzinfo=UTC)
    given: list[Any] = [
        reminder("h-1"),
        reminder("h-2", email="nobody"),
        reminder("h-3", nonsense=1),
        reminder("h-4", due=due),
        Asked(**reminder("h-5")),  # type: ignore[arg-type]
        reminder("h-6", data={"name": float("nan")}),
        reminder("h-1"),
    ]
    results = client.schedule(given)
    assert [(result.index, result.reminder, result.verdict) for result in results] == [
        (0, "h-1", Verdict.ACCEPTED),
        (1, "h-2", Verdict.INVALID),
        (2, "h-3", Verdict.INVALID),
        (3, "h-4", Verdict.ACCEPTED),
        (4, "h-5", Verdict.ACCEPTED),
        (5, "h-6", Verdict.INVALID),
        (6, "h-1", Verdict.UNCHANGED),
    ]
    assert [result.field for result in results] == ["", "email", "nonsense", "", "", "data", ""]
    assert results[0].keys == ("h-1:c-1:email",)
    assert "Europe/Berlin" in results[0].notes[0]


def test_places_hold_over_several_calls_and_plans(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMINDERS_IN_CALL", 3)
    plan = reminder("loan-1", due=None, plan="loan", date="2031-01-10", phone="+12025550123")
    many = [reminder(f"place-{number}") for number in range(7)]
    results = client.schedule([*many[:4], plan, *many[4:]])
    assert [(result.index, result.reminder) for result in results] == [
        (0, "place-0"), (1, "place-1"), (2, "place-2"), (3, "place-3"), (4, "loan-1/D-3"), (4, "loan-1/D+2"),
        (5, "place-4"), (6, "place-5"), (7, "place-6"),
    ]  # fmt: skip


def test_large_reminders_go_in_several_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 2_000)
    results = client.schedule([reminder(f"big-{n}", data={"name": "x" * 900}) for n in range(5)])
    assert [result.ok for result in results] == [True] * 5


def test_a_story_is_the_one_that_the_store_tells(api: Api, client: Client) -> None:
    client.schedule([reminder("told-1", phone="+12025550123", group="g")])
    client.cancel(delivery="told-1:c-1:email", reason="paid")

    def outer(story: Story) -> Story:
        inner = replace(story.delivery, id=0, reminder_id=0, address_tag="", head="")
        if inner.ended_at:
            inner = replace(inner, course=replace(inner.course, next_at=0))  # it is not looked at any more
        return replace(story, delivery=replace(inner, standing=replace(inner.standing, epoch=0)))

    local = Client.of(api.app)
    for name in ("told-1", "told-1:c-1:email"):
        assert [outer(each) for each in client.status(name)] == [outer(each) for each in local.status(name)]


def test_cancel_answers_truly_and_a_preview_changes_nothing(client: Client) -> None:
    client.schedule([reminder("stop-1", group="stop"), reminder("stop-2", group="stop")])
    assert client.cancel(group="stop", reason="paid", preview=True).changed == 2
    done = client.cancel(group="stop", reason="paid")
    assert (done.changed, done.counts) == (2, {"cancelled": 2})
    assert {(answer.state, answer.changed) for answer in done.answers} == {(State.CANCELLED, True)}
    assert client.cancel(group="stop", reason="paid").changed == 0


def test_what_an_import_created_is_taken_back_by_its_number(api: Api, client: Client) -> None:
    rows = "reminder,customer,email,due,template,name\n" + "".join(
        f"list-{n},c-1,ann@example.com,in 2h,hello,Ann\n" for n in (1, 2)
    )
    app = api.app
    table = TableFile(io.BytesIO(rows.encode()), COLUMNS)
    number = import_rows(app.store, app.policy, table, actor="test", book=app.book).import_id
    local = Client.of(api.app)
    assert local.cancel(import_number=number, reason="wrong list", preview=True).changed == 2
    assert client.cancel(import_number=number, reason="wrong list").counts == {"cancelled": 2}


def test_errors_are_those_of_the_store(api: Api, client: Client) -> None:
    with pytest.raises(NotFound, match="unheard-of"):
        client.status("unheard-of")
    with pytest.raises(NotFound):
        client.cancel(reminder="unheard-of", reason="x")
    with pytest.raises(InvalidInput, match="nothing named"):
        client.cancel(reason="x")
    with pytest.raises(InvalidInput) as invalid:
        client.cancel(reminder="r", reason="")
    assert invalid.value.field == "reason"
    url = f"http://127.0.0.1:{api.port}"
    with Client(url, key=api.key(Scope.READ)) as reader, pytest.raises(Refused) as refused:
        reader.cancel(reminder="r", reason="x")
    assert refused.value.code == "forbidden"
    with Client(url, key=f"so_{'a' * 12}_{'A' * 43}") as nobody, pytest.raises(Refused) as unknown:
        nobody.status("r")
    assert unknown.value.code == "unauthorized"
    assert "so_a" not in str(unknown.value)


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("http://", {"key": "k"}),
        ("http://user:secret@host", {"key": "k"}),
        ("http://host", {}),
        ("http://host", {"key": "a\nb"}),
        ("http://host", {"key": "k", "tenant": "acme"}),
        ("sqlite:///x.db", {"key": "k"}),
    ],
)
def test_an_address_or_a_key_that_cannot_be_one(url: str, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Client(url, **given)  # type: ignore[arg-type]


def test_a_service_that_is_away_is_asked_a_few_times(no_waiting: list[float]) -> None:
    with Client("http://127.0.0.1:9", key="k") as client, pytest.raises(StoreUnavailable, match="3 times"):
        client.schedule([reminder("away-1")])
    assert len(no_waiting) == 2


def test_a_limit_is_waited_for_as_long_as_the_service_says(api: Api, no_waiting: list[float]) -> None:
    with Client(f"http://127.0.0.1:{api.port}", key=api.key(rate=1)) as client:
        with pytest.raises(NotFound):
            client.status("none")
        with pytest.raises(NotFound):
            client.status("none")
        with pytest.raises(StoreUnavailable, match="answered 429"):
            client.status("none")
    assert all(1.0 <= wait_s <= module.WAIT_MAX_S for wait_s in no_waiting)


def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_is_done_twice(
    client: Client, monkeypatch: pytest.MonkeyPatch, no_waiting: list[float]
) -> None:
    client.schedule([reminder("lost-1")])
    real, calls = Remote._call, itertools.count()

    def lossy(self: Remote, *given: Any) -> Any:
        answer = real(self, *given)
        if next(calls) % 2 == 0:
            raise ConnectionResetError
        return answer

    monkeypatch.setattr(Remote, "_call", lossy)
    (result,) = client.schedule([reminder("lost-2")])
    assert result.verdict is Verdict.UNCHANGED  # it was in, and nobody had heard of it
    assert client.cancel(reminder="lost-1", reason="paid").changed == 1  # as it was answered before


def test_a_connection_that_the_service_has_closed_is_made_anew(api: Api, client: Client) -> None:
    client.schedule([reminder("idle-1")])
    assert client._remote is not None
    (idle,) = client._remote._idle
    assert isinstance(idle, http.client.HTTPConnection)
    assert idle.sock is not None
    idle.sock.shutdown(2)
    assert client.schedule([reminder("idle-1")])[0].verdict is Verdict.UNCHANGED


def test_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda n: client.schedule([reminder(f"many-{n}")])[0], range(40)))
    assert {result.verdict for result in results} == {Verdict.ACCEPTED}
    assert [result.reminder for result in results] == [f"many-{n}" for n in range(40)]
