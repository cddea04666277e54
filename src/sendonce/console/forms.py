"""Forms: each carries a token that is good for one session, one purpose and one press.

    token = nonce "." issued "." HMAC-SHA256(secret, session, purpose, nonce, issued)

So a forged form is refused, and so is one that was opened before the session or stood open too long. The
first press does the work and its answer is kept; a second press, or a reload, waits for it, is led to the
same answer and does nothing. What raises has done nothing that must not be tried again, and its token may be
used once more.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sendonce.core.errors import Refused
from sendonce.ports.store import Store, Tx

SECOND: Final = 1_000_000
LIFE_US: Final = 12 * 3_600 * SECOND
KEEP_US: Final = 24 * 3_600 * SECOND
STALE_US: Final = 600 * SECOND
"""A press that was never answered: its process died, and the next press does the work."""
WAIT_S: Final = 10.0
"""So long a second press waits for what the first one does: whoever presses twice sees what was done."""
LOOK_S: Final = 0.05
_LABEL: Final = b"console form\0"


class Forged(Exception):
    """A form that is none of ours, of another session, or too old."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What an action did, as the next page says it. `good`: everything that was asked for was done."""

    text: str
    details: Sequence[str] = ()
    good: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """Where an action leads, and what is said there. `secret` is shown once and kept nowhere."""

    location: str
    notice: Notice
    secret: str = ""


def token(session: str, purpose: str, secret: bytes, now: int) -> str:
    """A new token."""
    nonce, issued = secrets.token_hex(12), str(now // SECOND)
    return f"{nonce}.{issued}.{_mac(session, purpose, nonce, issued, secret)}"


def nonce_of(given: str, session: str, purpose: str, secret: bytes, now: int) -> str:
    """The nonce of a token of ours. Raises `Forged`."""
    parts = given.split(".") if given.isascii() and len(given) < 200 else []
    if len(parts) != 3 or not parts[1].isdigit():
        raise Forged
    nonce, issued, mac = parts
    if not hmac.compare_digest(mac, _mac(session, purpose, nonce, issued, secret)):
        raise Forged
    if not 0 <= now // SECOND - int(issued) <= LIFE_US // SECOND:
        raise Forged
    return nonce


def once(store: Store, tenant: str, nonce: str, asked: bytes, work: Callable[[], Done]) -> tuple[Done, bool]:
    """Do the work of a form, or answer as its first press was answered; whether this was the first.

    Blocks while the first press is being answered, for a bounded time. Raises what the work raises, and
    `Refused` where the first press takes longer or came to nothing, or where the same form comes with other
    values.
    """
    name = _name(nonce)
    fingerprint = hashlib.sha256(asked).hexdigest()

    def begin(tx: Tx) -> tuple[int, bool]:
        taken = tx.answers.begin(
            tenant, name, fingerprint, at=tx.now, stale=tx.now - STALE_US, keep_until=tx.now + KEEP_US
        )
        return tx.now, taken

    begun_at, taken = store.write(begin).result()
    if not taken:
        return _earlier(store, tenant, name, fingerprint), False
    try:
        done = work()
    except BaseException:
        store.write(lambda tx: tx.answers.drop(tenant, name, begun_at)).result()
        raise
    answer = json.dumps({"location": done.location, "notice": asdict(done.notice)})

    def finish(tx: Tx) -> None:
        tx.answers.finish(tenant, name, begun_at, status=303, answer=answer, keep_until=tx.now + KEEP_US)

    store.write(finish).result()
    return done, True


def notice(tx: Tx, tenant: str, nonce: str) -> Notice | None:
    """What an action of this tenant did; None where nothing is kept."""
    if not (nonce.isascii() and nonce.isalnum() and len(nonce) <= 40):
        return None
    kept = tx.answers.get(tenant, _name(nonce))
    if kept is None or not kept.status:
        return None
    return _notice(json.loads(kept.answer)["notice"])


def _earlier(store: Store, tenant: str, name: str, fingerprint: str) -> Done:
    until = time.monotonic() + WAIT_S
    while True:
        kept = store.read(lambda tx: tx.answers.get(tenant, name))
        if kept is None:
            raise Refused("the first press came to nothing, and neither did this one: press once more")
        if kept.fingerprint != fingerprint:
            raise Refused("this form was sent before with other values: open it anew; nothing was done now")
        if kept.status:
            break
        if time.monotonic() > until:
            raise Refused("the first press is being carried out: reload in a moment to see what it did")
        time.sleep(LOOK_S)
    answer = json.loads(kept.answer)
    return Done(answer["location"], _notice(answer["notice"]))


def _notice(kept: Mapping[str, object]) -> Notice:
    details = kept.get("details")
    return Notice(
        str(kept["text"]),
        tuple(map(str, details)) if isinstance(details, list) else (),
        bool(kept["good"]),
    )


def _name(nonce: str) -> str:
    return f"console:form:{nonce}"


def _mac(session: str, purpose: str, nonce: str, issued: str, secret: bytes) -> str:
    text = "\0".join((session, purpose, nonce, issued)).encode()
    return hmac.digest(secret, _LABEL + text, "sha256").hex()[:40]
