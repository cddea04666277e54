"""Whole tasks in the console, as a support agent and an operator do them in a browser.

And what a browser alone can tell: contrast and names, weight, the reach of a policy, a page that refreshes
itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from sendonce.console.page import link
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Unknown
from sendonce.pipeline.sentences import reason_words
from tests.browser.conftest import WITHIN_MS, Opens, sign_in
from tests.console_world import SCRIPT, ConsoleWorld
from tests.integration.test_console import pages_of

AXE: Final = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
WEIGHT_MAX: Final = 150 * 1024
SERIOUS: Final = ("serious", "critical")
STANDARDS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
OF_COLOURS: Final = ("color-contrast", "link-in-text-block")
"""What may come out otherwise in the dark: names, order and structure of a page are the same."""

expect.set_options(timeout=WITHIN_MS)


def faults_of(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds serious, by all of its rules where none are named. It is put in from outside the page,
    whose policy lets nothing in."""
    page.evaluate(AXE)
    found = page.evaluate("chosen => axe.run(document, {runOnly: chosen})", list(rules) or list(STANDARDS))
    return [
        f"{each['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


# Tasks


def test_a_support_agent_answers_why_a_reminder_was_late(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("support").page
    page.get_by_role("searchbox").first.fill("ann.archer@example.com")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="shipment-4821:customer-71:email").click()
    expect(page.locator(".sentence")).to_contain_text("It was sent at")
    expect(page.locator("main")).not_to_contain_text("ann.archer@example.com")
    page.get_by_text("Acceptance ledger").click()
    expect(page.get_by_role("rowheader", name="accepted")).to_be_visible()

    page.get_by_text("Show the address").click()
    page.get_by_label("Reason").locator("visible=true").fill("compares it on the telephone")
    page.get_by_role("button", name="Show it").click()
    expect(page.locator("#secret")).to_have_text("ann.archer@example.com")
    page.get_by_role("link", name="Go on").click()
    assert any(row["action"] == "unmask" for row in world.audit())

    page.get_by_role("link", name="customer-71").click()
    expect(page.get_by_role("heading", name="customer-71")).to_be_visible()
    expect(page.locator("main")).to_contain_text("order form")  # consent, with its evidence

    page.goto(world.url + link("story", of=world.keys["accepted"]))
    page.get_by_text("Send it again").click()
    page.get_by_label("Reason").locator("visible=true").fill("it went to the spam folder")
    page.get_by_role("button", name="Send again").dblclick()
    expect(page.get_by_role("status")).to_contain_text("as a new reminder")
    expect(page.get_by_role("heading", level=1)).to_have_text("shipment-4821/again-1")
    page.reload()
    deliveries = world.app.store.read(
        lambda tx: tx.rows("view_find_customer", tenant="default", value="customer-71", before=2**62, limit=9)
    )
    assert len(deliveries) == 2


def test_a_support_agent_stops_everything_of_a_customer(world: ConsoleWorld, opens: Opens) -> None:
    key = world.schedule("stop-2", customer="customer-stop-2", due="in 5h")
    page = opens("support").page
    page.goto(world.url + link("customer", id="customer-stop-2"))
    page.get_by_text("Stop all of it").click()
    page.get_by_label("Reason").fill("moved away")
    page.get_by_role("button", name="Stop all").click()
    expect(page.get_by_role("status")).to_contain_text("1 will not be sent")
    assert world.state(key) is State.CANCELLED


def test_an_operator_finds_what_is_stuck_and_redrives_it(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("operator").page
    expect(page.locator(".verdict")).to_be_visible()
    expect(page.get_by_role("row", name="mail email")).to_contain_text("open")
    page.get_by_role("link", name="Dead letters").click()
    row = page.get_by_role("row").filter(has_text="failed:unavailable")
    row.get_by_role("link", name=re.compile("^the attempts failed")).click()
    page.get_by_role("link", name="shipment-dead-1").click()
    expect(page.locator("main")).to_contain_text("451 4.7.1 try later")
    expect(page.locator("main")).to_contain_text("it is valid for another")
    page.go_back()
    boxes = page.get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("button", name="Preview a redrive of the chosen").click()
    expect(page.locator(".bignumber")).to_contain_text("2 will be sent")
    page.get_by_label("Reason").fill("the relay is back")
    page.get_by_role("button", name="Send 2 again").dblclick()
    expect(page.locator("#live")).to_contain_text("It is done")
    expect(page.locator(".bignumber")).to_contain_text("2 queued")
    keys = [world.keys[f"dead-{number}"] for number in range(1, 5)]
    assert [world.state(key) for key in keys].count(State.QUEUED) == 2
    page.reload()
    assert [world.state(key) for key in keys].count(State.QUEUED) == 2
    redriven = [row for row in world.audit() if row["action"] == "redrive"]
    assert [(row["actor"], row["reason"]) for row in redriven] == [("operator:operator", "the relay is back")]


def test_an_operator_decides_what_is_uncertain(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("operator").page
    page.get_by_role("link", name="Uncertain").click()
    page.get_by_label(f"Choose {world.keys['uncertain-1']}").check()
    page.get_by_label("They were not sent").check()
    page.get_by_label("Reason").fill("the provider has no trace of it")
    page.get_by_role("button", name="Decide").click()
    expect(page.get_by_role("status")).to_contain_text("1 now NOT_SENT")
    assert world.state(world.keys["uncertain-1"]) is State.NOT_SENT


def test_an_operator_decides_all_such_after_a_preview(world: ConsoleWorld, opens: Opens) -> None:
    made = [world.schedule(f"storm-{number}") for number in range(2)]
    keys = [world.send(key, Unknown("reset")) for key in made]
    page = opens("operator", start=link("uncertain")).page
    why = reason_words(world.row(keys[0]).course.reason)
    page.get_by_role("link", name=f"{why}, mail").click()
    page.get_by_label("They were not sent").check()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("would be not sent")).to_be_visible()
    page.get_by_label("Reason").fill("their log has none")
    page.get_by_role("button", name="Decide 2").click()
    expect(page.get_by_text("It is done.")).to_be_visible()
    assert {world.state(key) for key in keys} == {State.NOT_SENT}


def test_an_admin_pauses_an_account_and_everybody_sees_it_without_a_reload(
    world: ConsoleWorld, opens: Opens
) -> None:
    watching, page = opens("viewer").page, opens("admin").page
    expect(watching.get_by_role("row", name="text sms")).to_contain_text("open")
    page.goto(world.url + link("account", name="text"))
    page.get_by_text("Pause it").click()
    page.get_by_label("Until").fill("in 2h")
    page.get_by_label("Reason").locator("visible=true").fill("maintenance")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("is paused")
    expect(watching.get_by_role("row", name="text sms")).to_contain_text("paused")
    page.get_by_label("Reason").locator("visible=true").fill("over")
    page.get_by_role("button", name="Resume").click()
    expect(watching.get_by_role("row", name="text sms")).to_contain_text("open")


# What a browser tells


@pytest.mark.parametrize(("scheme", "rules"), [("light", ()), ("dark", OF_COLOURS)], ids=["light", "dark"])
def test_everybody_can_read_every_page(
    world: ConsoleWorld, opens: Opens, scheme: str, rules: Sequence[str]
) -> None:
    nobody = opens(color_scheme=scheme).page
    nobody.goto(f"{world.url}/console/sign-in")
    faults = {"sign-in": faults_of(nobody, rules)}
    page = opens("admin", color_scheme=scheme).page
    for name, address in {**pages_of(world), "dead-list": link("dead", account="mail")}.items():
        page.goto(world.url + address)
        page.evaluate("document.querySelectorAll('main details').forEach(each => each.open = true)")
        faults[name] = faults_of(page, rules)
    assert {name: found for name, found in faults.items() if found} == {}


def test_nothing_hangs_over_on_a_telephone(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("admin", viewport={"width": 360, "height": 740}).page
    for name, address in pages_of(world).items():
        page.goto(world.url + address)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name


def test_a_page_weighs_little_and_asks_nobody_else(world: ConsoleWorld, opens: Opens) -> None:
    for address in pages_of(world).values():
        watched = opens("admin", start=address)
        assert 0 < sum(watched.bytes.values()) < WEIGHT_MAX, address


def test_script_in_what_others_wrote_does_not_run(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("admin").page
    for address in (
        link("story", of=world.keys["evil"]),
        link("customer", id=SCRIPT),
        link("dead-letter", key=world.keys["evil"]),
        link("template", name="evil", data='{"name": "<img src=x onerror=alert(3)>"}'),
    ):
        page.goto(world.url + address)
        expect(page.locator("main")).to_contain_text("<script>" if "template" not in address else "onerror")
        assert page.locator("main script, main img").count() == 0


def test_the_policy_stops_what_would_get_past_the_escaping(world: ConsoleWorld, opens: Opens) -> None:
    watched = opens("viewer")
    ran = watched.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            const styled = document.createElement("div");
            styled.setAttribute("style", "position: fixed");
            document.body.append(styled);
            return [window.ran === true, getComputedStyle(styled).position];
        }"""
    )
    assert ran == [False, "static"]
    assert len(watched.wrong) == 2
    assert all("Content Security Policy" in each for each in watched.wrong)
    watched.wrong.clear()


def test_without_a_script_everything_is_read(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("viewer", alone=True, java_script_enabled=False).page
    page.locator("#find").fill("shipment-4821")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="shipment-4821:customer-71:email").click()
    expect(page.locator(".sentence")).to_contain_text("It was sent at")
    for address in pages_of(world).values():
        page.goto(world.url + address)
        expect(page.locator("h1")).to_have_count(1)


def test_a_keyboard_is_enough(world: ConsoleWorld, opens: Opens) -> None:
    page = opens("viewer").page
    page.goto(world.url + link("dead"))
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the page")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    focused = page.evaluate(
        """() => {
            const there = document.activeElement;
            return [there.closest("main") !== null, getComputedStyle(there).outlineStyle];
        }"""
    )
    assert focused == [True, "solid"]


def test_a_session_that_was_ended_elsewhere_leads_to_the_door(world: ConsoleWorld, opens: Opens) -> None:
    watched = opens("viewer", alone=True)
    page, other = watched.page, watched.page.context.new_page()
    expect(page.locator(".verdict")).to_be_visible()
    other.goto(world.url + link("dead"))
    other.locator(".me summary").click()
    other.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in to the console").wait_for()  # at its next look, by itself
    sign_in(page, world, "viewer")
