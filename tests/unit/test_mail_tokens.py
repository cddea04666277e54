"""Tokens in return paths and unsubscription links: ours are read, all others are refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.delivery import address_tag, send_key
from sendonce.core.mail_token import KEY_DIGITS, TOKEN_LENGTH, mail_token, read_mail_token, tokens_in
from sendonce.core.unsubscribe import (
    TOKEN_LENGTH_MAX,
    Unsubscription,
    read_unsubscribe_token,
    unsubscribe_token,
)

SECRET = b"s" * 32
KEY = send_key(SECRET, "default", "r:c:email", 1)
WHO = Unsubscription("default", address_tag(SECRET, "default", "email", "ann@example.com"), "marketing")


def test_a_return_path_token_leads_back_to_its_send_key() -> None:
    token = mail_token(SECRET, KEY)
    assert read_mail_token(SECRET, token) == KEY[:KEY_DIGITS]
    assert mail_token(SECRET, KEY) == token
    assert len(token) == TOKEN_LENGTH
    assert read_mail_token(SECRET, token.upper()) == KEY[:KEY_DIGITS], "a server may change the case"


@given(st.binary(min_size=32, max_size=32), st.integers(0, TOKEN_LENGTH - 1), st.sampled_from("abcxyz234567"))
def test_a_changed_return_path_token_is_not_ours(key: bytes, place: int, letter: str) -> None:
    token = mail_token(SECRET, key.hex())
    changed = token[:place] + letter + token[place + 1 :]
    # The last letter has bits that stand for nothing.
    same = base64.b32decode(changed.upper() + "=") == base64.b32decode(token.upper() + "=")
    assert (read_mail_token(SECRET, changed) is None) is not same
    assert read_mail_token(b"other", token) is None


@given(st.text(max_size=60))
def test_any_text_is_refused_without_an_error(text: str) -> None:
    assert read_mail_token(SECRET, text) is None
    assert read_unsubscribe_token(SECRET, text) is None
    tokens_in(text)


def test_tokens_are_found_in_addresses_and_headers() -> None:
    token = mail_token(SECRET, KEY)
    for text in (
        f"bounces+{token}@example.com",
        f"<Bounces+{token.upper()}@EXAMPLE.com>",
        f"rfc822; b-{token}@x",
        f'"a" <b={token}@x.example>, {token}',
    ):
        assert tokens_in(text) == [token]
    assert tokens_in(f"x{token}") == []
    assert tokens_in("") == []


def test_an_unsubscription_token_says_who_and_what() -> None:
    token = unsubscribe_token(SECRET, WHO)
    assert read_unsubscribe_token(SECRET, token) == WHO
    assert unsubscribe_token(SECRET, WHO) == token
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    odd = Unsubscription("t\u00e9nant/" + "x" * 190, WHO.address_tag, "*")
    assert read_unsubscribe_token(SECRET, unsubscribe_token(SECRET, odd)) == odd
    assert len(unsubscribe_token(SECRET, odd)) < TOKEN_LENGTH_MAX


@given(st.integers(0, 60), st.sampled_from("abcABC019-_"))
def test_a_changed_unsubscription_token_is_not_ours(place: int, letter: str) -> None:
    token = unsubscribe_token(SECRET, WHO)
    changed = token[:place] + letter + token[place + 1 :]
    assert read_unsubscribe_token(SECRET, changed) == (WHO if changed == token else None)


@pytest.mark.parametrize("token", ["", "A", "=", "A" * 5_000_000, "\u00e9" * 64])
def test_what_is_no_unsubscription_token_is_refused(token: str) -> None:
    assert read_unsubscribe_token(SECRET, token) is None
    assert read_unsubscribe_token(b"other", unsubscribe_token(SECRET, WHO)) is None
