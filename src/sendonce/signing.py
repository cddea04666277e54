"""Ed25519 keys (RFC 8032) for the blocks of the ledger: made, read, used.

A private key is PEM (PKCS #8, RFC 8410), which other programs read too; a public key is its 32 bytes in
base64, which fits into a line of a configuration. The library is an optional one and is loaded when a key is
used.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sendonce.core.errors import ConfigError
from sendonce.core.seal import fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Ed25519Signer:
    """`ports.signer.Signer` with a private key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()
        self.key = fingerprint(self.public)

    def sign(self, payload: bytes) -> str:
        return b64encode(self._private.sign(payload)).decode()


class Ed25519Verifier:
    """`ports.signer.Verifier` with public keys. Raises `ConfigError` where the library is not there."""

    def __init__(self, public_keys: Iterable[bytes]) -> None:
        ed25519 = _library().asymmetric.ed25519
        self._keys: Mapping[str, Ed25519PublicKey] = {
            fingerprint(key): ed25519.Ed25519PublicKey.from_public_bytes(key) for key in public_keys
        }

    @property
    def keys(self) -> Collection[str]:
        return self._keys.keys()

    def holds(self, key: str, payload: bytes, signature: str) -> bool:
        public = self._keys.get(key)
        if public is None:
            return False
        try:
            public.verify(b64decode(signature, validate=True), payload)
        except (_library().invalid, binascii.Error, ValueError):
            return False
        return True


def make_key() -> tuple[str, Ed25519Signer]:
    """A new private key as PEM, and the signer with it."""
    library = _library()
    private = library.asymmetric.ed25519.Ed25519PrivateKey.generate()
    serialization = library.serialization
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode(), Ed25519Signer(private)


def signer_of(pem: str) -> Ed25519Signer:
    """The signer with a private key in PEM. Raises `ConfigError`, which shows nothing of the text."""
    library = _library()
    try:
        private = library.serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, library.unsupported):
        private = None
    if not isinstance(private, library.asymmetric.ed25519.Ed25519PrivateKey):
        raise ConfigError(
            "[audit] key is no Ed25519 private key in PEM without a password: make one with "
            "`sendonce audit key FILE`"
        )
    return Ed25519Signer(private)


class _Library:
    """What is used of it."""

    def __init__(self) -> None:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import asymmetric, serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: F401 (asymmetric has it then)

        self.asymmetric: Any = asymmetric
        self.serialization: Any = serialization
        self.invalid = exceptions.InvalidSignature
        self.unsupported = exceptions.UnsupportedAlgorithm


def _library() -> _Library:
    try:
        return _Library()
    except ImportError:
        raise ConfigError(
            "keys of [audit] need the library cryptography: pip install 'sendonce[audit]'"
        ) from None
