"""The page behind an unsubscription link, over HTTP: a look changes nothing, a click does, without a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sendonce.core.unsubscribe import Unsubscription, unsubscribe_token
from tests.integration.api_world import Answer, Api, reminder, served

PREFIX = "/unsubscribe/"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with served(tmp_path) as api:
        yield api


def path_of(api: Api, category: str = "shipment", address: str = "ann@example.com") -> str:
    api.post("/v1/reminders", {"reminders": [reminder(email=address)]}).ok(200)
    (row,) = api.get("/v1/deliveries").ok()["deliveries"]
    tag = api.app.store.read(lambda tx: tx.deliveries.by_keys([("default", row["key"])]))[0].address_tag
    token = unsubscribe_token(api.app.store.secret, Unsubscription("default", tag, category))
    return PREFIX + token


def state(api: Api) -> str:
    (row,) = api.get("/v1/deliveries").ok()["deliveries"]
    return str(row["state"])


def post(api: Api, path: str, raw: bytes = b"List-Unsubscribe=One-Click", kind: str = "") -> Answer:
    kind = kind or "application/x-www-form-urlencoded"
    return api.ask("POST", path, raw=raw, token="", headers={"Content-Type": kind})


def test_a_look_changes_nothing_and_a_click_does(api: Api) -> None:
    path = path_of(api)
    page = api.ask("GET", path, token="")
    assert page.status == 200
    assert b'<form method="post">' in page.body
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "set-cookie" not in page.headers
    assert api.ask("HEAD", path, token="").status == 200
    assert state(api) == "SCHEDULED"
    done = post(api, path)
    assert done.status == 200, "RFC 8058: no redirect"
    assert state(api) == "SUPPRESSED"
    assert b"ann@example.com" not in page.body + done.body


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", ""),
        (
            b'--x\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--x--',
            "multipart/form-data; boundary=x",
        ),
        (b"anything else", "text/plain"),
    ],
)
def test_how_a_click_is_written_does_not_matter(api: Api, raw: bytes, kind: str) -> None:
    assert post(api, path_of(api), raw, kind).status == 200
    assert state(api) == "SUPPRESSED"


def test_a_click_again_is_answered_the_same_and_a_flood_is_slowed(api: Api) -> None:
    path = path_of(api)
    assert [post(api, path).status for _ in range(2)] == [200, 200]
    statuses = {post(api, path).status for _ in range(30)}
    assert 429 in statuses
    assert post(api, path_of_another(api)).status == 200, "others are not slowed by it"


def path_of_another(api: Api) -> str:
    what = Unsubscription("acme", "ab" * 16, "shipment")
    return PREFIX + unsubscribe_token(api.app.store.secret, what)


def test_what_is_not_ours_is_refused(api: Api) -> None:
    path = path_of(api)
    for wrong in (path[:-1], path + "A", "/unsubscribe/", "/unsubscribe/x", path + "/x", "/unsubscribe/%00"):
        for method in ("GET", "POST"):
            assert api.ask(method, wrong, token="").status == 404, wrong
    other = api.ask("PUT", path, token="")
    assert (other.status, other.headers["allow"]) == (405, "GET, HEAD, POST")
    assert post(api, path, b"x" * 100_000).status == 413
    assert state(api) == "SCHEDULED"
    assert api.ask("GET", "/unsubscribe", token="").status == 401, "everything else needs a key"
