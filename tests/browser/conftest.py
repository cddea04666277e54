"""The console in a real Chromium, for `make test-browser`.

The browser is that of the distribution, which is found, or it is said how to get it; none is downloaded,
and nothing is skipped. Every page is watched: a request to anywhere else, a script that the policy stops, an
error in the page or a dialog makes the test red that caused it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Response,
    StorageState,
    sync_playwright,
)

from sendonce.console.page import ROOT
from tests.console_world import PASSWORD, ConsoleWorld, console

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATH: Final = "SENDONCE_CHROMIUM"
WITHIN_MS: Final = 60_000


def chromium() -> str:
    """Where the browser is. Raises `RuntimeError`, which says how to get one."""
    named = os.environ.get(PATH, "")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), "")
    if not found or not os.access(found, os.X_OK):
        raise RuntimeError(
            f"there is no Chromium{f' at {named}' if named else ''}: install it (Debian and Ubuntu: apt-get "
            f"install chromium; macOS: brew install --cask chromium), or name the program with {PATH}"
        )
    return found


class Watched:
    """A page that somebody works with. `wrong`: what must not happen; `bytes`: what came for each address."""

    def __init__(self, page: Page, host: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.bytes: dict[str, int] = {}
        self._host = host
        page.set_default_timeout(WITHIN_MS)
        page.on("request", lambda request: self._asked(request.url))
        page.on("response", self._came)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.netloc != self._host or parts.scheme != "http":
            self.wrong.append(f"asked elsewhere: {url}")

    def _came(self, response: Response) -> None:
        if response.status == 200:
            self.bytes[response.url] = int(response.headers.get("content-length", "0"))

    def _said(self, message: ConsoleMessage) -> None:
        # That a page is not there, or not for this role, is what some tests ask for.
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            self.wrong.append(f"console: {message.text}")


Opens = Callable[..., Watched]
Sessions = Callable[[str], StorageState]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The sandbox of Chromium does not work for root, which is who runs tests in a container.
        root = getattr(os, "geteuid", lambda: 1)() == 0
        made = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"] if root else [], timeout=WITHIN_MS
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with console(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture(scope="module")
def sessions(browser: Browser, world: ConsoleWorld) -> Sessions:
    """The cookies of whoever has signed in as a role, once for all windows: a password takes its time."""
    known: dict[str, StorageState] = {}

    def of(role: str) -> StorageState:
        if role not in known:
            context = browser.new_context()
            sign_in(context.new_page(), world, role)
            known[role] = context.storage_state()
            context.close()
        return known[role]

    return of


@pytest.fixture
def opens(browser: Browser, world: ConsoleWorld, sessions: Sessions) -> Iterator[Opens]:
    """Opens a browser window for a role, signed in, at `start`; "" for nobody, nowhere. With `alone` the
    session is no other window's. `more` as for Playwright's contexts. Each window has a cache of its own."""
    contexts: list[BrowserContext] = []
    opened: list[Watched] = []

    def make(role: str = "", *, start: str = ROOT, alone: bool = False, **more: object) -> Watched:
        kept = {"storage_state": sessions(role)} if role and not alone else {}
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **kept, **more})  # type: ignore[arg-type]
        contexts.append(context)
        watched = Watched(context.new_page(), urlsplit(world.url).netloc)
        opened.append(watched)
        if alone:
            sign_in(watched.page, world, role)
        elif role:
            watched.page.goto(world.url + start)
        return watched

    yield make
    for context in contexts:
        context.close()
    assert [watched.wrong for watched in opened if watched.wrong] == []


def sign_in(page: Page, world: ConsoleWorld, role: str) -> None:
    page.goto(f"{world.url}/console")
    page.get_by_label("Name").fill(role)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_role("navigation", name="Console").wait_for()
