"""Work that a person started and that goes on by itself, one at a time for a tenant, seen by every process.

A redrive, a decision about all that is uncertain, or a move between accounts. While it runs, a row in the
store says how far it is, and whoever asks for another meanwhile is led to it: two operators who press at once
have one batch. It runs in a thread of the process that was asked. If that ends, what was done is done, the
row is not heard of any more, and asking again goes on with the rest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from sendonce import telemetry
from sendonce.core.errors import SendonceError
from sendonce.core.pacing import SECOND
from sendonce.ports.store import Store, Tx
from sendonce.telemetry import fault, tell

STALE_US: Final = 60 * SECOND
TELL_US: Final = SECOND
WHYS_SHOWN: Final = 20


class Kind(StrEnum):
    """What is done to each delivery."""

    REDRIVE = "redrive"
    RESOLVE = "resolve"
    MOVE = "move"


@dataclass(slots=True)
class Progress:
    """How far a batch is.

    done, left  deliveries that it was done to, and those it was not; `whys`: why not, and how many
    last_at     when the last of them may go; 0: as soon as may be
    ended       "": it runs; else "done", or why it stopped, and then it is not `good`
    """

    id: str
    kind: Kind
    actor: str
    done: int = 0
    left: int = 0
    last_at: int = 0
    ended: str = ""
    good: bool = True
    whys: list[tuple[str, int]] = field(default_factory=list)


Tell = Callable[[Progress], None]


def start(
    store: Store, tenant: str, id_: str, kind: Kind, actor: str, work: Callable[[Progress, Tell], None]
) -> str:
    """Start `work` in a thread of its own, unless one is running; the id of the one that runs now."""
    progress = Progress(id_, kind, actor)

    def begin(tx: Tx) -> str:
        return tx.batches.begin(
            tenant, id_, kind, actor=actor, at=tx.now, stale=tx.now - STALE_US, progress=_text(progress)
        )

    running = store.write(begin).result()
    if running == id_:
        thread = threading.Thread(
            target=_run, args=(store, tenant, progress, work), name=f"batch-{id_}", daemon=True
        )
        thread.start()
    return running


def seen(tx: Tx, tenant: str, id_: str) -> Progress | None:
    """How far a batch is, or what it did; None where nobody knows of it any more."""
    kept = tx.batches.get(tenant, id_)
    if kept is None:
        return None
    progress = _read(kept.progress)
    if progress.ended or (not kept.ended_at and tx.now - kept.told_at <= STALE_US):
        return progress
    return None


def _run(store: Store, tenant: str, progress: Progress, work: Callable[[Progress, Tell], None]) -> None:
    told_at = 0

    def say(tx: Tx) -> int:
        tx.batches.note(tenant, progress.id, _text(progress), at=tx.now, ended=bool(progress.ended))
        return tx.now

    def tell_of(progress: Progress) -> None:
        nonlocal told_at
        if store.read(lambda tx: tx.now) - told_at >= TELL_US:
            told_at = store.write(say).result()

    try:
        work(progress, tell_of)
        progress.ended = progress.ended or "done"
    except SendonceError as error:
        progress.ended, progress.good = str(error), False
    except Exception as error:
        tell(telemetry.STAGE_FAILED, stage="console", **fault(error))
        progress.ended, progress.good = "a bug in sendonce: it was told to whoever runs this service", False
    try:
        store.write(say).result()
    except SendonceError as error:
        tell(telemetry.STORE_UNAVAILABLE, stage="console", **fault(error))


def _text(progress: Progress) -> str:
    return json.dumps(asdict(progress))


def _read(text: str) -> Progress:
    values = json.loads(text)
    whys = [(str(why), int(count)) for why, count in values.pop("whys")]
    return Progress(**{**values, "kind": Kind(values["kind"])}, whys=whys)
