"""Keys: what was signed holds under its key alone, other programs read them, and nothing is shown of one."""

from __future__ import annotations

import sys
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.seal import fingerprint, public_key_of, spell_public_key
from sendonce.signing import Ed25519Signer, Ed25519Verifier, make_key, signer_of

# RFC 8032, section 7.1, test 2.
SECRET = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
MESSAGE = bytes.fromhex("72")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_signatures_are_those_of_the_rfc() -> None:
    signer = Ed25519Signer(ed25519.Ed25519PrivateKey.from_private_bytes(SECRET))
    assert (signer.public, signer.key) == (PUBLIC, fingerprint(PUBLIC))
    signature = signer.sign(MESSAGE)
    assert signature == b64encode(SIGNATURE).decode()
    assert Ed25519Verifier([PUBLIC]).holds(signer.key, MESSAGE, signature)


def test_what_another_key_signed_or_another_text_does_not_hold() -> None:
    (_, one), (_, two) = make_key(), make_key()
    verifier = Ed25519Verifier([one.public, two.public])
    assert set(verifier.keys) == {one.key, two.key}
    signature = one.sign(b"text")
    assert verifier.holds(one.key, b"text", signature)
    assert not verifier.holds(two.key, b"text", signature)
    assert not verifier.holds(one.key, b"texT", signature)
    assert not verifier.holds("0" * 16, b"text", signature)
    for wrong in ("", "?", signature[:-4], signature.swapcase()):
        assert not verifier.holds(one.key, b"text", wrong)


def test_a_key_goes_into_a_file_and_comes_back() -> None:
    pem, signer = make_key()
    assert isinstance(load_pem_private_key(pem.encode(), None), ed25519.Ed25519PrivateKey)
    assert signer_of(pem).key == signer.key
    assert signer_of(pem.rstrip()).public == signer.public
    assert public_key_of(spell_public_key(signer.public)) == signer.public


def other_key() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize(
    "text", ["", "secret", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"]
)
def test_what_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError, match="no Ed25519 private key in PEM") as refused:
        signer_of(text)
    assert "secret" not in str(refused.value)
    assert "c2VjcmV0" not in str(refused.value)


def test_a_key_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="sendonce audit key FILE"):
        signer_of(other_key())


@pytest.mark.parametrize("text", ["", "x", b64encode(b"short").decode(), b64encode(bytes(33)).decode()])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be 32 bytes in base64"):
        public_key_of(text)


def test_without_the_library_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for use in (make_key, lambda: signer_of("x"), lambda: Ed25519Verifier([PUBLIC])):
        with pytest.raises(ConfigError, match=r"pip install 'sendonce\[audit\]'"):
            use()
