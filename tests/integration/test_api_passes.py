"""Passes over HTTP: late, twice, together, killed, signed. On both stores."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sendonce.api import passes as module
from sendonce.core.access import Scope
from sendonce.pipeline.pause import Scope as PauseScope
from sendonce.pipeline.pause import Target, pause, resume
from tests.integration.api_world import Api, reminder, served


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


def due_now(api: Api, name: str, count: int) -> None:
    given = [reminder(f"{name}-{number}", due="now") for number in range(count)]
    assert api.post("/v1/reminders", {"reminders": given}).ok()["counts"] == {"accepted": count}


def test_a_pass_publishes_once_and_a_second_one_changes_nothing(api: Api) -> None:
    due_now(api, "once", 3)
    first, second = api.post("/v1/passes", {"trigger": "cron"}), api.post("/v1/passes", raw=b"")
    assert len(first.body) < 4_096
    assert (first.ok()["counts"]["published"], first.ok()["complete"]) == (3, True)
    assert (second.ok()["counts"].get("published", 0), second.ok()["trigger"]) == (0, "http")
    assert api.get("/v1/deliveries/once-0:c-1:email").ok()["state"] == "QUEUED"


def test_passes_that_come_together_publish_each_once(api: Api) -> None:
    due_now(api, "many", 150)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: api.post("/v1/passes"), range(4)))
    assert sum(answer.ok()["counts"].get("published", 0) for answer in answers) == 150


def test_more_at_once_than_a_process_runs_are_told_to_come_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def acquire(self, *, blocking: bool) -> bool:
            return False

    monkeypatch.setattr(module, "_together", Full())
    answer = api.post("/v1/passes")
    assert (answer.status, answer.problem["code"], answer.headers["retry-after"]) == (503, "busy", "5")


def test_a_pass_that_ran_out_of_time_says_that_more_is_due(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    due_now(api, "late", 60)
    looks = iter([False])  # for the outbox; none is left for the pass
    monkeypatch.setattr(module, "_after", lambda _: lambda: next(looks, True))
    first = api.post("/v1/passes").ok()
    monkeypatch.undo()
    rest = api.post("/v1/passes").ok()
    assert (first["complete"], rest["complete"]) == (False, True)
    assert (first["counts"], rest["counts"]["published"]) == ({}, 60)


def test_while_the_scheduler_is_paused_a_pass_says_so(api: Api) -> None:
    due_now(api, "held", 1)
    target = Target(PauseScope.SCHEDULER)
    pause(api.app.store, target, api.app.policy, reason="prices", actor="test")
    answer = api.post("/v1/passes").ok()
    assert (answer["run"], answer["paused"], answer["held"]) == (None, True, False)
    resume(api.app.store, target, api.app.policy, reason="prices", actor="test")
    assert api.post("/v1/passes").ok()["counts"]["published"] == 1


def test_passes_are_kept_and_read_page_by_page(api: Api) -> None:
    runs = [api.post("/v1/passes", {"trigger": f"cron-{number}"}).ok()["run"] for number in range(4)]
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None and len(seen) < 4:
        page = api.get(f"/v1/passes?limit=3&cursor={cursor}").ok()
        seen += [each["run"] for each in page["passes"]]
        cursor = page["next"]
    assert seen[:4] == runs[::-1]
    one = api.get(f"/v1/passes/{runs[2]}").ok()
    assert (one["run"], one["trigger"]) == (runs[2], "cron-2")
    assert api.get("/v1/passes/999999").status == 404
    assert api.get("/v1/passes/0").problem["field"] == "run"


@pytest.mark.parametrize("trigger", ["", "x" * 41, "a\nb", 5])
def test_a_trigger_is_one_word(api: Api, trigger: object) -> None:
    assert api.post("/v1/passes", {"trigger": trigger}).problem["field"] == "trigger"


def test_only_an_operator_may_ask(api: Api) -> None:
    token = api.key(Scope.SCHEDULE, Scope.READ, Scope.CANCEL, Scope.ADMIN)
    assert api.post("/v1/passes", token=token).status == 403
    assert api.get("/v1/passes", token=token).status == 403


def signed(body: bytes, *, at: int, secret: str = "s3cret") -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, "sha256").hexdigest()


def test_where_a_secret_is_set_an_unsigned_pass_is_refused(tmp_path: Path) -> None:
    body = json.dumps({"trigger": "cron"}).encode()
    now = int(time.time())
    good = signed(body, at=now)
    wrong = signed(body, at=now, secret="other")
    with served(tmp_path, pass_secret="s3cret") as api:
        for header, status in (
            ("", 403),
            ("v1=x", 403),
            (f"t={now},v1={wrong}", 403),
            (f"t={now - 1},v1={good}", 403),
            (f"t={now - 400},v1={signed(body, at=now - 400)}", 403),
            (f"t={now + 400},v1={signed(body, at=now + 400)}", 403),
            (f"t={now},v1={signed(b'{}', at=now)}", 403),
            (f"t={now},v1={good}", 200),
            (f"t={now},v1={wrong},v1={good}", 200),
        ):
            answer = api.post(
                "/v1/passes", raw=body, headers={"Sendonce-Signature": header} if header else {}
            )
            assert answer.status == status, (header, answer.body)
            if status == 403:
                assert answer.problem["code"] == "bad_signature"
        api.get("/v1/passes").ok()  # only what does something is signed
        assert api.post("/v1/passes", raw=body, token="").status == 401  # a signature is no key
