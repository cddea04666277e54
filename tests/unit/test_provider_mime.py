"""Emails as bytes: what goes in comes out of a parser, and nothing else does."""

from __future__ import annotations

import email.policy
import re
from email.message import EmailMessage
from email.message import Message as Message_
from email.parser import BytesParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.errors import InvalidInput
from sendonce.ports.provider import EmailContent, Message
from sendonce.providers.mime import build_email, one_line

KEY = "0123456789abcdef" * 4
FROZEN_AT = 1_790_843_000_000_000  # 2026-10-01 08:23:20 UTC
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=300)
PRINTABLE = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=200
)


def built(
    subject: str = "Hello",
    text: str = "It's due.",
    html: str = "",
    sender: str = "Shop <shop@example.org>",
    reply_to: str = "",
    to: str = "ann@example.com",
) -> bytes:
    content = EmailContent(subject, text, html, sender, reply_to)
    return build_email(Message("r:c:email", KEY, to, content, FROZEN_AT), content)


def parsed(wire: bytes) -> EmailMessage:
    message = BytesParser(policy=email.policy.default).parsebytes(wire)
    assert isinstance(message, EmailMessage)
    assert not message.defects
    return message


def assert_fit_for_smtp(wire: bytes) -> None:
    assert wire.isascii()
    assert wire.endswith(b"\r\n")
    assert b"\r" not in wire.replace(b"\r\n", b"")
    assert b"\n" not in wire.replace(b"\r\n", b"")
    assert b"\0" not in wire
    lines = wire.split(b"\r\n")
    assert max(len(line) for line in lines if not line.startswith(b"X-Sendonce-Key: ")) <= 78


def test_a_plain_message_to_the_byte() -> None:
    assert built() == (
        b"Date: Thu, 01 Oct 2026 08:23:20 +0000\r\n"
        b"From: Shop <shop@example.org>\r\n"
        b"To: ann@example.com\r\n"
        b"Subject: Hello\r\n"
        b"Message-ID: <0123456789abcdef0123456789abcdef01234567@example.org>\r\n"
        b"X-Sendonce-Key: %(key)b\r\n"
        b"Auto-Submitted: auto-generated\r\n"
        b"MIME-Version: 1.0\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: quoted-printable\r\n"
        b"\r\n"
        b"It's due.\r\n" % {b"key": KEY.encode()}
    )


def test_text_and_html_are_alternatives() -> None:
    message = parsed(built(text="Plain é", html="<p>Rich é</p>"))
    assert message.get_content_type() == "multipart/alternative"
    kinds = [(part.get_content_type(), payload_of(part)) for part in message.iter_parts()]
    assert kinds == [("text/plain", "Plain é\r\n"), ("text/html", "<p>Rich é</p>\r\n")]


def test_html_alone_and_nothing_at_all() -> None:
    assert parsed(built(text="", html="<p>x</p>")).get_content_type() == "text/html"
    assert parsed(built(text="")).get_content_type() == "text/plain"


@pytest.mark.parametrize(
    "subject",
    [
        "Reminder " * 22 + "end",
        "Reminder " * 22,
        "A" * 300,
        "A" * 1000 + " b",
        "é " * 100,
        "é" * 500,
        "\N{GRINNING FACE}" * 100,
        "Zoë, it's due tomorrow",
        "Дое, Джейн " * 20,
        "a" * 60 + "é" + "b" * 60 + " " * 40 + "c",
        " leading and trailing ",
        "two  blanks   and more" * 8,
        "=?utf-8?q?not_encoded?=",
        "=?utf-8?b?broken",
        "colon: and <angle> \"quote\" \\ ;,@",
        "_under_score = equals ? question",
        "1234567890 " * 7 + "é",
        "a" * 68,
        "a" * 69,
        "a" * 70,
        ("b" * 30 + " ") * 9 + "c" * 78,
    ],
)  # fmt: skip
def test_a_subject_comes_back_as_it_was(subject: str) -> None:
    """CONT-03."""
    wire = built(subject=subject)
    assert_fit_for_smtp(wire)
    assert decoded_subject(wire) == subject


def test_a_long_display_name_in_another_script_comes_back() -> None:
    wire = built(sender="名前" * 40 + " <jane@example.com>")
    assert_fit_for_smtp(wire)
    assert decoded_header(wire, "From") == "名前" * 40 + " <jane@example.com>"


def decoded_subject(wire: bytes) -> str:
    return decoded_header(wire, "Subject")


def decoded_header(wire: bytes, name: str) -> str:
    """By RFC 5322 unfolding and RFC 2047 alone; Python's own parser adds and loses blanks."""
    head = wire.partition(b"\r\n\r\n")[0].decode("ascii")
    unfolded = re.sub(r"\r\n(?=[ \t])", "", head)
    value = next(line for line in unfolded.split("\r\n") if line.startswith(f"{name}:"))
    value = value.removeprefix(f"{name}:").removeprefix(" ")
    if not re.search(r"=\?utf-8\?[qb]\?", value):
        return value
    joined = re.sub(r"(?<=\?=)[ \t]+(?==\?)", "", value)
    return re.sub(r"=\?utf-8\?([qb])\?([^? ]*)\?=", lambda word: decode_word(*word.groups()), joined)


def decode_word(kind: str, text: str) -> str:
    """Each word must be whole text by itself: a character is never cut (RFC 2047 5)."""
    import base64
    import quopri

    assert len(f"=?utf-8?{kind}?{text}?=") <= 75
    raw = base64.b64decode(text, validate=True) if kind == "b" else quopri.decodestring(text, header=True)
    return raw.decode("utf-8")


@given(PRINTABLE)
def test_any_printable_subject_comes_back(subject: str) -> None:
    wire = built(subject=subject)
    assert_fit_for_smtp(wire)
    assert decoded_subject(wire) == subject


@given(PRINTABLE.filter(lambda text: text == text.strip()))
def test_pythons_parser_reads_subjects_too(subject: str) -> None:
    if "=?" not in subject:  # it decodes what was sent encoded once more
        assert parsed(built(subject=subject))["Subject"] == subject


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("Ann\r\nBcc: spy@example.net", "Reminder for Ann Bcc: spy@example.net"),
        ("Ann\nX: 1", "Reminder for Ann X: 1"),
        ("Ann\u2028Bcc: x", "Reminder for Ann Bcc: x"),
        ("Ann\u0085x", "Reminder for Ann x"),
        ("Ann\u000bx", "Reminder for Ann x"),
        ("Ann\r\n\r\n", "Reminder for Ann"),
        ("Ann\0\x1b[31m", "Reminder for Ann [31m"),
    ],
)
def test_a_line_break_in_a_subject_becomes_one_blank(name: str, subject: str) -> None:
    """CONT-01."""
    message = parsed(built(subject=f"Reminder for {name}"))
    assert message["Subject"] == subject
    assert message["Bcc"] is None
    assert message["X"] is None
    assert len(message.keys()) == len(parsed(built()).keys())


@given(TEXT)
def test_no_subject_adds_a_header_or_a_line(subject: str) -> None:
    wire = built(subject=subject)
    assert_fit_for_smtp(wire)
    assert decoded_subject(wire) == one_line(subject)
    assert len(parsed(wire).keys()) == len(parsed(built()).keys())


@pytest.mark.parametrize(
    "name",
    [
        "Doe, Jane",
        "Support (Billing)",
        'Jane "JJ" Doe',
        "a@b.example",
        "Jane; Inc: <x>",
        "Дое, Джейн",
        "O\\Brien",
        "Plain Name",
        "Zoë",
        "A very long name of a very long company, with a comma, and more than one line holds of it",
        "=?utf-8?q?x?=",
        "back\\slash \" quote",
        "x" * 61,
        "dot. dot.",
        "'quoted'",
    ],
)  # fmt: skip
def test_a_display_name_comes_back_with_one_address(name: str) -> None:
    """CONT-11."""
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    wire = built(sender=f"{quoted} <jane@example.com>", reply_to=f"{name} <help@example.com>")
    assert_fit_for_smtp(wire)
    message = parsed(wire)
    for header, address in (("From", "jane@example.com"), ("Reply-To", "help@example.com")):
        addresses = message[header].addresses
        assert [(each.display_name, each.addr_spec) for each in addresses] == [(name, address)]


def test_a_bare_sender_and_a_long_one() -> None:
    assert b"\r\nFrom: shop@example.org\r\n" in built(sender="shop@example.org")
    wire = built(sender=f"A Name of Medium Length <{'l' * 50}@example.org>")
    assert_fit_for_smtp(wire)
    assert parsed(wire)["From"].addresses[0].addr_spec == f"{'l' * 50}@example.org"


@pytest.mark.parametrize("sender", ["", "nobody", "a\r\nBcc: x <a@example.com>", "Name <a b@example.com>"])
def test_a_sender_that_is_none_is_refused(sender: str) -> None:
    with pytest.raises(InvalidInput):
        built(sender=sender)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one line",
        "trailing blank \nand tab\t\nend",
        "From me\nFrom you\n\n.\n..\n.From",
        "x" * 10_000,
        "=" * 500,
        "é" * 76,
        "a" * 75 + "é" + "b" * 75,
        "a" * 73 + "é",
        "日本語のテキスト。" * 50,
        "mixed\r\nline\rbreaks\n",
        "\N{GRINNING FACE}" * 30 + "\n" * 5,
        "\0\x01\x7f",
    ],
)
def test_a_body_comes_back_as_it_was(text: str) -> None:
    wire = built(text=text)
    assert_fit_for_smtp(wire)
    assert body_of(wire) == normal(text)
    assert not any(line.startswith(b"From ") for line in wire.split(b"\r\n"))


@given(TEXT)
def test_any_body_comes_back(text: str) -> None:
    wire = built(text="x" + text, html="<p>" + text)
    assert_fit_for_smtp(wire)
    plain, rich = (payload_of(part) for part in parsed(wire).iter_parts())
    assert (plain, rich) == (normal("x" + text), normal("<p>" + text))


def body_of(wire: bytes) -> str:
    return payload_of(parsed(wire))


def payload_of(part: Message_) -> str:
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def normal(text: str) -> str:
    """Lines end with CRLF, the last one too."""
    lines = re.split(r"\r\n|\r|\n", text)
    return "\r\n".join(lines if lines[-1] else lines[:-1]) + "\r\n" if text else "\r\n"


def test_other_scripts_are_sent_as_base64_and_english_as_it_is() -> None:
    assert b"Transfer-Encoding: base64" in built(text="日本語のテキスト。" * 50)
    assert b"Transfer-Encoding: quoted-printable" in built(text="Zoë, it's due. " * 50)


def test_a_lone_surrogate_has_no_bytes() -> None:
    for part in ("subject", "text", "html"):
        with pytest.raises(ValueError, match="surrogates"):
            built(**{part: "a\ud800"})


def test_the_boundary_cannot_occur_in_the_content() -> None:
    boundary = f"--=_sendonce_{KEY[:32]}"
    wire = built(text=boundary + "\n" + boundary + "--", html=boundary)
    assert len(list(parsed(wire).iter_parts())) == 2
