"""Who signs sealed blocks, and who can tell whether one was signed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Signer(Protocol):
    """One private key."""

    @property
    def key(self) -> str:
        """The fingerprint of its public key (`core.seal.fingerprint`)."""
        ...

    def sign(self, payload: bytes) -> str:
        """The signature, in base64."""
        ...


class Verifier(Protocol):
    """The public keys that are trusted."""

    @property
    def keys(self) -> Collection[str]:
        """Their fingerprints."""
        ...

    def holds(self, key: str, payload: bytes, signature: str) -> bool:
        """Whether the key with this fingerprint signed it; no for one that is not trusted. Never raises."""
        ...
