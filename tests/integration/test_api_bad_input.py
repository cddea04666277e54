"""What comes in and must not: each of it a clear problem document, on every resource, and nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest

from sendonce.core.access import Scope
from tests.integration.api_world import Api, reminder, served

KEY: Final = "mine:c-1:email"
LISTS: Final = {
    "/v1/deliveries": "cursor",
    "/v1/dead-letters": "cursor",
    "/v1/uncertain": "cursor",
    "/v1/passes": "cursor",
    "/v1/templates": "cursor",
    "/v1/imports": "cursor",
    "/v1/accounts": "cursor",
    "/v1/pauses": "cursor",
    "/v1/keys": "cursor",
    "/v1/preferences": "cursor",
    "/v1/events": "after",
}
"""Every list that comes in pages, and what it calls its cursor."""
BODIES: Final = (
    ("POST", "/v1/reminders"),
    ("PATCH", "/v1/reminders/mine"),
    ("POST", "/v1/cancellations"),
    ("POST", "/v1/template-previews"),
    ("POST", "/v1/preferences"),
    ("POST", "/v1/pauses"),
    ("POST", "/v1/keys"),
    ("POST", "/v1/repetitions"),
    ("POST", "/v1/passes"),
)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("bad")
    if request.param == "sqlite":
        with served(folder) as made:
            yield filled(made)
        return
    schemas = request.getfixturevalue("postgres_schemas")
    url = schemas.take()
    with served(folder, url) as made:
        yield filled(made)
    schemas.give_back(url)


def filled(api: Api) -> Api:
    api.post("/v1/reminders", {"reminders": [reminder("mine"), reminder("mine-too")]}).ok()
    for number in range(2):
        api.post("/v1/pauses", {"what": "group", "name": f"g-{number}", "reason": "x"}).ok()
    return api


@pytest.mark.parametrize(("method", "path"), BODIES)
@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "JSON (RFC 8259)"),
        (b'{"a": 1,}', "JSON (RFC 8259)"),
        (b"{'a': 1}", "JSON (RFC 8259)"),
        (b'{"a": \xff}', "not UTF-8"),
        ('{"reason": "x"}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": NaN}', "no number in JSON"),
        (b'{"a": -Infinity}', "no number in JSON"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "number"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than 32 deep"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"b": {"a": 1, "\\u0061": 2}}', "'a' stands twice"),
    ],
    ids=lambda value: value[:16] if isinstance(value, bytes) else "",
)
def test_json_that_cannot_be_read(api: Api, method: str, path: str, raw: bytes, said: str) -> None:
    problem = api.ask(method, path, raw=raw).problem
    assert (problem["status"], problem["code"]) == (400, "bad_json")
    assert said in problem["detail"]


def test_two_values_under_one_name_are_not_guessed_from(api: Api) -> None:
    """Of two customers, one of which is paid: whoever takes the first or the last may be wrong."""
    raw = b'{"reminders": [{"reminder": "two", "customer": "c-1", "customer": "c-2", "template": "hello"}]}'
    problem = api.post("/v1/reminders", raw=raw).problem
    assert (problem["code"], problem["detail"]) == (
        "bad_json",
        "'customer' stands twice in one object: leave one of them out",
    )
    assert api.get("/v1/reminders/two").status == 404


@pytest.mark.parametrize(("method", "path"), BODIES)
def test_a_body_that_is_too_large(api: Api, method: str, path: str) -> None:
    bulk = path in ("/v1/reminders", "/v1/preferences")
    size = (16 * 1024 if bulk else 256) * 1024 + 1
    headers = {"Content-Length": str(size)}
    problem = api.ask(method, path, raw=b"{}", headers=headers).problem
    assert (problem["status"], problem["code"]) == (413, "too_large")


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("limit", ["0", "-1", "1000000000", "1e3", "", "x", "1.5", "99999999999999999999999"])
def test_a_limit_that_cannot_be(api: Api, path: str, limit: str) -> None:
    problem = api.get(f"{path}?limit={limit}{SUBJECT.get(path, '')}").problem
    assert (problem["status"], problem["code"], problem["field"]) == (422, "invalid_input", "limit")


SUBJECT: Final = {"/v1/preferences": "&address=ann@example.com"}


@pytest.mark.parametrize("path", LISTS)
def test_a_cursor_of_another_query_leads_nowhere(api: Api, path: str) -> None:
    """Each list refuses the cursor of every other, one that was changed, and that of another tenant."""
    name, subject = LISTS[path], SUBJECT.get(path, "")
    foreign = {each: cursor for each in LISTS if each != path and (cursor := a_cursor(api, each))}
    assert len(foreign) >= 3
    for cursor in [*foreign.values(), "x", "%00", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]:
        problem = api.get(f"{path}?{name}={cursor}{subject}").problem
        assert (problem["status"], problem["code"]) == (400, "bad_cursor"), cursor
    own = a_cursor(api, path)
    if own:
        other = api.get(f"{path}?{name}={own}{subject}", token=api.key(tenant="acme"))
        assert other.problem["code"] == "bad_cursor"
        changed = own[:-2] + ("A" if own[-2] != "A" else "B") + own[-1]
        assert api.get(f"{path}?{name}={changed}{subject}").problem["code"] == "bad_cursor"


def a_cursor(api: Api, path: str) -> str:
    """The cursor that a list gives; "" where it has one page only."""
    page: dict[str, Any] = api.get(f"{path}?limit=1{SUBJECT.get(path, '')}").ok()
    return str(page.get("cursor") or page.get("next") or "")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/reminders/mine", None),
        ("PATCH", "/v1/reminders/mine", {"due": "in 5h"}),
        ("GET", f"/v1/deliveries/{quote(KEY)}", None),
        ("GET", f"/v1/deliveries/{quote(KEY)}/story", None),
        ("GET", f"/v1/deliveries/{quote(KEY)}/ledger", None),
        ("GET", f"/v1/dead-letters/{quote(KEY)}", None),
        ("POST", "/v1/cancellations", {"delivery": KEY, "reason": "x"}),
        ("POST", "/v1/cancellations", {"reminder": "mine", "reason": "x"}),
        ("POST", "/v1/repetitions", {"delivery": KEY, "reason": "x"}),
        ("GET", "/v1/imports/1", None),
        ("POST", "/v1/import-undos", {"number": 1, "reason": "x"}),
        ("DELETE", "/v1/keys/PREFIX?reason=x", None),
        ("POST", "/v1/key-rotations", {"prefix": "PREFIX", "reason": "x"}),
    ],
)
def test_what_another_tenant_has_is_404_and_stays_as_it_is(
    api: Api, method: str, path: str, body: dict[str, object] | None
) -> None:
    prefix = next(each["prefix"] for each in api.get("/v1/keys").ok()["keys"])
    filled_in = None if body is None else {n: prefix if v == "PREFIX" else v for n, v in body.items()}
    before = api.get("/v1/reminders/mine").ok()
    other = api.key(tenant="acme")
    problem = api.ask(method, path.replace("PREFIX", prefix), filled_in, token=other).problem
    assert (problem["status"], problem["code"]) == (404, "not_found")
    assert api.get("/v1/reminders/mine").ok() == before


def test_nothing_of_another_tenant_is_in_any_list(api: Api) -> None:
    other = api.key(tenant="acme")
    for path in ("/v1/deliveries", "/v1/pauses", "/v1/imports", "/v1/dead-letters", "/v1/events"):
        page = api.get(path, token=other).ok()
        assert [value for value in page.values() if isinstance(value, list)] == [[]], path


@pytest.mark.parametrize("path", [*LISTS, "/v1/seals", "/v1/reminders/mine"])
def test_a_key_without_the_scope_learns_which_and_nothing_else(api: Api, path: str) -> None:
    problem = api.get(f"{path}?limit=1", token=api.key(Scope.SCHEDULE)).problem
    assert (problem["status"], problem["code"]) == (403, "forbidden")
    assert problem["scope"] in {each.value for each in Scope}


def test_a_channel_without_an_address_is_not_taken_for_a_filter(api: Api) -> None:
    assert api.get("/v1/preferences?channel=sms").problem["field"] == "channel"
