"""What is left to people of what providers said, over HTTP: each tenant sees its own, and retries that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sendonce.core.access import Scope
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.pipeline.events import EventApplier, take_in
from sendonce.pipeline.overview import overview
from sendonce.pipeline.report import report
from tests.integration.api_world import Api, served

LIST, RETRY = "/v1/provider-events", "/v1/provider-event-retries"


@pytest.fixture(params=["sqlite", "postgres"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    with served(tmp_path, url) as made:
        yield made


def tell(api: Api, *told: ProviderEvent, account: str = "text", faulty: tuple[str, ...] = ()) -> None:
    """Taken in, and looked at for the last time."""
    take_in(api.app.store, api.app.policy, account, told, faulty=faulty, source=b"body").result()
    EventApplier(api.app.store, api.app.policy, wait_s=0.0).step()


def nobodys(number: int, kind: EventKind = EventKind.DELIVERED, **more: Any) -> ProviderEvent:
    return ProviderEvent(f"e-{number}", kind, receipt=f"m-{number}", code="250", **more)


def test_pages_meet_each_event_once_and_a_cursor_is_of_its_query(api: Api) -> None:
    tell(api, *(nobodys(number) for number in range(5)), faulty=("no_id",))
    seen, cursor = [], ""
    while True:
        page = api.get(f"{LIST}?limit=2&cursor={cursor}").ok()
        seen += [one["receipt"] for one in page["events"]]
        if not page["next"]:
            break
        cursor = page["next"]
    assert seen == [f"m-{number}" for number in range(5)]
    foreign = api.get(f"{LIST}?limit=2&state=faulty&cursor={cursor}")
    assert (foreign.status, foreign.problem["code"]) == (400, "bad_cursor")
    (faulty,) = api.get(f"{LIST}?state=faulty").ok()["events"]
    assert (faulty["kind"], faulty["why"], faulty["state"]) == ("unknown", "no_id", "faulty")


def test_what_is_retried_waits_again(api: Api) -> None:
    tell(api, nobodys(1), faulty=("no_id",))
    (one,) = api.get(LIST).ok()["events"]
    (bad,) = api.get(f"{LIST}?state=faulty").ok()["events"]
    asked = {"ids": [one["id"], one["id"], bad["id"], 10**9, -1, 2**70]}
    assert api.post(RETRY, asked).ok() == {"retried": 1}, "the other names nothing to look for"
    shown = api.get(f"{LIST}/{one['id']}").ok()
    assert (shown["state"], shown["tries"]) == ("waits", 0)
    assert api.get(LIST).ok()["events"] == []


def test_a_tenant_sees_its_own_and_nothing_personal_of_what_may_be_anybodys(api: Api) -> None:
    """Both tenants of this configuration write through this account."""
    tell(
        api,
        nobodys(1, address="+12025550123"),  # names a message that nobody knows, and may be anybody's
        ProviderEvent("e-2", EventKind.REPLIED, address="+12025550199", text="don't stop"),
    )
    acme = api.key(tenant="acme")
    for token in (api.token, acme):
        (one,) = api.get(LIST, token=token).ok()["events"]
        assert (one["receipt"], one["address"]) == ("m-1", "")
        (reply,) = api.get(f"{LIST}?state=unclear", token=token).ok()["events"]
        assert reply["text"] == "don't stop", "kept once for each tenant whose customer may have said it"
    of_acme = api.get(f"{LIST}?state=unclear", token=acme).ok()["events"][0]["id"]
    assert api.get(f"{LIST}/{of_acme}").problem["code"] == "not_found"
    assert api.get(f"{LIST}/{2**53}").problem["code"] == "not_found"
    assert api.post(RETRY, {"ids": [of_acme]}).ok() == {"retried": 0}


def test_it_needs_the_scope_to_operate(api: Api) -> None:
    token = api.key(*(scope for scope in Scope if scope is not Scope.OPERATE))
    for answer in (
        api.get(LIST, token=token),
        api.get(f"{LIST}/1", token=token),
        api.post(RETRY, {"ids": [1]}, token=token),
    ):
        assert (answer.status, answer.problem["scope"]) == (403, "operate")


@pytest.mark.parametrize("ids", [[], ["1"], [1.5], [None], "1", list(range(501))])
def test_what_cannot_be_retried_is_named(api: Api, ids: object) -> None:
    answer = api.post(RETRY, {"ids": ids})
    assert (answer.status, answer.problem["code"]) == (422, "invalid_input")


def test_the_overview_and_the_report_of_the_day_count_them(api: Api) -> None:
    tell(api, nobodys(1), nobodys(2), faulty=("no_id",))
    take_in(api.app.store, api.app.policy, "text", [nobodys(3)]).result()
    seen = api.app.store.read(lambda tx: overview(tx, api.app.policy))
    assert dict(seen.events) == {"waits": 1, "unmatched": 2, "faulty": 1}
    day = api.get(f"{LIST}/1").ok()["received_at"][:10]
    made = api.app.store.read(lambda tx: report(tx, day, "UTC"))
    assert dict(made.left) == {"unmatched": 2, "faulty": 1}
    earlier = api.app.store.read(lambda tx: report(tx, "2020-01-01", "UTC"))
    assert dict(earlier.left) == {}
