"""The cases of others that come over HTTP, on both stores. docs/cases.md lists all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

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


def hand_in(api: Api, *reminders: dict[str, object]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = api.post("/v1/reminders", {"reminders": list(reminders)}).ok()["results"]
    return results


def found(api: Api, query: str) -> list[str]:
    return [each["key"] for each in api.get(f"/v1/deliveries?{query}").ok()["deliveries"]]


def test_cont_09_a_plus_in_a_query_means_nobody_else(api: Api) -> None:
    addresses = ("ann+may@example.com", "ann@example.com", "annmay@example.com")
    for number, address in enumerate(addresses):
        (said,) = hand_in(api, reminder(f"plus-{number}", customer=f"plus-{number}", email=address))
        assert said["verdict"] == "accepted"
    assert found(api, "find=ann%2Bmay@example.com") == ["plus-0:plus-0:email"]
    assert found(api, "find=ann+may@example.com") == [], "a blank is in no address, and nobody is guessed"
    assert found(api, urlencode({"find": addresses[0]})) == ["plus-0:plus-0:email"]


def test_api_07_the_same_request_in_other_words_changes_nothing(api: Api) -> None:
    """Members in another order, and blanks: another request to its key, and the same reminder."""
    headers = {"Idempotency-Key": "k-1"}
    one = reminder("words-1")
    first = api.post("/v1/reminders", {"reminders": [one]}, headers=headers)
    assert first.ok()["counts"] == {"accepted": 1}
    turned = json.dumps({"reminders": [dict(reversed(one.items()))]}, indent=3).encode()
    assert api.post("/v1/reminders", raw=turned, headers=headers).problem["code"] == "key_reused"
    anew = api.post("/v1/reminders", raw=turned, headers={"Idempotency-Key": "k-2"})
    assert anew.ok()["counts"] == {"unchanged": 1}
    assert found(api, "reminder=words-1") == ["words-1:c-1:email"]
    other = api.post("/v1/reminders", {"reminders": [{**one, "email": "bob@example.com"}]}, headers=headers)
    assert other.problem["code"] == "key_reused"
    (said,) = hand_in(api, {**one, "email": "bob@example.com"})
    assert said["verdict"] == "conflicting"


def test_api_09_pages_meet_what_was_there_throughout_once(api: Api) -> None:
    """25 of one instant, ten a page; after the first page one of it is taken back and three are added."""
    given = [reminder(f"page-{number}", group="pages", due="2027-03-01T09:00Z") for number in range(25)]
    hand_in(api, *given)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(f"/v1/deliveries?group=pages&limit=10&cursor={cursor}").ok()
        seen += [each["key"] for each in page["deliveries"]]
        if len(seen) == 10:
            api.post("/v1/cancellations", {"delivery": seen[3], "reason": "paid"}).ok()
            hand_in(api, *({**given[0], "reminder": f"page-new-{number}"} for number in range(3)))
        cursor = page["next"]
    assert sorted(seen) == sorted(f"page-{number}:c-1:email" for number in range(25))
    for query in ("limit=0", "limit=-1", "limit=1000000000", "cursor=bm9ib2R5", "cursor=%00"):
        assert 400 <= api.get(f"/v1/deliveries?group=pages&{query}").status < 500, query


@pytest.mark.parametrize("character", ["%00", "%ED%A0%80"], ids=["nul", "half"])
def test_cont_15_no_request_by_name_is_a_500(api: Api, character: str) -> None:
    """U+0000, and bytes that are no text: in paths and queries."""
    name = f"a{character}b"
    paths = [
        f"/v1/reminders/{name}",
        *(f"/v1/deliveries/{name}:c-1:email{suffix}" for suffix in ("", "/story", "/ledger")),
        *(
            f"/v1/deliveries?{field}={name}"
            for field in ("find", "reminder", "customer", "group", "account", "category", "cursor")
        ),
        f"/v1/passes/{name}",
    ]
    answers = {path: api.get(path).status for path in paths}
    assert {path: status for path, status in answers.items() if not 200 <= status < 500} == {}


def test_cont_15_no_request_with_such_text_is_a_500(api: Api) -> None:
    for text in ('"a\\u0000"', '"a\\ud83d"'):
        bodies = {
            "/v1/cancellations": [
                f'{{"{what}": {text}, "reason": "paid"}}'
                for what in ("reminder", "customer", "group", "delivery")
            ]
            + [f'{{"reminder": "r-1", "reason": {text}}}'],
            "/v1/passes": [f'{{"trigger": {text}}}'],
            "/v1/keys": [f'{{"name": {text}, "scopes": ["read"]}}'],
            "/v1/reminders": [f'{{"reminders": {text}}}', f'{{"reminders": [{{"reminder": {text}}}]}}'],
        }
        for path, raws in bodies.items():
            for raw in raws:
                assert 200 <= api.post(path, raw=raw.encode()).status < 500, (path, raw)


def test_time_11_what_is_beyond_the_horizon_is_refused_and_never_cut(api: Api) -> None:
    (said,) = hand_in(api, reminder("far", due="9999-12-31T23:59:59Z"))
    assert (said["verdict"], said["field"]) == ("invalid", "due")
    assert "2199-12-31" in said["why"]
    (said,) = hand_in(api, reminder("less-far", due="2100-01-01T00:00:00Z"))
    assert said["verdict"] == "accepted"


def test_canc_01_a_repeated_cancel_has_the_same_answer(api: Api) -> None:
    hand_in(api, reminder("once-cancelled"))
    asked = {"reminder": "once-cancelled", "reason": "paid"}
    first, again = (api.post("/v1/cancellations", asked).ok() for _ in range(2))
    assert first["counts"] == again["counts"] == {"cancelled": 1}
    (key,) = found(api, "reminder=once-cancelled")
    assert api.get(f"/v1/deliveries/{quote(key, safe='')}").ok()["state"] == "CANCELLED"


def test_cont_07_spellings_of_one_number_are_one_over_http(api: Api) -> None:
    spellings = ("+12025550123", "\u202d+1 202 555 0123\u202c", "+1 (202) 555-0123", " tel:+1-202-555-0123 ")
    verdicts = [
        hand_in(api, {**reminder("number"), "customer": "", "email": "", "phone": text})[0]["verdict"]
        for text in spellings
    ]
    assert verdicts == ["accepted", "unchanged", "unchanged", "unchanged"]
