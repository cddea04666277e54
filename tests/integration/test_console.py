"""The console over plain HTTP, as somebody without a script meets it: each page, and who is kept out.

On both stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sendonce.console import forms
from sendonce.console.page import ROOT, link
from sendonce.console.roles import Role
from sendonce.console.routes import ROUTES
from sendonce.core.access import Scope
from sendonce.core.errors import Refused, StoreError
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Unknown
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.pipeline import api_keys
from sendonce.pipeline.events import EventApplier, take_in
from sendonce.store.runs import SqlRuns
from tests.console_world import PASSWORD, SCRIPT, Browser, ConsoleWorld, console, users_file
from tests.integration.service import wait_for


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    folder = tmp_path_factory.mktemp("console")
    if request.param == "sqlite":
        with console(folder) as made:
            yield made
        return
    schemas = request.getfixturevalue("postgres_schemas")
    url = schemas.take()
    with console(folder, url) as made:
        yield made
    schemas.give_back(url)


@pytest.fixture
def admin(world: ConsoleWorld) -> Browser:
    return world.signed_in("admin")


def pages_of(world: ConsoleWorld) -> dict[str, str]:
    """An address of every page that is read."""
    keys = world.keys
    return {
        "overview": link("overview"),
        "find": link("find", q="customer-73"),
        "story": link("story", of=keys["accepted"]),
        "customer": link("customer", id="customer-73"),
        "group": link("group", name="loan-77"),
        "dead": link("dead"),
        "dead-letter": link("dead-letter", key=keys["dead-4"]),
        "redrive": link("redrive", all="yes"),
        "work": link("work", id="nobody"),
        "uncertain": link("uncertain"),
        "resolution": link("resolution", all="yes", decision="sent"),
        "accounts": link("accounts"),
        "account": link("account", name="mail"),
        "move": link("move", name="text", to="spare"),
        "passes": link("passes"),
        "report": link("report"),
        "templates": link("templates"),
        "template": link("template", name="shipped", data='{"name": "Ann", "parcel": "A-17"}'),
        "preferences": link("preferences"),
        "audit": link("audit"),
        "keys": link("keys"),
    }


# Pages


def test_every_page_is_shown_and_none_is_forgotten(world: ConsoleWorld, admin: Browser) -> None:
    pages = pages_of(world)
    assert {f"{ROOT}/{name}" for name in pages} == {path for method, path in ROUTES if method == "GET"}
    for name, address in pages.items():
        shown = admin.get(address)
        assert shown.status == 200, (name, shown.text)
        assert "<h1" in shown.text, name
        assert shown.headers["content-security-policy"].startswith("default-src 'none'")
        assert shown.headers["cache-control"] == "no-store"
        assert " style=" not in shown.text, name
        assert "<style" not in shown.text, name
        assert " onclick" not in shown.text, name


def test_what_refreshes_itself_comes_in_part_for_the_script_and_whole_without(
    world: ConsoleWorld, admin: Browser
) -> None:
    whole, part = admin.get(link("overview")), admin.get(link("overview"), **{"HX-Request": "true"})
    assert 'http-equiv="refresh"' in whole.text
    assert "<html" not in part.text
    assert "Processes" in part.text
    assert len(part.text) < len(whole.text)


def test_a_page_weighs_little(world: ConsoleWorld, admin: Browser) -> None:
    for address in pages_of(world).values():
        shown = admin.get(address)
        weight = len(shown.text.encode())
        for name in ("console.css", "htmx.min.js", "icon.svg"):
            path = shown.text.partition(f"{ROOT}/static/{name.partition('.')[0]}")[2].partition('"')[0]
            static = admin.get(f"{ROOT}/static/{name.partition('.')[0]}{path}")
            assert static.status == 200
            assert "immutable" in static.headers["cache-control"]
            weight += len(static.text.encode())
        assert weight < 150 * 1024, (address, weight)


def test_one_box_finds_by_whatever_is_pasted(world: ConsoleWorld, admin: Browser) -> None:
    key = world.keys["accepted"]
    for text in (
        "shipment-4821",
        "customer-71",
        key,
        "ann.archer@example.com",
        "pm-9001",
        " PM-9001 ".strip(),
    ):
        shown = admin.get(link("find", q=text))
        if text == "PM-9001":
            assert "Nothing is known of it" in shown.text  # a receipt is the provider's, letter by letter
        else:
            assert "shipment-4821" in shown.text, text


def test_the_story_says_what_to_tell_and_hides_the_address(world: ConsoleWorld, admin: Browser) -> None:
    shown = admin.get(link("story", of=world.keys["accepted"])).text
    assert "It was sent at" in shown
    assert "its number there is pm-9001" in shown
    assert "a***@example.com" in shown
    assert "ann.archer@example.com" not in shown
    assert "Acceptance ledger" in shown
    assert "your parcel A-17 has left our warehouse" in shown


def test_what_the_provider_said_later_stands_beside_and_is_not_mixed_in(
    world: ConsoleWorld, admin: Browser
) -> None:
    said = ProviderEvent(identity="e-1", kind=EventKind.DELIVERED, receipt="pm-9002", code="250 2.0.0 <b>")
    take_in(world.app.store, world.app.policy, "mail", [said]).result()
    EventApplier(world.app.store, world.app.policy).step()
    shown = admin.get(link("story", of="shipment-4822:customer-72:email")).text
    ours, _, theirs = shown.partition("What the provider said later")
    assert theirs, "nothing is said of it"
    assert "The provider took it" in ours
    assert "250 2.0.0 &lt;b&gt;" in theirs
    assert "250 2.0.0" not in ours
    assert "What the provider said later" not in admin.get(link("story", of=world.keys["text"])).text


def test_script_from_outside_is_text(world: ConsoleWorld, admin: Browser) -> None:
    key = world.keys["evil"]
    for address in (
        link("story", of=key),
        link("customer", id=SCRIPT),
        link("find", q=SCRIPT),
        link("dead-letter", key=key),
        link("dead", cause="other"),
        link("template", name="evil", data='{"name": "<script>alert(1)</script>"}'),
        link("story", of=SCRIPT),
        link("group", name=SCRIPT),
        link("report", day=SCRIPT),
        link("work", id=SCRIPT),
        f"{ROOT}/{SCRIPT}",
    ):
        shown = admin.get(address.replace("<", "%3C").replace(">", "%3E")).text
        assert SCRIPT not in shown, address
        assert "<img src=x" not in shown, address
    assert "&lt;script&gt;" in admin.get(link("story", of=key)).text


def test_a_report_adds_up(world: ConsoleWorld, admin: Browser) -> None:
    assert "It adds up" in admin.get(link("report")).text
    assert admin.get(link("report", day="soon")).status == 422


# Who comes in


def test_nobody_sees_a_page_before_signing_in(world: ConsoleWorld) -> None:
    for method, path in ROUTES:
        browser = world.browser()
        shown = browser.get(path) if method == "GET" else browser.post(path, {"reason": "x"})
        assert shown.status == 303
        assert shown.location.startswith(f"{ROOT}/sign-in")
        polled = browser.get(path, **{"HX-Request": "true"})
        assert polled.headers["hx-redirect"].startswith(f"{ROOT}/sign-in")


def test_a_cookie_is_for_this_site_alone_and_secure_away_from_this_machine(world: ConsoleWorld) -> None:
    here = world.browser()
    shown = here.sign_in(name="viewer", password=PASSWORD)
    assert "HttpOnly" in shown.headers["set-cookie"]
    assert "samesite=lax" in shown.headers["set-cookie"].lower()
    there = world.browser()
    there.headers["Host"] = "reminders.example.com"
    first = there.get(f"{ROOT}/sign-in")
    assert first.headers["set-cookie"].startswith("__Host-")
    assert "Secure" in first.headers["set-cookie"]


def test_a_key_signs_in_with_its_own_scopes_and_tenant(world: ConsoleWorld) -> None:
    browser = world.browser()
    token = world.key(Scope.READ, tenant="acme")
    assert browser.sign_in(key=token).status == 303
    assert browser.get(link("find", q="shipment-4821")).text.count("Nothing is known of it") == 1
    assert browser.get(link("overview")).status == 403  # figures over all tenants
    api_keys.revoke(world.app.store, token[3:15], reason="test", actor="test")
    assert browser.get(link("find")).status == 303


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "viewer", "password": "wrong"},
        {"name": "nobody", "password": PASSWORD},
        {"key": "so_aaaaaaaaaaaa_" + "A" * 43},
        {"key": ""},
        {},
    ],
)
def test_who_is_unknown_stays_out(world: ConsoleWorld, fields: dict[str, str]) -> None:
    browser = world.browser()
    shown = browser.sign_in(**fields)
    assert shown.status == 401
    assert "nobody we know" in shown.text
    assert browser.get(link("find")).status == 303


def test_guessing_is_slowed_down(world: ConsoleWorld) -> None:
    browser = world.browser()
    statuses = [browser.sign_in(name="guessed", password="wrong").status for _ in range(8)]
    assert statuses[0] == 401
    assert 429 in statuses


def test_signing_out_ends_a_copied_cookie(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    copied = Browser(world.port, dict(browser.cookies))
    assert copied.get(link("find")).status == 200
    assert browser.send(link("find"), f"{ROOT}/sign-out").status == 303
    assert copied.get(link("find")).status == 303


def test_who_loses_the_role_is_signed_out(world: ConsoleWorld) -> None:
    path = world.folder / "users.toml"
    path.write_text(users_file(guest="admin"), "utf-8")
    browser = world.signed_in("guest")
    assert browser.get(link("keys")).status == 200
    path.write_text(users_file(guest="viewer"), "utf-8")
    assert browser.get(link("keys")).status == 303
    path.write_text("[user", "utf-8")
    assert world.browser().sign_in(name="guest", password=PASSWORD).status >= 400
    path.write_text(users_file(), "utf-8")


def test_a_changed_cookie_is_nobody(world: ConsoleWorld) -> None:
    browser = world.signed_in("viewer")
    (name,) = browser.cookies
    value = browser.cookies[name]
    for other in (value[:-2], value[1:], value.replace(".", ".."), "x", value.partition(".")[0] + "."):
        assert Browser(world.port, {name: other}).get(link("find")).status == 303


# Who may do what


REACH = {
    Role.VIEWER: set[str](),
    Role.SUPPORT: {"unmask", "cancel", "again", "correct", "preference", "preference-removal"},
}
REACH[Role.OPERATOR] = REACH[Role.SUPPORT] | {"redrive", "resolve", "resolution", "pause", "resume", "pass"}
REACH[Role.ADMIN] = REACH[Role.OPERATOR] | {"limits", "move", "key", "key-revocation"}


@pytest.mark.parametrize("role", list(Role))
def test_a_role_reaches_as_far_as_it_says(world: ConsoleWorld, role: Role) -> None:
    browser = world.signed_in(role.value)
    for method, path in ROUTES:
        if method != "POST":
            continue
        name = path.rpartition("/")[2]
        shown = browser.post(path, {"token": "forged", "reason": "x"})
        assert shown.status == 403
        said = "The form was not accepted" if name in REACH[role] else "Your role does not reach that far"
        assert said in shown.text, (role, name)


def test_a_viewer_sees_no_form_that_it_may_not_send(world: ConsoleWorld) -> None:
    browser = world.signed_in("viewer")
    for name, address in pages_of(world).items():
        shown = browser.get(address)
        if name in ("audit", "keys", "redrive", "resolution", "move", "work"):
            assert shown.status == 403, name
        else:
            assert shown.status == 200, name
            assert shown.text.count('method="post"') == 1, name  # to sign out


# Forms


def test_a_forged_form_does_nothing(world: ConsoleWorld) -> None:
    browser, other = world.signed_in("support"), world.signed_in("admin")
    key = world.keys["scheduled-1"]
    address, action = link("story", of=key), link("cancel")
    fields = {"by": "delivery", "name": key, "reason": "forged"}
    foreign = other.get(address).token(action)
    sign_out = browser.get(address).token(f"{ROOT}/sign-out")
    for token in ("", "x", foreign, sign_out, "a.1." + "0" * 40):
        assert browser.post(action, {**fields, "token": token}).status == 403
    token = browser.get(address).token(action)
    assert browser.post(action, {**fields, "token": token}, Origin="https://evil.example").status == 403
    assert browser.post(action, {**fields, "token": token}, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert world.state(key) is State.SCHEDULED


def test_what_is_no_form_is_turned_away(world: ConsoleWorld, admin: Browser) -> None:
    assert admin.post(link("cancel"), {}, **{"Content-Type": "application/json"}).status == 415
    assert admin.post(link("cancel"), {"reason": "x" * 200_000}).status == 413
    assert admin.get(f"{link('find')}?q=%00").status == 400
    assert admin.get(f"{link('find')}?q=%ff").status == 400


def test_a_double_press_cancels_once_and_says_the_same(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    key = world.keys["scheduled-2"]
    action = link("cancel")
    token = browser.get(link("story", of=key)).token(action)
    fields = {"token": token, "by": "delivery", "name": key, "reason": "paid by card"}
    first, second = browser.post(action, fields), browser.post(action, fields)
    assert first.location == second.location
    assert "1 will not be sent" in browser.follow(first).text
    assert world.state(key) is State.CANCELLED
    assert [row["reason"] for row in world.audit()].count("paid by card") == 1
    changed = browser.post(action, {**fields, "reason": "another"})
    assert changed.status == 409


def test_sent_again_is_a_new_linked_reminder_and_goes_out_once(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    key, action = world.keys["text"], link("again")
    token = browser.get(link("story", of=key)).token(action)
    presses = [browser.post(action, {"token": token, "key": key, "reason": "lost phone"}) for _ in range(2)]
    assert presses[0].location == presses[1].location
    shown = browser.follow(presses[0]).text
    assert "as a new reminder" in shown
    assert "loan-77/2026-12/again-1" in shown
    reopened = browser.send(link("story", of=key), action, key=key, reason="lost phone")
    assert "on its way already" in browser.follow(reopened).text


def test_an_address_is_shown_once_and_the_audit_says_to_whom(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    key, action = world.keys["accepted"], link("unmask")
    token = browser.get(link("story", of=key)).token(action)
    fields = {"token": token, "key": key, "reason": "compares it on the telephone"}
    assert "ann.archer@example.com" in browser.post(action, fields).text
    again = browser.post(action, fields)
    assert again.status == 303
    assert "ann.archer@example.com" not in browser.follow(again).text
    rows = [row for row in world.audit() if row["action"] == "unmask"]
    assert [(row["actor"], row["target"], row["reason"]) for row in rows] == [
        ("operator:support", f"default/{key}", "compares it on the telephone")
    ]
    assert "ann.archer" not in repr(world.audit())
    refused = browser.send(link("story", of=key), action, key=key, reason=" ")
    assert refused.status == 422


def test_a_wrong_address_is_corrected_for_what_is_to_come(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    key = world.keys["scheduled-3"]
    assert key.endswith(":email")
    fields = {"key": key, "reminder": "loan-77/2027-03", "customer": "customer-73", "channel": "email"}
    done = browser.send(
        link("story", of=key), link("correct"), **fields, address="new@example.com", reason="called"
    )
    assert "The address is corrected" in browser.follow(done).text
    (audit,) = [row for row in world.audit() if row["action"] == "correct_address"]
    assert (audit["target"], audit["reason"]) == (f"default/{key}", "called")
    assert "n***@example.com" in browser.get(link("story", of=key)).text
    wrong = browser.send(link("story", of=key), link("correct"), **fields, address="no address", reason="x")
    assert wrong.status == 422


def test_an_address_whose_audit_entry_fails_is_not_corrected(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise StoreError("no room for an entry")

    browser = world.signed_in("support")
    key = world.keys["scheduled-1"]
    fields = {"key": key, "reminder": "loan-77/2027-01", "customer": "customer-73", "channel": "email"}
    page = link("story", of=key)
    token = browser.get(page).token(link("correct"))
    before = world.row(key)
    monkeypatch.setattr(SqlRuns, "audit", fails)
    sent = {**fields, "token": token, "address": "lost@example.com", "reason": "called"}
    assert browser.post(link("correct"), sent).status == 503
    assert world.row(key) == before


def test_everything_of_a_customer_is_stopped(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    key = world.schedule("stop-1", customer="customer-stop", due="in 3h")
    address = link("customer", id="customer-stop")
    done = browser.send(address, link("cancel"), by="customer", name="customer-stop", reason="moved away")
    assert "1 will not be sent" in browser.follow(done).text
    assert world.state(key) is State.CANCELLED


def test_uncertain_ones_are_decided_with_open_eyes(world: ConsoleWorld) -> None:
    browser = world.signed_in("operator")
    action, keys = link("resolve"), [world.keys["uncertain-1"], world.keys["uncertain-2"]]
    risky = browser.send(link("uncertain"), action, key=keys[:1], decision="resend", reason="asked")
    assert risky.status == 409
    assert world.state(keys[0]) is State.UNCERTAIN
    done = browser.send(link("uncertain"), action, key=keys, decision="not_sent", reason="asked the provider")
    assert "2 now NOT_SENT" in browser.follow(done).text
    assert {world.state(key) for key in keys} == {State.NOT_SENT}
    assert browser.send(link("uncertain"), action, decision="sent", reason="x").status == 422


def test_all_such_are_decided_at_once_after_a_preview(world: ConsoleWorld) -> None:
    browser = world.signed_in("operator")
    made = [world.schedule(f"storm-{number}", group="storm") for number in range(3)]
    keys = [world.send(key, Unknown("timeout")) for key in made]
    other = world.send(world.schedule("calm"), Unknown("timeout"))
    fit = {"group": "storm", "cause": world.row(keys[0]).course.reason}
    listed = browser.get(link("uncertain", **fit)).text
    assert keys[0] in listed
    assert other not in listed
    assert "Decide all such" in listed
    chosen = browser.get(link("resolution", **fit)).text
    assert "What is true of them?" in chosen
    assert "Do it" not in chosen
    assert "would be not sent" in browser.get(link("resolution", **fit, decision="not_sent")).text
    assert browser.get(link("resolution", decision="not_sent")).status == 422
    assert browser.get(link("resolution", **fit, decision="perhaps")).status == 422
    again = link("resolution", **fit, decision="resend")
    assert "can reach the customer twice" in browser.get(again).text
    risky = browser.send(again, link("resolution"), **fit, decision="resend", reason="asked")
    assert risky.status == 409
    assert {world.state(key) for key in keys} == {State.UNCERTAIN}
    preview = link("resolution", **fit, decision="not_sent")
    done = browser.send(preview, link("resolution"), **fit, decision="not_sent", reason="not in their log")
    wait_for(partial(_is_done, browser, done.location))
    assert "decided" in browser.get(done.location).text
    assert {world.state(key) for key in keys} == {State.NOT_SENT}
    assert world.state(other) is State.UNCERTAIN
    (act,) = (row for row in world.audit() if row["action"] == "resolve" and "storm" in str(row["target"]))
    assert (act["actor"], act["reason"]) == ("operator:operator", "not in their log")


def test_a_group_is_paused_and_resumed(world: ConsoleWorld) -> None:
    browser = world.signed_in("operator")
    address = link("group", name="loan-77")
    fields = {"what": "group", "name": "loan-77"}
    done = browser.send(address, link("pause"), **fields, until="in 2h", reason="a dispute")
    assert "is paused until its end" in browser.follow(done).text
    assert "a dispute" in browser.get(address).text
    done = browser.send(address, link("resume"), **fields, reason="settled")
    assert "goes on" in browser.follow(done).text
    account = {"what": "account", "name": "mail"}
    denied = browser.send(address, link("pause"), **account, reason="not mine to pause")
    assert denied.status == 403


def test_an_account_is_paused_and_its_limits_are_changed(world: ConsoleWorld, admin: Browser) -> None:
    address = link("account", name="text")
    fields = {"what": "account", "name": "text"}
    done = admin.send(address, link("pause"), **fields, reason="maintenance")
    assert "maintenance" in admin.follow(done).text
    done = admin.send(address, link("resume"), **fields, reason="over")
    assert "goes on" in admin.follow(done).text
    done = admin.send(
        address, link("limits"), name="text", limits="100/s", lanes="5", reason="a new contract"
    )
    shown = admin.follow(done).text
    assert "100/s" in shown
    assert "not those of the configuration" in shown
    wrong = admin.send(address, link("limits"), name="text", limits="many", reason="x")
    assert wrong.status == 422


def test_a_pass_is_run_by_hand(world: ConsoleWorld) -> None:
    browser = world.signed_in("operator")
    done = browser.send(link("passes"), link("pass"), reason="the cron is late")
    assert "Pass " in browser.follow(done).text
    assert any(row["action"] == "pass" for row in world.audit())


def test_a_preference_is_recorded_and_taken_away(world: ConsoleWorld) -> None:
    browser = world.signed_in("support")
    fields = {"address": "carl@example.com", "kind": "opt_out", "category": "*"}
    done = browser.send(link("preferences"), link("preference"), **fields, reason="call of today")
    assert "recorded and in force" in browser.follow(done).text
    shown = browser.get(link("preferences", address="carl@example.com")).text
    assert "call of today" in shown
    done = browser.send(link("preferences"), link("preference-removal"), **fields, reason="a slip")
    assert "taken away" in browser.follow(done).text
    assert (
        browser.send(link("preferences"), link("preference-removal"), **fields, reason="a slip").status == 404
    )


def test_a_key_is_shown_once(world: ConsoleWorld, admin: Browser) -> None:
    action = link("key")
    token = admin.get(link("keys")).token(action)
    fields = {"token": token, "name": "shop", "scope": ["read", "cancel"], "expires": "30d"}
    first = admin.post(action, fields)
    assert "so_" in first.text
    secret = first.text.partition("so_")[2].partition("<")[0]
    again = admin.follow(admin.post(action, fields))
    assert secret not in again.text
    assert "is made" in again.text
    made = [key for key in api_keys.list_keys(world.app.store) if key.name == "shop"]
    assert len(made) == 1
    done = admin.send(link("keys"), link("key-revocation"), prefix=made[0].prefix, reason="a test")
    assert "is ended" in admin.follow(done).text


# What goes on by itself


def test_an_admin_moves_what_waits_to_an_account_that_shares_with_it(
    world: ConsoleWorld, admin: Browser
) -> None:
    texts = [
        world.schedule(f"waits-{number}", email="", phone="+4915123450000", group="waits")
        for number in (1, 2)
    ]
    world.pass_()
    assert {world.row(key).course.account for key in texts} == {"text"}
    assert "Move what waits" in admin.get(link("account", name="text")).text
    assert "Move what waits" not in admin.get(link("account", name="mail")).text
    preview = link("move", name="text", to="spare", group="waits")
    shown = admin.get(preview).text
    assert "Move 2" in shown
    assert admin.get(link("move", name="text", to="mail")).status == 422
    assert admin.get(link("move", name="text", to="fax")).status == 404
    fields = {"name": "text", "to": "spare", "group": "waits"}
    done = admin.send(preview, link("move"), **fields, reason="text is slow")
    wait_for(partial(_is_done, admin, done.location))
    assert {world.row(key).course.account for key in texts} == {"spare"}
    moved = [row for row in world.audit() if row["action"] == "move"]
    assert [(row["target"], row["reason"]) for row in moved] == [("text", "text is slow")]
    assert "would go" in admin.get(preview).text
    assert "Move 2" not in admin.get(preview).text


def test_two_operators_who_redrive_at_once_have_one_batch(world: ConsoleWorld, admin: Browser) -> None:
    operator = world.signed_in("operator")
    chosen = {"cause": "failed:unavailable", "account": "mail", "channel": "email", "per_s": "1"}
    preview = link("redrive", **chosen)
    shown = operator.get(preview).text
    assert "will be sent" in shown
    forms = [(browser, browser.get(preview).token(link("redrive"))) for browser in (operator, admin)]
    answers: list[str] = []

    def press(browser: Browser, token: str) -> None:
        done = browser.post(link("redrive"), {"token": token, **chosen, "reason": "the relay is back"})
        answers.append(done.location.partition("&")[0])

    presses = [threading.Thread(target=press, args=form) for form in forms]
    for each in presses:
        each.start()
    for each in presses:
        each.join()
    for answer in answers:
        wait_for(partial(_is_done, operator, answer))
    keys = [world.keys[f"dead-{number}"] for number in range(1, 5)]
    assert {world.state(key) for key in keys} == {State.QUEUED}
    assert [world.row(key).standing.epoch for key in keys] == [
        world.row(keys[0]).standing.epoch
    ] * 4  # moved once each
    redriven = [row for row in world.audit() if row["action"] == "redrive"]
    assert sum('"redriven":4' in str(row["body"]).replace(" ", "") for row in redriven) == 1
    again = operator.get(preview).text
    assert "Do it" not in again  # there is nothing left to send


def _is_done(browser: Browser, address: str) -> bool:
    return "It is done" in browser.get(address).text


def test_whoever_presses_twice_is_led_to_what_the_first_press_did(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the first one is at work; where it came to nothing, neither did anything."""
    store = world.app.store
    begun, go_on = threading.Event(), threading.Event()

    def nap(seconds: float) -> None:
        go_on.set()  # the second one waits: only now the first one goes on
        time.sleep(seconds)

    monkeypatch.setattr(forms, "time", SimpleNamespace(monotonic=time.monotonic, sleep=nap))
    done = forms.Done("/console/dead", forms.Notice("2 were sent again"))

    def work() -> forms.Done:
        begun.set()
        assert go_on.wait(60)
        return done

    def fail() -> forms.Done:
        begun.set()
        assert go_on.wait(60)
        raise Refused("not now")

    def second(nonce: str, first: Callable[[], forms.Done]) -> tuple[Any, Any]:
        begun.clear()
        go_on.clear()
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(forms.once, store, "default", nonce, b"asked", first)
            assert begun.wait(60)
            two = pool.submit(forms.once, store, "default", nonce, b"asked", fail)
            return one.exception(60) or one.result(), two.exception(60) or two.result()

    assert second("n1", work) == ((done, True), (done, False))
    first, other = second("n2", fail)
    assert str(first) == "not now"
    assert isinstance(other, Refused)
