"""What a store is given when it is first opened, and keeps: its secret, its epoch, its clock's anchor."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from sendonce.ports.clock import Clock
from sendonce.ports.store import Tx


def secret_of(tx: Tx) -> bytes:
    """This store's secret: made once, kept with the data it protects, since keys must outlive hosts."""
    text = tx.meta("secret")
    if text is None:
        text = new_secret()
        tx.set_meta("secret", text)
        tx.set_meta("epoch", "1")
    return bytes.fromhex(text)


def new_secret() -> str:
    return secrets.token_hex(32)


def anchor(tx: Tx, clock: Clock) -> int:
    """What must be added to the boot clock so that it goes on where it was before the machine restarted.

    Within one start of the machine the anchor never changes, so a stepped calendar moves no lease.
    """
    offset = offset_of(tx.meta, clock)
    if tx.meta("boot_id") != clock.boot_id():
        tx.set_meta("boot_id", clock.boot_id())
        tx.set_meta("steady_offset", str(offset))
    return offset


def offset_of(meta: Callable[[str], str | None], clock: Clock) -> int:
    """The anchor, as it is kept or as it would be."""
    if meta("boot_id") == clock.boot_id():
        return int(meta("steady_offset") or 0)
    return max(clock.now(), int(meta("steady_seen") or 0)) - clock.boot()
