"""Sealed blocks, on any database."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode

from sendonce.core.seal import Act, Entry, SealedBlock
from sendonce.store.session import Session, Tuple


class SqlSeals:
    """`ports.store.Seals` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def acts(self) -> SqlActs:
        return SqlActs(self._session)

    def given(self) -> int:
        return int(self._session.rows("seal_given", {})[0][0])

    def writers(self) -> frozenset[str]:
        return frozenset(str(row[0]) for row in self._session.rows("seal_writers", {}))

    def entries(self, after: int, upto: int, limit: int) -> list[Entry]:
        found = self._session.rows("seal_entries", {"after": after, "upto": upto, "limit": limit})
        return [tuple(row) for row in found]

    def last(self) -> SealedBlock | None:
        rows = self._session.rows("seal_last", {})
        return _block(rows[0]) if rows else None

    def page(self, after: int, limit: int) -> list[SealedBlock]:
        return [_block(row) for row in self._session.rows("seal_page", {"after": after, "limit": limit})]

    def tombstone(self) -> tuple[int, str]:
        rows = self._session.rows("seal_tombstone", {})
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")

    def append(self, block: SealedBlock) -> None:
        self._session.run(
            "seal_put",
            {
                "number": block.number,
                "header": block.header,
                "hash": block.hash,
                "signature": block.signature,
                "leaves": b64encode(block.leaves).decode(),
            },
        )

    def text_of(self, entry: Entry) -> str:
        id_, delivery_id, seq, _ = entry
        rows = self._session.rows("seal_whose", {"id": id_, "delivery_id": delivery_id, "seq": seq})
        return str(rows[0][0]) if rows else ""


class SqlActs:
    """`ports.store.Acts` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def given(self) -> int:
        return int(self._session.rows("seal_acts_given", {})[0][0])

    def writers(self) -> frozenset[str]:
        return frozenset(str(row[0]) for row in self._session.rows("seal_acts_writers", {}))

    def between(self, after: int, upto: int, limit: int) -> list[Act]:
        found = self._session.rows("seal_acts", {"after": after, "upto": upto, "limit": limit})
        return [tuple(row) for row in found]


def _block(row: Tuple) -> SealedBlock:
    number, header, hash_, signature, leaves = row
    try:
        bytes_ = b64decode(str(leaves), validate=True)
    except (binascii.Error, ValueError):
        bytes_ = b"\x00"  # no whole number of hashes: whoever judges it says so
    return SealedBlock(int(number), str(header), str(hash_), str(signature), bytes_)
