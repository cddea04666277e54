"""Addresses: what is accepted, in which one spelling, what is refused and with which words."""

from __future__ import annotations

from contextlib import suppress

import phonenumbers
import pytest
from email_validator import validate_email
from hypothesis import example, given
from hypothesis import strategies as st

from sendonce import address
from sendonce.address import (
    comparison_form,
    masked,
    normalise_email,
    normalise_phone,
    normalise_sms_sender,
    parse_sender,
)
from sendonce.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ann@example.com", "ann@example.com"),
        ("Ann@Example.com", "Ann@Example.com"),
        ("ann+may@example.com", "ann+may@example.com"),
        ("+1@example.com", "+1@example.com"),
        ("a.n.n@example.com", "a.n.n@example.com"),
        ("o'brien@example.com", "o'brien@example.com"),
        ("Support@example.com", "Support@example.com"),
        ("  ann@example.com \r\n", "ann@example.com"),
        ("\u00a0ann@example.com\u00a0", "ann@example.com"),
        ("\ufeffann@example.com", "ann@example.com"),
        ("\u202aann@example.com\u202c", "ann@example.com"),
        ("ann\u200b@exam\u00adple.com", "ann@example.com"),
        ("ann\u200d@example.com", "ann@example.com"),
        ("ann@xn--bcher-kva.example", "ann@xn--bcher-kva.example"),
        ("ann@bücher.example", "ann@xn--bcher-kva.example"),
        ("ann@bu\u0308cher.example", "ann@xn--bcher-kva.example"),
        ("rene\u0301@example.com", "ren\u00e9@example.com"),
        ("ann@customer.test", "ann@customer.test"),
        ("ann@" + "a" * 63 + ".example", "ann@" + "a" * 63 + ".example"),
        ("a" * 64 + "@example.com", "a" * 64 + "@example.com"),
    ],
)
def test_an_email_is_kept_as_given(text: str, kept: str) -> None:
    assert normalise_email(text) == kept
    assert normalise_email(kept) == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "ann",
        "ann@",
        "@example.com",
        "ann@example",
        "ann@localhost",
        "ann@site.invalid",
        "ann@test",
        "ann may@example.com",
        "ann@exa mple.com",
        "ann@example.com, bob@example.com",
        "ann@example.com;bob@example.com",
        "ann@example.com bob@example.com",
        "Ann <ann@example.com>",
        "<ann@example.com>",
        "mailto:ann@example.com",
        '"ann may"@example.com',
        "ann@[192.0.2.1]",
        "ann@example.com\r\nBcc: spy@example.net",
        "ann@example.com\nBcc: spy@example.net",
        "ann\r\n@example.com",
        "ann\x00@example.com",
        "ann@example.com\u2028Bcc: x",
        "ann\x85@example.com",
        "ann\u00a0may@example.com",
        "ann\ud83d@example.com",
        "ann@exam\udc00ple.com",
        ".ann@example.com",
        "ann.@example.com",
        "a..b@example.com",
        "ann@-example.com",
        "ann@example-.com",
        "ann@example..com",
        "ann@example.com.",
        "ann@example.1",
        "ann@ab--c.example",
        "ann@xn--a.example",
        "ann＠example.com",
        "a" * 65 + "@example.com",
        "ann@" + "a" * 64 + ".example",
        "ann@" + "a." * 130 + "example",
        "a" * 60 + "@" + ("b" * 60 + ".") * 3 + "example.com",
        "ann@example.com" + " " * 2000 + "x",
        "a" * 100_000,
    ],
)
def test_an_email_is_refused_with_its_value_and_a_fix(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        normalise_email(text)
    message = str(caught.value)
    assert caught.value.code == "invalid_email"
    assert caught.value.field == "email"
    assert message.startswith("email address ")
    assert ": give " in message
    assert message.isprintable()
    assert len(message.encode()) < 600


# The quick pattern must never know better than the library.

_local_piece = st.text("aZ0+-_'.!#{~", min_size=1, max_size=6)
_label = st.text("aZ0-xn", min_size=1, max_size=5)
_top = st.sampled_from(
    [
        "com",
        "COM",
        "a1",
        "1a",
        "x",
        "local",
        "LOCALHOST",
        "test",
        "invalid",
        "arpa",
        "onion",
        "xn--p1ai",
        "a-b",
    ]
)
near_addresses = st.builds(
    lambda local, labels, top: f"{'.'.join(local)}@{'.'.join([*labels, top])}",
    st.lists(_local_piece, min_size=1, max_size=3),
    st.lists(st.one_of(_label, st.sampled_from(["a" * 63, "a" * 64, "xn--", "ab--cd"])), max_size=4),
    _top,
)


@given(st.one_of(near_addresses, st.text("a.@-1+ \n", max_size=30), st.emails()))
@example("a" * 64 + "@example.com")
@example("a" * 65 + "@example.com")
@example("a@" + "a." * 124 + "com")
@example("a@" + "a." * 125 + "com")
@example("ann@example.com\n")
@example("ann@site.local")
@example("ann@local.site")
def test_the_quick_pattern_accepts_only_what_the_library_accepts(text: str) -> None:
    if address._plain_email(text):
        checked = validate_email(text, check_deliverability=False, strict=True, test_environment=True)
        assert checked.ascii_email is not None
        assert checked.ascii_email.lower() == text.lower()
        assert "." in checked.ascii_domain


@pytest.mark.parametrize("text", ["ann@example.com", "Ann.May+x@mail-1.example.co.uk", "o'b@a.io"])
def test_usual_addresses_take_the_quick_way(text: str) -> None:
    assert address._plain_email(text)


@given(st.one_of(st.text(max_size=60), st.text("+0123456789 ()-./", max_size=20), near_addresses))
def test_a_normalised_address_stays_as_it_is(text: str) -> None:
    with suppress(InvalidInput):
        kept = normalise_email(text)
        assert normalise_email(kept) == kept
    with suppress(InvalidInput):
        number = normalise_phone(text, region="US")
        assert normalise_phone(number, region=None) == number


def library_says(text: str) -> bool:
    """It is reachable as it is written, by `phonenumbers` alone."""
    try:
        parsed = phonenumbers.parse(text, None)
    except phonenumbers.NumberParseException:
        return False
    whole = phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)
    return whole == text and phonenumbers.number_type(parsed) in address._REACHABLE


def known_numbers() -> list[str]:
    """A number of each kind in each region, and one for each country code that belongs to none."""
    kinds = [*phonenumbers.PhoneNumberType.values(), None]
    examples = [
        phonenumbers.example_number(region)
        if kind is None
        else phonenumbers.example_number_for_type(region, kind)
        for region in phonenumbers.SUPPORTED_REGIONS
        for kind in kinds
    ]
    nowhere = [code for code, where in phonenumbers.COUNTRY_CODE_TO_REGION_CODE.items() if where == ("001",)]
    examples += [phonenumbers.example_number_for_non_geo_entity(code) for code in nowhere]
    e164 = phonenumbers.PhoneNumberFormat.E164
    return sorted({phonenumbers.format_number(number, e164) for number in examples if number})


KNOWN_NUMBERS = known_numbers()


def test_the_quick_way_knows_a_number_where_the_library_does_in_every_country() -> None:
    """Each known number, and each that differs from it in one of the digits that decide its kind."""
    assert len(KNOWN_NUMBERS) > 1_000
    near = {
        number[:at] + digit + number[at + 1 :]
        for number in KNOWN_NUMBERS
        for at in range(1, 7)
        for digit in "0123456789"
    }
    country_by_country = sorted(near)  # the library forgets its patterns when it is sent around the world
    quick = {number for number in country_by_country if address._plainly_reachable(number)}
    reachable = {number for number in country_by_country if library_says(number)}
    assert quick <= reachable
    assert len(quick) > 0.9 * len(reachable)  # or it would be quick for nobody


@given(
    st.one_of(
        st.from_regex(r"\A\+[1-9][0-9]{5,15}\Z"),
        st.builds(
            lambda number, at, put, drop: number[:at] + put + number[at + drop :],
            st.sampled_from(KNOWN_NUMBERS),
            st.integers(1, 12),
            st.text("0123456789", max_size=4),
            st.integers(0, 4),
        ),
        st.text("+0123456789 \n\u0661\u200e", max_size=17),
    )
)
@example("+390312345678")  # a zero that belongs to the number
@example("+5491123456789")  # rewritten by the library in other spellings
@example("+5492212345678")
@example("+521234567890")
@example("+88201234567")
def test_the_quick_way_never_says_yes_where_the_library_would_not(text: str) -> None:
    if address._plainly_reachable(text):
        assert library_says(text)
        assert normalise_phone(text, region="GB") == text


@pytest.mark.parametrize(
    "text",
    ["+12025550123", "+14165550123", "+447400123456", "+4915123456789", "+33612345678", "+919876543210"],
)
def test_usual_numbers_take_the_quick_way(text: str) -> None:
    assert address._plainly_reachable(text)


@pytest.mark.parametrize(
    "text",
    [
        "+12025550123",
        "\u202d+1 202 555 0123\u202c",
        "+1 202\u00a0555\u00a00123",
        "\u200e+12025550123",
        "+1\ufe0d-202-555-0123",
        "+1 (202) 555-0123",
        " tel:+1-202-555-0123 ",
        "TEL:+1.202.555.0123",
        "+1\u2011202\u2011555\u20110123",
        "＋１２０２５５５０１２３",
        "\ufeff+1\u2007202\u2009555\u202f0123\u200d",
    ],
)
@pytest.mark.parametrize("region", [None, "DE"])
def test_a_number_has_one_spelling(text: str, region: str | None) -> None:
    assert normalise_phone(text, region=region) == "+12025550123"


@pytest.mark.parametrize(
    ("text", "region", "number"),
    [
        ("(202) 555-0123", "US", "+12025550123"),
        ("1 202 555 0123", "US", "+12025550123"),
        ("0151 23456789", "DE", "+4915123456789"),
        ("0151/23456789", "DE", "+4915123456789"),
        ("0049 151 23456789", "DE", "+4915123456789"),
        ("+49 (0)151 23456789", None, "+4915123456789"),
        ("07400 123456", "GB", "+447400123456"),
        ("+٤٩١٥١٢٣٤٥٦٧٨٩", None, "+4915123456789"),
    ],
)
def test_a_national_number_is_read_in_its_region(text: str, region: str | None, number: str) -> None:
    assert normalise_phone(text, region=region) == number


@pytest.mark.parametrize(
    ("text", "region", "code", "words"),
    [
        ("+442071838750", None, "landline", "landline"),
        ("030 123456", "DE", "landline", "landline"),
        ("+39 06 1234 5678", None, "landline", "landline"),
        ("32665", "US", "short_code", "short code"),
        ("32665", None, "short_code", "short code"),
        ("911", "US", "short_code", "short code"),
        ("+1 800 356 9377", None, "service_number", "toll-free"),
        ("+44 909 8790000", None, "service_number", "premium-rate"),
        ("202 555 0123", None, "invalid_phone", "no country code"),
        ("12025550123", None, "invalid_phone", "no country code"),
        ("+1 202 555", None, "invalid_phone", "no such number"),
        ("+999 123456", None, "invalid_phone", "no such number"),
        ("+1 202 555 0123 4", None, "invalid_phone", "no such number"),
        ("555 0123", "US", "invalid_phone", "no such number exists in US"),
        ("2025550123", "XX", "unknown_region", "region 'XX'"),
        ("+1 202 555 0123 ext. 5", None, "invalid_phone", "without extension"),
        ("tel:+12025550123;ext=5", None, "invalid_phone", "without extension"),
        ("1-800-FLOWERS", "US", "invalid_phone", "digits"),
        ("+12025550123, +12025550124", None, "invalid_phone", "give one"),
        ("+12025550123/+12025550124", None, "invalid_phone", "give one"),
        ("call +12025550123", None, "invalid_phone", "digits"),
        ("+12025550123\n+12025550124", None, "invalid_phone", "give one"),
        ("+1202555\x000123", None, "invalid_phone", "give one"),
        ("+1202555\ud83d0123", None, "invalid_phone", "give one"),
        ("ann@example.com", None, "invalid_phone", "digits"),
        ("+ () -", None, "invalid_phone", "no digits"),
        ("", None, "invalid_phone", "empty"),
        ("tel:", None, "invalid_phone", "empty"),
        ("+1" * 50_000, None, "invalid_phone", "characters"),
    ],
)
def test_a_number_is_refused_for_its_own_reason(text: str, region: str | None, code: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        normalise_phone(text, region=region)
    message = str(caught.value)
    assert caught.value.code == code
    assert words in message
    assert ": " in message
    assert message.isprintable()
    assert len(message) < 300


def test_the_same_person_compares_equal() -> None:
    spellings = ["Ann@Example.com", "ann@example.com ", "ann@example.com", "\u200bANN@EXAMPLE.COM"]
    assert {comparison_form("email", normalise_email(text)) for text in spellings} == {"ann@example.com"}


@pytest.mark.parametrize(
    ("channel", "given_address", "form"),
    [
        ("email", "Ann+May@Example.com", "ann+may@example.com"),
        ("email", "RENÉ@Example.com", "rené@example.com"),
        ("email", "rene\u0301@example.com", "ren\u00e9@example.com"),
        ("email", "STRASSE@example.com", "strasse@example.com"),
        ("email", "Ann@BÜCHER.example", "ann@bücher.example".replace("bücher", "xn--bcher-kva")),
        ("email", "Ann@XN--BCHER-KVA.example", "ann@xn--bcher-kva.example"),
        ("sms", "+12025550123", "+12025550123"),
    ],
)
def test_comparison_form(channel: str, given_address: str, form: str) -> None:
    assert comparison_form(channel, given_address) == form
    assert comparison_form(channel, form) == form


def test_a_plus_tag_is_another_address() -> None:
    assert comparison_form("email", "ann+may@example.com") != comparison_form("email", "ann@example.com")


@pytest.mark.parametrize(
    ("text", "name", "addr"),
    [
        ("ann@example.com", "", "ann@example.com"),
        ("<ann@example.com>", "", "ann@example.com"),
        ("Acme Billing <billing@example.com>", "Acme Billing", "billing@example.com"),
        ('  "Doe, Jane"  <jane@example.com> ', "Doe, Jane", "jane@example.com"),
        ("Doe, Jane <jane@example.com>", "Doe, Jane", "jane@example.com"),
        ("Support (Billing) <jane@example.com>", "Support (Billing)", "jane@example.com"),
        ('"Jane \\"JJ\\" Doe" <jane@example.com>', 'Jane "JJ" Doe', "jane@example.com"),
        ("a@b.example <jane@example.com>", "a@b.example", "jane@example.com"),
        ("Jane; Inc: <x> <jane@example.com>", "Jane; Inc: <x>", "jane@example.com"),
        ("Дое, Джейн <jane@example.com>", "Дое, Джейн", "jane@example.com"),
        ("O\\Brien <jane@example.com>", "O\\Brien", "jane@example.com"),
        ("Ali\u202e <jane@example.com>", "Ali", "jane@example.com"),
        ("דנה <jane@example.com>", "דנה", "jane@example.com"),
    ],
)
def test_parse_sender(text: str, name: str, addr: str) -> None:
    assert parse_sender(text) == (name, addr)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Acme",
        "Acme <>",
        "Acme <billing>",
        "billing@example.com>",
        "Acme <billing@example.com> x",
        "a@example.com, b@example.com",
        "Acme\r\nBcc: spy@example.net <billing@example.com>",
        "Acme\u2028x <billing@example.com>",
        "Acme\x00 <billing@example.com>",
        "Acme\ud83d <billing@example.com>",
        "Acme <billing@example.com\r\nBcc: spy@example.net>",
        "A" * 300 + " <billing@example.com>",
    ],
)
def test_a_sender_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_sender(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("+1 (202) 555-0123", "+12025550123"),
        ("+442071838750", "+442071838750"),  # a landline may well send
        ("32665", "32665"),
        (" Acme ", "Acme"),
        ("ACME & Co", "ACME & Co"),
        ("A", "A"),
        ("11chars-max", "11chars-max"),
        ("MG" + "0a" * 16, "MG" + "0a" * 16),
    ],
)
def test_sms_sender(text: str, kept: str) -> None:
    assert normalise_sms_sender(text) == kept


@pytest.mark.parametrize(
    "text",
    ["", "12", "123456789", "12charsis2big", "Acmé", "Acme\n1", "1 2", "+12", "MG12345678901", "Acme!"],
)
def test_an_sms_sender_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="SMS sender"):
        normalise_sms_sender(text)


@pytest.mark.parametrize(
    ("channel", "whole", "shown"),
    [
        ("email", "ann@example.com", "a***@example.com"),
        ("email", "a@example.com", "a***@example.com"),
        ("sms", "+12025550123", "+1202***0123"),
        ("sms", "+6838884", "+68***84"),
    ],
)
def test_masked(channel: str, whole: str, shown: str) -> None:
    assert masked(channel, whole) == shown


def test_an_unknown_channel_is_named() -> None:
    with pytest.raises(InvalidInput, match="'fax' is unknown"):
        comparison_form("fax", "1")
    with pytest.raises(InvalidInput, match="'fax' is unknown"):
        masked("fax", "1")
