"""`/seals`: how far the ledger and the audit are sealed. Proving it reads everything: `sendonce verify`."""

from __future__ import annotations

from pydantic import Field

from sendonce.api.program import MayAdmin
from sendonce.api.routing import Resource
from sendonce.api.shapes import Instant, Said, instant
from sendonce.core.access import Scope
from sendonce.pipeline.sealed import how_far

resource = Resource("seals", "How far the ledger and the audit are sealed.")


class SealsSaid(Said):
    """The last sealed block. It covers the entries and acts of all tenants."""

    block: int = Field(description="Its number; 0 where nothing is sealed yet.")
    hash: str = Field(description="Keep it where nobody who can write the store can: a later block names it.")
    at: Instant
    signed_by: str = Field(description="The fingerprint of the key; empty where nobody signs.")
    sealed_upto: int = Field(description="The number of the last entry that a block covers.")
    unsealed: int = Field(description="Numbers of entries that no block covers yet.")
    acts_sealed_upto: int = Field(description="The number of the last act of the audit that a block covers.")
    unsealed_acts: int = Field(description="Numbers of acts that no block covers yet.")


@resource.get("/seals", Scope.ADMIN)
def read_seals(caller: MayAdmin) -> SealsSaid:
    """How far the ledger and the audit are sealed, by the last block's own word."""
    far = caller.read(how_far)
    if far.last is None or far.block is None:
        return SealsSaid(
            block=0,
            hash="",
            at=None,
            signed_by="",
            sealed_upto=0,
            unsealed=far.unsealed,
            acts_sealed_upto=0,
            unsealed_acts=far.unsealed_acts,
        )
    return SealsSaid(
        block=far.last.number,
        hash=far.last.hash,
        at=instant(far.block.at),
        signed_by=far.block.key,
        sealed_upto=far.block.upto,
        unsealed=far.unsealed,
        acts_sealed_upto=far.block.acts_upto,
        unsealed_acts=far.unsealed_acts,
    )
