"""`/seals`: how far the ledger is sealed. Proving it reads all of it, and is for `sendonce verify`."""

from __future__ import annotations

from pydantic import Field

from sendonce.api.program import MayAdmin
from sendonce.api.routing import Resource
from sendonce.api.shapes import Instant, Said, instant
from sendonce.core import seal
from sendonce.core.access import Scope
from sendonce.core.errors import StoreMismatch
from sendonce.ports.store import Tx

resource = Resource("seals", "How far the ledger is sealed.")


class SealsSaid(Said):
    """The last sealed block. It covers the entries of all tenants."""

    block: int = Field(description="Its number; 0 where nothing is sealed yet.")
    hash: str = Field(description="Keep it where nobody who can write the store can: a later block names it.")
    at: Instant
    signed_by: str = Field(description="The fingerprint of the key; empty where nobody signs.")
    sealed_upto: int = Field(description="The number of the last entry that a block covers.")
    unsealed: int = Field(description="Numbers of entries that no block covers yet.")


@resource.get("/seals", Scope.ADMIN)
def read_seals(caller: MayAdmin) -> SealsSaid:
    """How far the ledger is sealed, by the last block's own word."""
    return caller.read(_state)


def _state(tx: Tx) -> SealsSaid:
    given, last = tx.seals.given(), tx.seals.last()
    if last is None:
        return SealsSaid(block=0, hash="", at=None, signed_by="", sealed_upto=0, unsealed=given)
    try:
        block = seal.read(last.header)
    except (ValueError, TypeError, RecursionError):
        raise StoreMismatch(f"sealed block {last.number} cannot be read: run `sendonce verify`") from None
    return SealsSaid(
        block=last.number,
        hash=last.hash,
        at=instant(block.at),
        signed_by=block.key,
        sealed_upto=block.upto,
        unsealed=max(0, given - block.upto),
    )
