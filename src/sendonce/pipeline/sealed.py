"""The proof of the seals: what was sealed is still there, all of it, as it was and where it was.

1. the blocks: none changed, dropped, swapped or put in; each signed by a trusted key, from the first one
   that is
   signed on
2. the entries: each that a block sealed is there as it was, unless a later tombstone says that it was
   deleted; none
   was put in behind the seal
3. the acts of the audit: each is there as it was, and none was put in
4. the checkpoints: each block that was exported is still the one it was. So nobody can cut off the end, or
   make
   all blocks anew

It reads some blocks at a time, in bounded memory, beside running workers, and stops at nothing. What is
newer than the last block is not sealed yet; and what was cut off behind the last checkpoint, together with
its blocks, only the chains of deliveries can show (`verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from sendonce.core import seal
from sendonce.core.errors import StoreMismatch
from sendonce.core.ledger import Fault
from sendonce.core.seal import Act, Block, Entry, SealedBlock
from sendonce.pipeline.record import body_of
from sendonce.ports.signer import Verifier
from sendonce.ports.store import Row, Store, Tx

PAGE: Final = 8
"""Blocks read at once, with their entries: up to 33,000 of them."""
FAULTS_MAX: Final = 1_000
UNREADABLE_MAX: Final = 8
"""So many blocks in a row that the database itself cannot read, and the rest is not looked at."""
TOMBSTONES: Final = 500
"""Read at once."""
EXTRA_MAX: Final = 1_000
"""So many more entries than a page's blocks count are read, to name those that were put in."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Sealed:
    """What was checked. `faults` are the first `FAULTS_MAX` of `faulty`.

    entries     that a block sealed
    deleted     of them, and a tombstone says so
    unsigned    blocks that nobody signed
    unsealed    numbers of entries that no block covers yet
    acts        that a block sealed, of the audit; and `unsealed_acts`
    """

    blocks: int = 0
    unsigned: int = 0
    entries: int = 0
    deleted: int = 0
    unsealed: int = 0
    acts: int = 0
    unsealed_acts: int = 0
    checkpoints: int = 0
    faulty: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.faulty == 0

    def add(self, key: str, what: str, seq: int = 0) -> None:
        self.faulty += 1
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(key, seq, what))


@dataclass(frozen=True, slots=True)
class HowFar:
    """How far all is sealed, by the last block's own word; `last` and `block` None where there is none yet.

    unsealed    numbers of entries that no block covers yet; `unsealed_acts` the same of the audit
    """

    last: SealedBlock | None
    block: Block | None
    unsealed: int
    unsealed_acts: int


def how_far(tx: Tx) -> HowFar:
    """Asks for numbers only: proving it reads everything, and is `check_seals`.

    Raises `StoreMismatch` where the last block cannot be read.
    """
    last, block = tx.seals.last(), None
    if last is not None:
        try:
            block = seal.read(last.header)
        except (ValueError, TypeError, RecursionError):
            raise StoreMismatch(f"sealed block {last.number} cannot be read: run `sendonce verify`") from None
    upto, acts_upto = (block.upto, block.acts_upto) if block is not None else (0, 0)
    # What a restored store numbers anew may lie below what was sealed before.
    return HowFar(last, block, max(0, tx.seals.given() - upto), max(0, tx.seals.acts.given() - acts_upto))


def check_seals(
    store: Store,
    verifier: Verifier | None,
    checkpoints: Iterable[str] = (),
    *,
    progress: Callable[[Sealed], None] = lambda sealed: None,
) -> Sealed:
    """Check everything. Without `verifier` no signature is looked at. `checkpoints` are lines, in order."""
    return _Check(store, verifier, progress).run(checkpoints)


class _Check:
    def __init__(self, store: Store, verifier: Verifier | None, progress: Callable[[Sealed], None]) -> None:
        self._store = store
        self._verifier = verifier
        self._progress = progress
        self._found = Sealed()
        self._exported: dict[int, tuple[int, str, int]] = {}  # block -> line, hash, at
        self._signed = 0  # the first block that was signed
        self._gone: list[range] = []
        self._tombstone = 0  # the last that was read

    def run(self, checkpoints: Iterable[str]) -> Sealed:
        self._read_checkpoints(checkpoints)
        self._read_tombstones()
        upto, acts_upto, number = self._check_blocks()
        found = self._found
        given, acts_given = self._store.read(lambda tx: (tx.seals.given(), tx.seals.acts.given()))
        found.unsealed, found.unsealed_acts = max(0, given - upto), max(0, acts_given - acts_upto)
        for missing in sorted(self._exported):
            line, _, at = self._exported[missing]
            end = (
                f"the store ends at block {number}: its end was cut off" if missing > number else "it is gone"
            )
            found.add(f"block {missing}", f"line {line} of the checkpoints has it, of {_when(at)}; {end}")
        return found

    # Checkpoints

    def _read_checkpoints(self, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines, start=1):
            place = f"checkpoint {number}"
            try:
                checkpoint, block = seal.read_checkpoint(line)
            except (ValueError, TypeError, RecursionError) as error:
                self._found.add(place, f"line {number} of the checkpoints was torn or changed: {error}")
                continue
            self._found.checkpoints += 1
            for fault in self._signature_faults(block, checkpoint.header, checkpoint.signature):
                self._found.add(place, f"line {number} of the checkpoints: {fault}")
            before = self._exported.setdefault(block.number, (number, checkpoint.hash, block.at))
            if before[1] != checkpoint.hash:
                self._found.add(
                    place, f"lines {before[0]} and {number} have two blocks with the number {block.number}"
                )

    # Tombstones: whether they hold is for `verify`

    def _read_tombstones(self) -> None:
        try:
            while page := self._store.read(partial(_tombstones, self._tombstone)):
                texts = [_gone(str(row["body"])) for row in page]
                self._gone = seal.merged([*map(_spelled, self._gone), *filter(None, texts)])
                self._tombstone = int(page[-1]["number"])
        except StoreMismatch as error:
            self._found.add(f"tombstone {self._tombstone + 1}", f"the database cannot read it: {error}")

    def _tombstone_faults(self, block: Block, last: Block | None) -> Iterator[str]:
        """The one that it names must be the one that is there."""
        if block.tombstone == (last.tombstone if last is not None else 0):
            return
        rows = self._store.read(partial(_tombstones, block.tombstone - 1))
        if not rows or int(rows[0]["number"]) != block.tombstone:
            yield f"tombstone {block.tombstone}, which it names, is gone"
        elif rows[0]["hash"] != block.tombstone_hash:
            yield f"tombstone {block.tombstone} is another one than it names"

    # Blocks

    def _check_blocks(self) -> tuple[int, int, int]:
        """Up to which entry and which act the last block goes, and its number."""
        last: Block | None = None
        last_hash: str | None = seal.GENESIS  # None: the block before is not there, or cannot be read
        number = upto = acts_upto = 0
        for page in self._pages():
            for read in page:
                if read is None:
                    number, last_hash = number + 1, None
                    continue
                sealed, block = read.sealed, read.block
                if sealed.number != number + 1:
                    self._found.add(
                        f"block {number + 1}", f"it is gone: block {sealed.number} is the next one there"
                    )
                    last_hash = None
                number = sealed.number
                self._found.blocks += 1
                faults = list(read.faults)
                if block is not None:
                    if last_hash is not None:
                        faults += seal.follows(block, last, last_hash)
                    faults += self._signature_faults(block, sealed.header, sealed.signature)
                    faults += self._order_faults(block)
                    faults += self._tombstone_faults(block, last)
                    self._check_entries(block, read.leaves[: block.count], read.entries)
                    self._check_acts(block, read.leaves[block.count :], read.acts)
                    upto, acts_upto = max(upto, block.upto), max(acts_upto, block.acts_upto)
                faults += self._export_faults(sealed)
                for fault in faults:
                    self._found.add(f"block {number}", fault)
                last, last_hash = block, sealed.hash if block is not None else None
            self._progress(self._found)
        return upto, acts_upto, number

    def _pages(self) -> Iterator[Sequence[_Read | None]]:
        """All blocks, some at a time; None where the database cannot read one, or its entries."""
        number, size, unreadable = 0, PAGE, 0
        while unreadable < UNREADABLE_MAX:
            try:
                page = self._store.read(partial(_page, number, size))
            except StoreMismatch as error:
                if size > 1:
                    size = 1
                    continue
                unreadable += 1
                number += 1
                self._found.add(f"block {number}", f"the database cannot read it, or its entries: {error}")
                yield [None]
                continue
            if not page:
                return
            yield page
            number, size, unreadable = page[-1].sealed.number, PAGE, 0

    def _signature_faults(self, block: Block, header: str, signature: str) -> Iterator[str]:
        if not block.key:
            if signature:
                yield "it has a signature, and names no key"
        elif not signature:
            yield f"the signature of key {block.key} is gone"
        elif self._verifier is not None and block.key not in self._verifier.keys:
            yield f"key {block.key} signed it, which [audit] public_keys does not name"
        elif self._verifier is not None and not self._verifier.holds(
            block.key, seal.payload(header), signature
        ):
            yield f"its signature is not that of key {block.key}"

    def _order_faults(self, block: Block) -> Iterator[str]:
        if block.key:
            self._signed = self._signed or block.number
        else:
            self._found.unsigned += 1
            if self._signed:
                yield f"it is not signed, and block {self._signed} before it is"

    def _export_faults(self, sealed: SealedBlock) -> Iterator[str]:
        line, hash_, at = self._exported.pop(sealed.number, (0, sealed.hash, 0))
        if hash_ != sealed.hash:
            yield f"it is another one than in line {line} of the checkpoints, of {_when(at)}"

    # Entries

    def _check_entries(self, block: Block, leaves: Sequence[bytes], entries: Sequence[Entry]) -> None:
        found = self._found
        found.entries += block.count
        now = seal.leaves_of(entries)
        if now == leaves:
            return
        ids = [id_ for each in seal.ranges_of(block.ids) for id_ in each]
        sealed = dict(zip(ids, leaves, strict=True))
        there = {entry[0]: (entry, leaf) for entry, leaf in zip(entries, now, strict=True)}
        self._check_missing(block, [id_ for id_ in ids if id_ not in there])
        for id_, (entry, leaf) in there.items():
            if id_ not in sealed:
                what = f"entry {id_} of the ledger was put in behind the seal of block {block.number}"
            elif leaf != sealed[id_]:
                what = f"entry {id_} of the ledger is another one than block {block.number} sealed"
            else:
                continue
            key, seq = self._whose(entry)
            found.add(key, f"{what} on {_when(block.at)}", seq)

    def _check_missing(self, block: Block, missing: Sequence[int]) -> None:
        if not missing:
            return
        lost = seal.unexplained(missing, self._gone)
        if lost:
            self._read_tombstones()  # one may have come a moment ago, with what it took away
            lost = seal.unexplained(missing, self._gone)
        self._found.deleted += len(missing) - len(lost)
        if lost:
            self._found.add(
                f"block {block.number}",
                f"entries {seal.spell_ids(lost)} of the ledger are gone, {len(lost)} of {block.count} that "
                f"were sealed on {_when(block.at)}, and no tombstone says why",
            )

    # Acts

    def _check_acts(self, block: Block, leaves: Sequence[bytes], acts: Sequence[Act]) -> None:
        found = self._found
        found.acts += len(leaves)
        now = seal.leaves_of_acts(acts)
        if now == leaves:
            return
        ids = [id_ for each in seal.ranges_of(block.acts) for id_ in each]
        sealed = dict(zip(ids, leaves, strict=True))
        there = {act[0]: leaf for act, leaf in zip(acts, now, strict=True)}
        sealed_on = f"sealed on {_when(block.at)}"
        if gone := [id_ for id_ in ids if id_ not in there]:
            found.add(
                f"block {block.number}",
                f"acts {seal.spell_ids(gone)} of the audit are gone, {len(gone)} of {len(ids)} that were "
                f"{sealed_on}, and nobody may remove any",
            )
        for id_, leaf in there.items():
            if id_ not in sealed:
                what = f"act {id_} was put in behind the seal of block {block.number}, {sealed_on}"
            elif leaf != sealed[id_]:
                what = f"act {id_} is another one than block {block.number} {sealed_on}"
            else:
                continue
            found.add("the audit", what, id_)

    def _whose(self, entry: Entry) -> tuple[str, int]:
        body = body_of(self._store.read(lambda tx: tx.seals.text_of(entry)))
        key = str(body.get("key") or f"id {entry[1]}")
        return key, entry[2] if isinstance(entry[2], int) else 0


@dataclass(frozen=True, slots=True)
class _Read:
    """A kept block, what it says, and the entries that stand where it sealed some."""

    sealed: SealedBlock
    block: Block | None
    leaves: Sequence[bytes]
    faults: Sequence[str]
    entries: Sequence[Entry]
    acts: Sequence[Act]


def _page(after: int, limit: int, tx: Tx) -> list[_Read]:
    """Some blocks behind this number, at one look."""
    found = []
    for sealed in tx.seals.page(after, limit):
        block, leaves, faults = seal.judged(sealed)
        entries = tx.seals.entries(block.after, block.upto, block.count + EXTRA_MAX) if block else []
        acts = (
            tx.seals.acts.between(block.acts_after, block.acts_upto, len(leaves) - block.count + EXTRA_MAX)
            if block
            else []
        )
        found.append(_Read(sealed, block, leaves, faults, entries, acts))
    return found


def _tombstones(after: int, tx: Tx) -> list[Row]:
    return tx.rows("view_tombstones", after=after, limit=TOMBSTONES)


def _gone(body: str) -> str:
    """The numbers of the entries that a tombstone took away; "" where it does not say."""
    text = body_of(body).get("gone")
    try:
        return text if isinstance(text, str) and seal.ranges_of(text) else ""
    except ValueError:
        return ""


def _spelled(ids: range) -> str:
    return f"{ids.start}-{ids.stop - 1}"


def _when(at: int) -> str:
    """An instant for people; never raises for what somebody wrote there."""
    try:
        return f"{_EPOCH + timedelta(microseconds=at):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"instant {at}"
