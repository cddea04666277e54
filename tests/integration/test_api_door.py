"""The door of the API: keys, bounds, and how everything looks that is not done. Over real HTTP."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sendonce.api import accounts
from sendonce.api.door import Bounds
from sendonce.api.problems import TITLES
from sendonce.core.access import Scope
from sendonce.core.errors import StoreUnavailable
from sendonce.pipeline.api_keys import list_keys, revoke
from tests.integration.api_world import Api, served

BOUNDS = Bounds(bytes_max=2_000, bulk_bytes_max=8_000, open_bytes_max=16_000, open_max=8, body_s=0.5)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("api"), bounds=BOUNDS) as made:
        yield made


def test_probes_need_no_key_and_say_nothing_else(api: Api) -> None:
    assert (api.get("/healthz", token="").body, api.get("/readyz", token="").body) == (b"alive\n", b"ready\n")
    assert [api.ask("HEAD", path, token="").status for path in ("/healthz", "/readyz")] == [200, 200]


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/v1/deliveries", "/v1/nothing", "/", "/healthz/x"])
@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer x", f"Bearer so_{'a' * 12}_{'A' * 43}", "Basic YTpi", "Bearer " + "x" * 8_000],
)
def test_without_a_key_everything_is_401_and_the_same(api: Api, path: str, authorization: str) -> None:
    answer = api.get(path, token="", headers={"Authorization": authorization} if authorization else {})
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.body == api.get("/v1/x", token="").body
    assert answer.problem["code"] == "unauthorized"


def test_two_keys_in_one_request_are_none(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=5)
    connection.putrequest("GET", "/v1/openapi.json")
    for token in (api.token, api.key()):
        connection.putheader("Authorization", f"Bearer {token}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_a_revoked_key_is_out_within_a_second_and_an_expired_one_at_once(api: Api) -> None:
    token = api.key()
    api.get("/v1/openapi.json", token=token).ok()
    revoke(api.app.store, token[3:15], reason="leaked", actor="test")
    until = time.monotonic() + 1.5
    while api.get("/v1/openapi.json", token=token).status == 200:
        assert time.monotonic() < until
    ended = api.key()
    api.app.store.write(lambda tx: tx.api_keys.expire(ended[3:15], tx.now)).result()
    assert api.get("/v1/openapi.json", token=ended).status == 401


def test_that_a_key_was_used_is_kept(api: Api) -> None:
    token = api.key()
    api.get("/v1/openapi.json", token=token).ok()
    api.app.store.write(lambda tx: None).result()  # behind what the door wrote
    used = {key.prefix: key.used_at for key in list_keys(api.app.store)}
    assert used[token[3:15]] > 0


def test_a_key_that_asks_too_often_is_told_when_to_come_again(api: Api) -> None:
    token, other = api.key(rate=1), api.key(rate=1)
    answers = [api.get("/v1/openapi.json", token=token) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) >= 1
    assert answers[2].problem["code"] == "rate_limited"
    api.get("/v1/openapi.json", token=other).ok()  # each has its own


def test_nothing_there_and_no_such_method_are_problems(api: Api) -> None:
    assert api.get("/v1/nothing").problem["code"] == "not_found"
    answer = api.ask("DELETE", "/v1/deliveries")
    assert (answer.problem["code"], answer.headers["allow"]) == ("method_not_allowed", "GET")
    for path, allowed in {
        "/v1/keys": "GET, POST",
        "/v1/reminders/r-1": "GET, PATCH",
        "/readyz": "GET, HEAD",
    }.items():
        assert api.ask("PUT", path).headers["allow"] == allowed


@pytest.mark.parametrize(
    ("headers", "raw", "code"),
    [
        ({"Content-Type": "text/plain"}, b"{}", "unsupported_media_type"),
        ({"Content-Type": "application/json; charset=latin-1"}, b"{}", "unsupported_media_type"),
        ({"Content-Encoding": "gzip"}, b"{}", "unsupported_media_type"),
        ({}, b"x" * 2_001, "too_large"),
    ],
)
def test_a_body_that_is_not_wanted(api: Api, headers: dict[str, str], raw: bytes, code: str) -> None:
    answer = api.post("/v1/nothing", raw=raw, headers=headers)
    assert answer.problem["code"] == code


def test_a_body_that_says_its_length_wrong_or_not_at_all_is_bounded(api: Api) -> None:
    head = f"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"64\r\n" + b" " * 100 + b"\r\n"
    with socket.create_connection(("127.0.0.1", api.port), timeout=5) as raw:
        # At once: it is closed while the rest would be on its way.
        raw.sendall(head.encode() + 30 * chunk + b"0\r\n\r\n")
        assert b" 413 " in raw.recv(1_000)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=5) as raw:
        head = f"POST /v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
        head += "Content-Length: 9\r\n\r\n"
        raw.sendall(head.encode() + b"{")
        assert b" 408 " in raw.recv(1_000)
    api.get("/v1/openapi.json").ok()  # and its room is free again


def test_more_bodies_than_there_is_room_for_are_put_off(api: Api) -> None:
    """Two slow senders of large bodies take the room of all; a third is told at once, and later served."""
    open_: list[socket.socket] = []
    try:
        for _ in range(2):
            raw = socket.create_connection(("127.0.0.1", api.port), timeout=5)
            head = (
                f"POST /v1/reminders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
                "Content-Type: application/json\r\nContent-Length: 8000\r\n\r\n"
            )
            raw.sendall(head.encode())
            open_.append(raw)
        for raw in open_:
            raw.sendall(b" ")
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda _: api.post("/v1/nothing", {"a": "b" * 900}), range(12)))
        assert {answer.status for answer in answers} <= {503, 404}
        busy = [answer for answer in answers if answer.status == 503]
        assert busy
        assert (busy[0].problem["code"], busy[0].headers["retry-after"]) == ("busy", "1")
    finally:
        for raw in open_:
            raw.close()


def test_a_store_that_is_away_is_503_with_a_time_and_nobody_is_let_in(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = api.key()

    def away(*_: object) -> None:
        raise StoreUnavailable("the disk of server-7 is gone")

    monkeypatch.setattr(type(api.app.store), "read", away)
    answer = api.get("/v1/openapi.json", token=token)
    assert (answer.problem["code"], answer.headers["retry-after"]) == ("store_unavailable", "2")
    assert b"server-7" not in answer.body
    until = time.monotonic() + 1.5  # it is asked at most once a second
    while (ready := api.get("/readyz", token="")).status == 200:
        assert time.monotonic() < until
    assert ready.body == b"not ready: store\n"
    assert api.get("/healthz", token="").status == 200


def test_a_bug_says_that_it_is_one_and_nothing_of_what_it_choked_on(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known, token = api.key(), api.key()

    def bug(*_: object) -> None:
        raise KeyError("ann@example.com")

    monkeypatch.setattr(accounts, "overview", bug)
    within = api.get("/v1/accounts", token=known)
    monkeypatch.setattr(type(api.app.store), "read", bug)
    at_the_door = api.get("/v1/openapi.json", token=token)
    for answer in (within, at_the_door):
        assert (answer.status, answer.problem["code"]) == (500, "bug")
        assert b"ann" not in answer.body
    assert "ann" not in caplog.text, "nor in what the server itself would write of it"


def test_a_stop_lets_open_requests_end_and_takes_no_more(tmp_path: Path) -> None:
    with served(tmp_path) as api:
        assert api.get("/readyz", token="").status == 200
    with pytest.raises(ConnectionRefusedError):
        api.get("/healthz", token="")


def test_an_answer_does_not_wait_for_an_acknowledgement(api: Api) -> None:
    """With the 40 ms of a delayed acknowledgement each, a hundred on one connection take four seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=5)
    begun = time.monotonic()
    for _ in range(100):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    connection.close()
    assert time.monotonic() - begun < 3.0


def test_every_problem_has_a_status_of_its_own_kind() -> None:
    assert all(400 <= status < 600 and title for status, title in TITLES.values())


def test_a_key_without_the_scope_is_told_which(api: Api) -> None:
    token = api.key(Scope.CANCEL)
    answer = api.get("/v1/keys", token=token)
    assert (answer.status, answer.problem["scope"]) == (403, "admin")
