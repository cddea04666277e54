"""A redrive that runs by itself, one at a time for a tenant, seen by every process.

While it runs, a row in the store names it and says how far it is; whoever asks for another meanwhile is led
to it, so two operators who press at once have one batch. What it did is kept under its own name. It runs in
a thread of the process that was asked: if that ends, what was queued is queued, the row grows stale, and
asking again goes on with the rest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

from sendonce import telemetry
from sendonce.core.errors import SendonceError
from sendonce.core.pacing import SECOND
from sendonce.ports.store import Answered, Store, Tx
from sendonce.telemetry import fault, tell

STALE_US: Final = 60 * SECOND
TELL_US: Final = SECOND
KEEP_US: Final = 7 * 86_400 * SECOND
RUNNING: Final = "console:batch"
REFUSED_SHOWN: Final = 20


@dataclass(slots=True)
class Progress:
    """How far a batch is. `ended` "": it runs; else a sentence."""

    id: str
    actor: str
    redriven: int = 0
    refused: int = 0
    last_at: int = 0
    ended: str = ""
    good: bool = True
    whys: list[tuple[str, int]] = field(default_factory=list)


Tell = Callable[[Progress], None]


def start(store: Store, tenant: str, id_: str, actor: str, work: Callable[[Progress, Tell], None]) -> str:
    """Start `work` in a thread of its own, unless one is running; the id of the one that runs now."""
    progress = Progress(id_, actor)

    def begin(tx: Tx) -> str:
        running = _running(tx.answers.get(tenant, RUNNING), tx.now)
        if running is not None:
            return running.id
        _put(tx, tenant, progress)
        return id_

    running = store.write(begin).result()
    if running == id_:
        thread = threading.Thread(
            target=_run, args=(store, tenant, progress, work), name=f"batch-{id_}", daemon=True
        )
        thread.start()
    return running


def seen(tx: Tx, tenant: str, id_: str) -> Progress | None:
    """How far a batch is, or what it did; None where nobody knows of it any more."""
    kept = tx.answers.get(tenant, _name(id_))
    if kept is not None and kept.status:
        return _read(kept.answer)
    running = _running(tx.answers.get(tenant, RUNNING), tx.now)
    return running if running is not None and running.id == id_ else None


def _run(store: Store, tenant: str, progress: Progress, work: Callable[[Progress, Tell], None]) -> None:
    told_at = store.read(lambda tx: tx.now)

    def tell_of(progress: Progress) -> None:
        nonlocal told_at

        def unit(tx: Tx) -> int:
            if tx.now - told_at >= TELL_US:
                _put(tx, tenant, progress)
                return tx.now
            return told_at

        if store.read(lambda tx: tx.now) - told_at >= TELL_US:
            told_at = store.write(unit).result()

    try:
        work(progress, tell_of)
        progress.ended = progress.ended or "done"
    except SendonceError as error:
        progress.ended, progress.good = str(error), False
    except Exception as error:
        tell(telemetry.STAGE_FAILED, stage="console", **fault(error))
        progress.ended, progress.good = "a bug in sendonce: it was told to whoever runs this service", False
    try:
        store.write(lambda tx: _finish(tx, tenant, progress)).result()
    except SendonceError as error:
        tell(telemetry.STORE_UNAVAILABLE, stage="console", **fault(error))


def _put(tx: Tx, tenant: str, progress: Progress) -> None:
    """Say anew how far it is: the row is taken away and made again, in one unit."""
    before = tx.answers.get(tenant, RUNNING)
    if before is not None:
        tx.answers.drop(tenant, RUNNING, before.begun_at)
    text = json.dumps(asdict(progress))
    tx.answers.begin(tenant, RUNNING, text, at=tx.now, stale=0, keep_until=tx.now + KEEP_US)


def _finish(tx: Tx, tenant: str, progress: Progress) -> None:
    name = _name(progress.id)
    tx.answers.begin(tenant, name, "batch", at=tx.now, stale=0, keep_until=tx.now + KEEP_US)
    answer = json.dumps(asdict(progress))
    tx.answers.finish(tenant, name, tx.now, status=200, answer=answer, keep_until=tx.now + KEEP_US)
    running = tx.answers.get(tenant, RUNNING)
    if running is not None and _read(running.fingerprint).id == progress.id:
        tx.answers.drop(tenant, RUNNING, running.begun_at)


def _running(row: Answered | None, now: int) -> Progress | None:
    if row is None or row.status or now - row.begun_at > STALE_US:
        return None
    return _read(row.fingerprint)


def _read(text: str) -> Progress:
    values = json.loads(text)
    whys = [(str(why), int(count)) for why, count in values.pop("whys")]
    return Progress(**values, whys=whys)


def _name(id_: str) -> str:
    return f"console:batch:{id_}"
