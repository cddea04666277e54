"""The seal: the entries of all deliveries, and what people did besides, closed block by block, so that nobody
can change them unseen.

A delivery's own chain (`ledger`) proves it against its row. That a whole delivery was taken away, or its row
and entries rewritten together, it cannot show. The seals can: they cover the entries of all deliveries in
the order of their numbers in the store. Beside them they cover the acts of people that belong to no one
delivery (limits, pauses, releases), which stand in the audit under numbers of their own.

    block n     header      {number, previous, after, upto, ids, count, acts_after, acts_upto, acts, root,
                             tombstone, tombstone_hash, at, key}, canonical JSON
                hash        SHA-256 of the header; block n + 1 names it as `previous`
                signature   Ed25519 over `payload(header)`, or none
                leaves      the hash of each entry, then of each act, from which `root` follows

The root is the Merkle Tree Hash of RFC 6962, section 2.1. A block covers all numbers above `after` up to
`upto`, and `ids` says which of them were there: numbers that a failed transaction used up are not, for ever.
The leaves are kept beside the header: they name the very entry that is another one now, and give the root
also after entries were deleted.

Entries may be deleted where a tombstone says so. Each block names the newest one, so that tombstones too are
sealed. What is missing and in no tombstone is a fault (`unexplained`). Who deletes must leave the newest
entry of the store: SQLite would give its number to the next one. Acts are never deleted.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from sendonce.core.errors import InvalidInput
from sendonce.core.value import value

GENESIS: Final = ""
"""The hash before the first block."""

IDS_MAX: Final = 4_096
"""Numbers that one block covers, where they are there: some milliseconds of work, and 180 kB of leaves."""

_DOMAIN: Final = b"sendonce-seal-1\n"
_NODE: Final = b"\x01"
_DIGEST: Final = 32
_PUBLIC_KEY: Final = 32
_NUMBER_MAX: Final = 2**63 - 1

Entry = tuple[int, int, int, str]
"""What a leaf covers: the entry's number in the store, its delivery's id, its seq there, and its hash."""

Act = tuple[int, int, str, str, str, str, str]
"""What somebody did, as the audit has it: number, at, actor, action, target, reason, body."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


@value
class Block:
    """What a header says.

    after   it covers entries with a number above this ...
    upto    ... up to this
    ids     which of them were there: "1-250,252-300"
    acts_after, acts_upto, acts   the same of the acts in the audit
    at      when it was made, microseconds UTC, the store's calendar
    key     the fingerprint of the key that signs it; "" where nobody does
    tombstone, tombstone_hash   the newest one then; 0 and "" where there was none
    """

    number: int
    previous: str
    after: int
    upto: int
    ids: str
    count: int
    acts_after: int
    acts_upto: int
    acts: str
    root: str
    tombstone: int
    tombstone_hash: str
    at: int
    key: str


@value
class SealedBlock:
    """A block as it is kept. `leaves` are the hashes of its entries and acts, one behind the other."""

    number: int
    header: str
    hash: str
    signature: str
    leaves: bytes


def leaves_of(entries: Iterable[Entry]) -> list[bytes]:
    """The leaf of each entry. Its text is covered by its own hash."""
    sha256 = hashlib.sha256
    return [
        sha256(f"\x00{id_}:{delivery_id}:{seq}:{hash_}".encode()).digest()
        for id_, delivery_id, seq, hash_ in entries
    ]


def leaves_of_acts(acts: Iterable[Act]) -> list[bytes]:
    """The leaf of each act, over all that stands there, whatever it is. No leaf of an entry begins so."""
    texts = (_encode([str(column) for column in act]) for act in acts)
    return [hashlib.sha256(f"\x00act:{text}".encode()).digest() for text in texts]


def root_of(leaves: Sequence[bytes]) -> str:
    """The Merkle Tree Hash over leaves that are hashed already, 64 hex digits.

    RFC 6962 splits at the largest power of two below the size. Level by level that is: hash the pairs, and
    hand a last one without a neighbour on as it is.
    """
    sha256 = hashlib.sha256
    level = leaves
    if not level:
        return sha256().hexdigest()
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        above = [sha256(_NODE + left + right).digest() for left, right in pairs]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0].hex()


def joined(leaves: Iterable[bytes]) -> bytes:
    return b"".join(leaves)


def split(leaves: bytes) -> list[bytes]:
    """The leaves of a block, one by one. Raises `ValueError` where they are no whole number of hashes."""
    if len(leaves) % _DIGEST:
        raise ValueError(f"{len(leaves)} bytes are no whole number of hashes")
    return [leaves[at : at + _DIGEST] for at in range(0, len(leaves), _DIGEST)]


def spell(block: Block) -> str:
    """The canonical text of a header: what is hashed, signed and exported."""
    return _encode({name: getattr(block, name) for name in _FIELDS})


def read(header: str) -> Block:
    """A header's text. Raises `ValueError` where it is none, also where it is spelled in another way."""
    body = json.loads(header)
    if not isinstance(body, dict) or set(body) != set(_FIELDS):
        raise ValueError("it has not the fields of a header")
    for name, kind in _FIELDS.items():
        if type(body[name]) is not kind:
            raise ValueError(f"its {name} is not of the right kind")
    block = Block(**body)
    if spell(block) != header:
        raise ValueError("it is not spelled as headers are")
    return block


_FIELDS: Final = {
    "number": int,
    "previous": str,
    "after": int,
    "upto": int,
    "ids": str,
    "count": int,
    "acts_after": int,
    "acts_upto": int,
    "acts": str,
    "root": str,
    "tombstone": int,
    "tombstone_hash": str,
    "at": int,
    "key": str,
}


def hash_of(header: str) -> str:
    return hashlib.sha256(header.encode()).hexdigest()


def payload(header: str) -> bytes:
    """What is signed: the header behind a line that no other use of the key begins with."""
    return _DOMAIN + header.encode()


def public_key_of(text: str) -> bytes:
    """An Ed25519 public key in base64. Raises `InvalidInput` with the rule, to stand behind its place."""
    try:
        key = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _PUBLIC_KEY:
        raise InvalidInput(
            f"= {text!r:.80} must be {_PUBLIC_KEY} bytes in base64, as `sendonce audit key` shows them"
        )
    return key


def spell_public_key(key: bytes) -> str:
    return b64encode(key).decode()


def fingerprint(public_key: bytes) -> str:
    """The short name of a public key, 16 hex digits."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def next_block(
    last: Block | None,
    last_hash: str,
    entries: Sequence[Entry],
    leaves: Sequence[bytes],
    *,
    upto: int,
    acts: Sequence[Act] = (),
    acts_upto: int = 0,
    tombstone: tuple[int, str] = (0, ""),
    at: int,
    key: str,
) -> Block:
    """The block of what stands behind `last` up to `upto`, and in the audit up to `acts_upto`: these entries
    and acts, in order, and the leaves of both."""
    return Block(
        number=last.number + 1 if last is not None else 1,
        previous=last_hash,
        after=last.upto if last is not None else 0,
        upto=upto,
        ids=spell_ids(entry[0] for entry in entries),
        count=len(entries),
        acts_after=last.acts_upto if last is not None else 0,
        acts_upto=acts_upto,
        acts=spell_ids(act[0] for act in acts),
        root=root_of(leaves),
        tombstone=tombstone[0],
        tombstone_hash=tombstone[1],
        at=at,
        key=key,
    )


# Numbers of entries, in short


def spell_ids(ids: Iterable[int]) -> str:
    """Ascending numbers as ranges: "1-250,252-300"."""
    ranges: list[list[int]] = []
    for id_ in ids:
        if ranges and id_ == ranges[-1][1] + 1:
            ranges[-1][1] = id_
        elif ranges and id_ <= ranges[-1][1]:
            raise ValueError(f"{id_} is not above {ranges[-1][1]}")
        else:
            ranges.append([id_, id_])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def ranges_of(text: str) -> list[range]:
    """The ranges of such a text. Raises `ValueError` where it is none."""
    ranges: list[range] = []
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        each = range(int(low), int(high if dash else low) + 1)
        if not each or (ranges and each.start <= ranges[-1].stop - 1):
            raise ValueError(f"{part!r} is out of order")
        ranges.append(each)
    return ranges


def merged(texts: Iterable[str]) -> list[range]:
    """What all of these texts name, as ranges in order that do not touch. Raises `ValueError`."""
    found: list[range] = []
    for each in sorted(chain.from_iterable(map(ranges_of, texts)), key=lambda each: each.start):
        if found and each.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found


def unexplained(missing: Iterable[int], gone: Sequence[range]) -> list[int]:
    """Which of these missing entries no tombstone explains. `gone`: what all of them took away, `merged`."""
    starts = [each.start for each in gone]
    return [id_ for id_ in missing if not (at := bisect_right(starts, id_)) or id_ not in gone[at - 1]]


# Judging what is kept


def judged(sealed: SealedBlock) -> tuple[Block | None, list[bytes], list[str]]:
    """What a kept block says, its leaves, and what is wrong with it by itself; None where it says nothing
    usable.

    Signatures are for whoever knows the keys.
    """
    try:
        block = read(sealed.header)
        ids, acts = ranges_of(block.ids), ranges_of(block.acts)
        leaves = split(sealed.leaves)
    except (ValueError, TypeError, RecursionError) as error:
        return None, [], [f"it cannot be read: {error}"]
    if not (0 <= block.after <= block.upto <= _NUMBER_MAX and 0 <= block.tombstone <= _NUMBER_MAX):
        return None, [], [f"it covers entries {block.after + 1} to {block.upto}, which cannot be"]
    if not 0 <= block.acts_after <= block.acts_upto <= _NUMBER_MAX:
        return None, [], [f"it covers acts {block.acts_after + 1} to {block.acts_upto}, which cannot be"]
    done = sum(map(len, acts))
    if block.count != sum(map(len, ids)) or len(leaves) != block.count + done:
        return None, [], [f"it counts {block.count} entries and {done} acts, and has {len(leaves)} leaves"]
    return block, leaves, list(_own_faults(sealed, block, ids, acts, leaves))


def follows(block: Block, last: Block | None, last_hash: str) -> list[str]:
    """What keeps a block from standing behind the last one."""
    faults = []
    if block.previous != last_hash:
        faults.append("it does not follow the block before it: one of the two is another")
    if block.after != (last.upto if last is not None else 0):
        faults.append(f"it begins behind entry {block.after}, and the block before it does not end there")
    if block.acts_after != (last.acts_upto if last is not None else 0):
        faults.append(f"it begins behind act {block.acts_after}, and the block before it does not end there")
    if last is not None and block.tombstone < last.tombstone:
        faults.append(f"it knows {block.tombstone} tombstones, and the block before it {last.tombstone}")
    return faults


def _own_faults(
    sealed: SealedBlock,
    block: Block,
    ids: Sequence[range],
    acts: Sequence[range],
    leaves: Sequence[bytes],
) -> Iterator[str]:
    if hash_of(sealed.header) != sealed.hash:
        yield "its header does not give its hash"
    if block.number != sealed.number:
        yield f"its header is that of block {block.number}"
    if root_of(leaves) != block.root:
        yield "its leaves do not give its root"
    if ids and not block.after < ids[0].start <= ids[-1][-1] <= block.upto:
        yield "its entries lie outside of what it covers"
    if acts and not block.acts_after < acts[0].start <= acts[-1][-1] <= block.acts_upto:
        yield "its acts lie outside of what it covers"


# Checkpoints: what is exported, so that a copy is out of reach of whoever can write the store


@value
class Checkpoint:
    """That this block was there. It fixes all blocks before it too."""

    header: str
    hash: str
    signature: str


def spell_checkpoint(sealed: SealedBlock) -> str:
    """One line, without its end."""
    return _encode({"header": sealed.header, "hash": sealed.hash, "signature": sealed.signature})


def read_checkpoint(line: str) -> tuple[Checkpoint, Block]:
    """Such a line, and what its header says. Raises `ValueError` where it is none."""
    body = json.loads(line)
    if not isinstance(body, dict) or set(body) != {"header", "hash", "signature"}:
        raise ValueError("it has not the fields of a checkpoint")
    if not all(isinstance(each, str) for each in body.values()):
        raise ValueError("its fields are not text")
    checkpoint = Checkpoint(body["header"], body["hash"], body["signature"])
    if hash_of(checkpoint.header) != checkpoint.hash:
        raise ValueError("its header does not give its hash")
    return checkpoint, read(checkpoint.header)
