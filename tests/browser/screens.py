"""The pictures of docs/console/, taken anew: `make screens`."""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from sendonce.console.page import link
from sendonce.pipeline.pause import pause, target_of
from tests.browser.conftest import chromium, sign_in
from tests.console_world import SECOND, ConsoleWorld, console

LOOKS: Final = (("desk", 1280, 800, "light"), ("dark", 1280, 800, "dark"), ("phone", 390, 844, "light"))
BYTES_MAX: Final = 150 * 1024
HEIGHT_MAX: Final = 800


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with console(Path(tempfile.mkdtemp())) as world, sync_playwright() as playwright:
        _make_lively(world)
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-lcd-text"]
        )
        for look, width, height, scheme in LOOKS:
            _take(browser, world, folder, look, width, height, scheme)
        browser.close()


def _take(
    browser: Browser, world: ConsoleWorld, folder: Path, look: str, width: int, height: int, scheme: str
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(f"{world.url}/console/sign-in")
    page.screenshot(path=folder / f"sign-in-{look}.png")
    sign_in(page, world, "admin")
    for name, address in _pages(world).items():
        page.goto(world.url + address)
        tall = min(HEIGHT_MAX, int(page.evaluate("document.documentElement.scrollHeight")))
        path = folder / f"{name}-{look}.png"
        page.screenshot(
            path=path, clip={"x": 0, "y": 0, "width": width, "height": max(height, tall)}, full_page=True
        )
        path.write_bytes(packed(path.read_bytes()))
        if path.stat().st_size > BYTES_MAX:
            raise SystemExit(f"{path} has {path.stat().st_size} bytes: show less")
    context.close()


def packed(png: bytes) -> bytes:
    """The same picture, packed as tightly as zlib can: the browser is in a hurry."""
    place, chunks, pixels = 8, [], b""
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        body = png[place + 8 : place + 8 + length]
        place += 12 + length
        if kind == b"IDAT":
            pixels += body
        else:
            chunks.append((kind, body))
    chunks.insert(-1, (b"IDAT", zlib.compress(zlib.decompress(pixels), 9)))
    written = [
        struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return png[:8] + b"".join(written)


def _pages(world: ConsoleWorld) -> dict[str, str]:
    keys = world.keys
    return {
        "overview": link("overview"),
        "find": link("find", q="customer-73"),
        "story": link("story", of=keys["accepted"]),
        "customer": link("customer", id="customer-73"),
        "group": link("group", name="autumn-sale"),
        "dead": link("dead"),
        "dead-letter": link("dead-letter", key=keys["dead-1"]),
        "redrive": link("redrive", all="yes"),
        "uncertain": link("uncertain"),
        "resolution": link("resolution", all="yes", decision="resend"),
        "accounts": link("accounts"),
        "account": link("account", name="text"),
        "passes": link("passes"),
        "report": link("report"),
        "template": link("template", name="shipped", data='{"name": "Ann", "parcel": "A-17"}'),
        "preferences": link("preferences"),
        "audit": link("audit"),
        "keys": link("keys"),
    }


def _make_lively(world: ConsoleWorld) -> None:
    """An account that is paused, work that waits for it, and some that flows."""
    app = world.app
    until = app.store.read(lambda tx: tx.now) + 7_200 * SECOND
    target = target_of("account", "text")
    pause(app.store, target, app.policy, reason="the provider is moved", actor="operator:ann", until=until)
    for number in range(40):
        world.schedule(
            f"loan-{number}/2026-12",
            template="payment",
            category="payment",
            customer=f"customer-{200 + number}",
            email="" if number % 3 else f"c{number}@example.com",
            phone=f"+4915123457{number:03}",
            data={"name": "Ann", "amount": "120.00 EUR"},
        )
    world.pass_()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
