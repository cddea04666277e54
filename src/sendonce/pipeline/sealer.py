"""The sealer: closes the ledger's entries and the acts of the audit into blocks, beside everything else.

It seals up to a number below which nothing can come any more (`fence`). A transaction that stays open holds
up the sealing and nothing else.

One process does it, by a lease. Two at once could not make two chains either: a block's number is there once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sendonce import telemetry
from sendonce.core import seal
from sendonce.core.errors import Refused, StoreMismatch
from sendonce.core.pacing import SECOND
from sendonce.core.seal import Act, Block, Entry, SealedBlock
from sendonce.pipeline.fence import Fence
from sendonce.ports.signer import Signer
from sendonce.ports.store import Store, Tx
from sendonce.telemetry import fault, tell

AGAIN_S: Final = 1.0
"""How soon to look again for what was being written."""

Export = Callable[[str], None]


class Sealer:
    """One process's part, for whichever leads. Blocking.

    `export` takes a checkpoint, a line, out of the store's reach, once in `export_every_s` at most; what it
    raises is told, and it is asked again.
    """

    def __init__(
        self,
        store: Store,
        signer: Signer | None,
        *,
        every_s: float,
        export: Export | None = None,
        export_every_s: float = 0.0,
    ) -> None:
        self._store = store
        self._signer = signer
        self._every_s = every_s
        self._export = export
        self._export_every_us = round(export_every_s * SECOND)
        self._exported, self._exported_at = 0, -self._export_every_us
        self._told = False
        self._fence = Fence()
        self._acts_fence = Fence(lambda tx: tx.seals.acts)

    def step(self) -> float:
        """Seal one block of what may be sealed; how long until the next step. Raises `StoreError`."""
        sealed = self.seal_one()
        if sealed is not None and _is_full(sealed):
            return 0.0
        self.check_point()
        return min(AGAIN_S, self._every_s) if sealed is None and self.waits else self._every_s

    @property
    def waits(self) -> bool:
        """Whether something was not sealed, since somebody was writing."""
        return self._fence.waits or self._acts_fence.waits

    def seal_one(self) -> SealedBlock | None:
        """Seal the next block; None where there is nothing to seal."""
        upto, acts_upto = self._store.read(lambda tx: (self._fence.look(tx), self._acts_fence.look(tx)))
        # Another transaction: it begins after the fences were passed, so it sees all that stands below them.
        found = self._store.read(partial(_next, upto, acts_upto))
        if found is None:
            return None
        leaves = seal.leaves_of(found.entries) + seal.leaves_of_acts(found.acts)
        sealed = self._store.write(partial(self._append, found, leaves)).result()
        if sealed is not None:
            tell(telemetry.SEALED, block=sealed.number, sealed=len(leaves))
            if self._signer is None and not self._told:
                tell(telemetry.SEALS_UNSIGNED)
                self._told = True
        return sealed

    def _append(self, found: _Found, leaves: Sequence[bytes], tx: Tx) -> SealedBlock | None:
        """None where the store may have lost entries, or another process was first."""
        if tx.held or _end(tx) != (found.last, found.last_hash):
            return None
        block = seal.next_block(
            found.last,
            found.last_hash,
            found.entries,
            leaves,
            upto=found.upto,
            acts=found.acts,
            acts_upto=found.acts_upto,
            tombstone=tx.seals.tombstone(),
            at=tx.now,
            key=self._signer.key if self._signer else "",
        )
        header = seal.spell(block)
        signature = self._signer.sign(seal.payload(header)) if self._signer else ""
        sealed = SealedBlock(block.number, header, seal.hash_of(header), signature, seal.joined(leaves))
        tx.seals.append(sealed)
        return sealed

    def check_point(self) -> None:
        """Export the last block, once, where it is time."""
        now = self._store.steady()
        if self._export is None or now - self._exported_at < self._export_every_us:
            return
        last = self._store.read(lambda tx: tx.seals.last())
        if last is None or last.number == self._exported:
            return
        try:
            self._export(seal.spell_checkpoint(last))
        except Exception as error:
            tell(telemetry.CHECKPOINT_FAILED, block=last.number, **fault(error))
            return
        self._exported, self._exported_at = last.number, now


def refuse_unsealed(tx: Tx, gone: Sequence[int]) -> None:
    """For who removes entries, given in order: raises `Refused` where one of them is in no block yet. Of what
    is in one it can be proven that it was there."""
    last, _ = _end(tx)
    if gone and gone[-1] > (last.upto if last is not None else 0):
        raise Refused(f"entry {gone[-1]} of the ledger is not sealed yet: it is removed once it is")


@dataclass(frozen=True, slots=True)
class _Found:
    """What the next block takes in: the entries behind the last block, up to this number; and the acts."""

    last: Block | None
    last_hash: str
    entries: list[Entry]
    upto: int
    acts: list[Act]
    acts_upto: int


def _is_full(sealed: SealedBlock) -> bool:
    block = seal.read(sealed.header)
    acts = sum(map(len, seal.ranges_of(block.acts)))
    return block.upto - block.after >= seal.IDS_MAX or acts >= seal.IDS_MAX


def _next(upto: int, acts_upto: int, tx: Tx) -> _Found | None:
    last, last_hash = _end(tx)
    entries, entries_end = _entries(last.upto if last is not None else 0, upto, tx)
    acts_end = last.acts_upto if last is not None else 0
    acts = tx.seals.acts.between(acts_end, acts_upto, seal.IDS_MAX)
    if acts:
        acts_end = acts[-1][0] if len(acts) >= seal.IDS_MAX else acts_upto
    if entries or acts or tx.seals.tombstone()[0] > (last.tombstone if last is not None else 0):
        return _Found(last, last_hash, entries, entries_end, acts, acts_end)
    return None


def _entries(end: int, upto: int, tx: Tx) -> tuple[list[Entry], int]:
    """The next entries behind `end`, and up to where they are all."""
    after = end
    while after < upto:  # numbers that failed transactions used up may be missing for long
        until = min(upto, after + seal.IDS_MAX)
        entries = tx.seals.entries(after, until, seal.IDS_MAX)
        if entries:
            return entries, until
        after = until
    return [], end


def _end(tx: Tx) -> tuple[Block | None, str]:
    """The last block and its hash. Raises `StoreMismatch` where it is none."""
    last = tx.seals.last()
    if last is None:
        return None, seal.GENESIS
    try:
        return seal.read(last.header), last.hash
    except (ValueError, TypeError, RecursionError):
        raise StoreMismatch(
            f"sealed block {last.number} cannot be read: run `sendonce verify`; nothing is sealed behind it"
        ) from None
