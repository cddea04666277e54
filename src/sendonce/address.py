"""Addresses of recipients and senders: one spelling each, or a refusal that says how to mend it.

An address is cleaned and checked once, at intake, and stored as `normalise_*` returned it. People
copy addresses out of contacts, spreadsheets and PDFs, which add blanks, direction marks and other
characters that nobody sees; those go. Everything that could mean another person stays: a plus tag,
the capitals and the dots of a local part. Nothing is looked up in the network.

Two addresses reach the same person when their `comparison_form` is equal; that is what duplicates
and opt-outs are matched by. It is never sent to.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache

import idna
import phonenumbers
from email_validator import EmailNotValidError, validate_email
from phonenumbers import NumberParseException, PhoneNumberDesc, PhoneNumberFormat, PhoneNumberType

from sendonce.core.errors import InvalidInput

TEXT_LENGTH_MAX = 1_000  # characters, invisible ones too; an address has 254 octets (RFC 5321, 4.5.3.1.3)
SENDER_NAME_LENGTH_MAX = 200


def normalise_email(text: str) -> str:
    """The address as given, without blanks around it and without invisible characters in it.

    The local part keeps its capitals, dots and tags. It is an addr-spec of RFC 5321 and RFC 6531
    with a dotted host name; a domain in other scripts is turned into its ASCII form (RFC 5891), so
    that every provider can take it. Quoted local parts and IP addresses are refused: no mailbox of
    a customer is written so, and few providers take them. Raises `InvalidInput`.
    """
    text = text.strip()
    if _plain_email(text):
        return text
    return _careful_email(text)


def normalise_phone(text: str, *, region: str | None) -> str:
    """The number in E.164, such as "+12025550123".

    `region`: ISO 3166 code of the country whose national numbers may be written without "+"; None
    where every number must carry its country code. A number that cannot receive text messages (a
    landline, a short code, a service number) is refused, each with its own reason. Where numbering
    does not tell mobile from landline (North America) the number is taken. Raises `InvalidInput`.
    """
    if _plainly_reachable(text):
        return text
    if len(text) > TEXT_LENGTH_MAX:
        raise _phone_error(text, f"{len(text)} characters are no number: give one such as +12025550123")
    number = _phone_text(text)
    if not number:
        raise _phone_error(text, "it is empty: give a number such as +12025550123")
    if not _PHONE_SHAPE.fullmatch(number):
        raise _phone_error(
            text, "a number holds digits, blanks and + ( ) - . / only: give one, without extension"
        )
    try:
        parsed = phonenumbers.parse(number, region)
    except NumberParseException:
        raise _unreadable_phone(text, number, region) from None
    kind = phonenumbers.number_type(parsed)
    if kind in _REACHABLE:
        return phonenumbers.format_number(parsed, PhoneNumberFormat.E164)
    if kind == PhoneNumberType.UNKNOWN:
        raise _unreadable_phone(text, number, region)
    what, code = _UNREACHABLE.get(kind, ("a special service number", "service_number"))
    raise _phone_error(text, f"it is {what}, which takes no text messages: give a mobile number", code=code)


def country_of(number: str) -> str:
    """ISO 3166 code of the country of a number in E.164; "" where none is known."""
    try:
        return phonenumbers.region_code_for_number(phonenumbers.parse(number, None)) or ""
    except NumberParseException:
        return ""


def parse_sender(text: str) -> tuple[str, str]:
    """Split `Name <ann@example.com>` or a bare address into (name, address).

    The name may be quoted as in RFC 5322 and may hold commas and brackets; it is "" where there is
    none. Raises `InvalidInput`.
    """
    text = text.strip()
    if not text.endswith(">"):
        return "", normalise_email(text)
    name, opened, address = text[:-1].rpartition("<")
    if not opened:
        raise InvalidInput(
            f"sender {_shown(text)} closes a bracket that was not opened: write Name <ann@example.com>",
            field="sender",
        )
    return _sender_name(name.strip(), text), normalise_email(address)


def normalise_sms_sender(text: str) -> str:
    """The sender of a text message: an E.164 number, a short code (3 to 8 digits), a name of 1 to 11
    ASCII letters, digits, blanks and & + - _ with at least one letter, or a service id ("MG" and 32
    hexadecimal digits). Which of them may be used is the provider's decision. Raises `InvalidInput`.
    """
    sender = text.strip()
    if _SMS_SENDER.fullmatch(sender):
        return sender
    if sender.startswith("+"):
        number = "".join(character for character in _phone_text(sender) if character not in " ()-./")
        if _E164.fullmatch(number):
            return number
    raise InvalidInput(
        f"SMS sender {_shown(text)} is none of these: a number such as +12025550123, a short code of 3 to 8 "
        "digits, a name of 1 to 11 letters and digits with a letter in it, a service id (MG, 32 hex digits)",
        field="sender",
    )


def comparison_form(channel: str, address: str) -> str:
    """What a normalised `address` is compared by; equal forms are one person.

    `channel` is "email" or "sms". Local parts are compared without case, although RFC 5321 (2.4)
    leaves that to the receiving host: mailing a person twice is the likelier and the worse mistake.
    Plus tags count. Raises `InvalidInput` for another channel.
    """
    match channel:
        case "email":
            if address.isascii():
                return address.lower()
            local, _, domain = address.rpartition("@")
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", local).casefold())
            return f"{folded}@{_ascii_domain(domain)}"
        case "sms":
            return address
        case _:
            raise _unknown_channel(channel)


def masked(channel: str, address: str) -> str:
    """Enough of a normalised `address` to recognise it on the screen: "a***@example.com",
    "+1202***0123". Raises `InvalidInput` for another channel."""
    match channel:
        case "email":
            local, at, domain = address.rpartition("@")
            return f"{local[:1]}***{at}{domain}"
        case "sms" if len(address) > 10:
            return f"{address[:5]}***{address[-4:]}"
        case "sms":
            return f"{address[:3]}***{address[-2:]}"
        case _:
            raise _unknown_channel(channel)


# Email.
#
# The pattern accepts nothing that the library would refuse or change (a test holds it to that); it
# is there because intake reads thousands of rows a second and the library takes 80 us for each. What
# it does not accept goes to the library: other scripts, "--" in a label, reserved names, mistakes.

_LOCAL = r"[A-Za-z0-9_!#$%&'*+\-/=?^`{|}~]+"
_LABEL = r"[A-Za-z0-9](?:-?[A-Za-z0-9])*"
_PLAIN_EMAIL = re.compile(
    rf"(?=[^@]{{1,64}}@[^@]{{4,253}}\Z){_LOCAL}(?:\.{_LOCAL})*@"
    rf"(?:(?=[^.]{{1,63}}\.){_LABEL}\.)+(?!(?i:arpa|invalid|local|localhost|onion)\Z)"
    r"[A-Za-z0-9]{1,62}[A-Za-z]\Z"
)
_EMAIL_LENGTH_MAX = 254

# Format characters that copying leaves behind, and variation selectors. The joiners are apart: in
# some scripts they are part of a domain's spelling.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_JOINERS = re.compile("[\u200c\u200d]")


def _plain_email(text: str) -> bool:
    return len(text) <= _EMAIL_LENGTH_MAX and _PLAIN_EMAIL.match(text) is not None


def _careful_email(given: str) -> str:
    if len(given) > TEXT_LENGTH_MAX:
        raise _email_error(given, f"{len(given)} characters are no address: give one such as ann@example.com")
    text = _without_invisible(given)
    if not text:
        raise _email_error(given, "it is empty: give an address such as ann@example.com")
    text = unicodedata.normalize("NFC", text)
    try:
        checked = validate_email(text, check_deliverability=False, strict=True, test_environment=True)
    except EmailNotValidError as error:
        raise _email_error(
            given, f"{str(error).rstrip('.')}: give one address such as ann@example.com"
        ) from None
    if "." not in checked.ascii_domain:
        raise _email_error(given, f"the domain {_shown(checked.domain)} has no dot: give the full domain")
    local, _, domain = text.rpartition("@")
    return f"{local}@{domain if domain.isascii() else checked.ascii_domain}"


def _without_invisible(text: str) -> str:
    if text.isascii():
        return text.strip()
    text = _INVISIBLE.sub("", text)
    bare = _JOINERS.sub("", text)
    return (bare if bare.isascii() else text).strip()


def _email_error(given: str, rule: str) -> InvalidInput:
    return InvalidInput(f"email address {_shown(given)}: {rule}", field="email", code="invalid_email")


@lru_cache(maxsize=1024)
def _ascii_domain(domain: str) -> str:
    """Lower-case ASCII form of a domain. Domains are few, so the cache holds most of them."""
    if domain.isascii():
        return domain.lower()
    try:
        return idna.encode(domain, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        return unicodedata.normalize("NFC", domain.casefold())


# Phone numbers.

_PHONE_SHAPE = re.compile(r"\+?[\d ()./-]{1,40}")  # \d: digits of any script, which the library reads
_E164 = re.compile(r"\+[1-9][0-9]{6,14}")
_SMS_SENDER = re.compile(
    rf"{_E164.pattern}|[0-9]{{3,8}}|MG[0-9a-fA-F]{{32}}"
    r"|(?=.*[A-Za-z])[A-Za-z0-9](?:[A-Za-z0-9 &+_-]{0,9}[A-Za-z0-9&+_-])?"
)
_BLANKS_AND_DASHES = str.maketrans(
    dict.fromkeys("\t\u00a0\u2007\u2009\u202f\u3000", " ") | dict.fromkeys("‐‑‒–—―−－", "-") | {"＋": "+"}
)
_SHORT_CODE_DIGITS_MAX = 6

_REACHABLE = frozenset(
    {
        PhoneNumberType.MOBILE,
        PhoneNumberType.FIXED_LINE_OR_MOBILE,
        PhoneNumberType.VOIP,
        PhoneNumberType.PERSONAL_NUMBER,
    }
)
_UNREACHABLE = {
    PhoneNumberType.FIXED_LINE: ("a landline", "landline"),
    PhoneNumberType.TOLL_FREE: ("a toll-free number", "service_number"),
    PhoneNumberType.PREMIUM_RATE: ("a premium-rate number", "service_number"),
    PhoneNumberType.SHARED_COST: ("a shared-cost number", "service_number"),
    PhoneNumberType.PAGER: ("a pager", "service_number"),
}


def _phone_text(text: str) -> str:
    number = _without_invisible(text)
    if not number.isascii():
        number = _JOINERS.sub("", number).translate(_BLANKS_AND_DASHES).strip()
    return number[4:].strip() if number[:4].lower() == "tel:" else number


def _unreadable_phone(text: str, number: str, region: str | None) -> InvalidInput:
    digits = sum(character.isdigit() for character in number)
    if region is not None and region not in phonenumbers.SUPPORTED_REGIONS:
        return InvalidInput(
            f"region {_shown(region)} is not a country code: write two capital letters such as US",
            field="region",
            code="unknown_region",
        )
    if not number.startswith("+") and 0 < digits <= _SHORT_CODE_DIGITS_MAX:
        return _phone_error(
            text, "it is a short code, not a person's number: give a mobile number", code="short_code"
        )
    if digits == 0:
        return _phone_error(text, "it holds no digits: give a number such as +12025550123")
    if not number.startswith("+") and region is None:
        return _phone_error(text, "it has no country code: write it as +12025550123, or configure a region")
    where = "" if number.startswith("+") else f" in {region}"
    return _phone_error(text, f"no such number exists{where}: check its digits and its country code")


def _phone_error(text: str, rule: str, *, code: str = "invalid_phone") -> InvalidInput:
    return InvalidInput(f"phone number {_shown(text)}: {rule}", field="phone", code=code)


# Phone numbers in E.164, which is how most files have them.
#
# Reading a number takes the library 40 us, the larger part of it to find out how it was written. Where
# it is written in the one way that leaves nothing to find out, this asks the library's own tables the
# questions that `number_type` asks, in its order. It only ever says yes: what could be stripped or
# rewritten (a national prefix behind the country code), what has no region and what is refused goes to
# the library. A test holds it to the library's answer in every country.


def _plainly_reachable(text: str) -> bool:
    """It is in E.164, `phonenumbers` would leave it as it is, and it takes text messages."""
    if not _E164.fullmatch(text):
        return False
    for end in (2, 3, 4):  # a country code has one to three digits, and none begins with another
        if plan := _plan_of(text[1:end]):
            national = text[end:]
            return not (plan.prefix and plan.prefix.match(national)) and plan.kind(national) in _REACHABLE
    return False


@dataclass(frozen=True, slots=True)
class _Plan:
    """The numbers behind a country code. `prefix` is what the library may strip from them or rewrite."""

    prefix: re.Pattern[str] | None
    regions: tuple[str, ...]

    def kind(self, national: str) -> int:
        """As `phonenumbers.number_type`: the first region that leads to the number, or that has it."""
        for region in map(_numbering_of, self.regions):
            if len(self.regions) == 1:
                return region.kind(national)
            if region.leading:
                if region.leading.match(national):
                    return region.kind(national)
            elif (kind := region.kind(national)) != PhoneNumberType.UNKNOWN:
                return kind
        return PhoneNumberType.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Numbers:
    """One kind of numbers in a region: their lengths (empty: any), and their pattern."""

    lengths: frozenset[int]
    pattern: re.Pattern[str]

    def have(self, national: str) -> bool:
        return (not self.lengths or len(national) in self.lengths) and bool(self.pattern.fullmatch(national))


@dataclass(frozen=True, slots=True)
class _Numbering:
    """The kinds of numbers of a region. `special` in the order in which they are asked for."""

    leading: re.Pattern[str] | None
    general: _Numbers | None
    special: tuple[tuple[_Numbers, int], ...]
    fixed: _Numbers | None
    mobile: _Numbers | None
    same: bool

    def kind(self, national: str) -> int:
        if self.general is None or not self.general.have(national):
            return PhoneNumberType.UNKNOWN
        for numbers, kind in self.special:
            if numbers.have(national):
                return kind
        fixed = self.fixed is not None and self.fixed.have(national)
        if fixed and self.same:
            return PhoneNumberType.FIXED_LINE_OR_MOBILE
        if not self.same and self.mobile is not None and self.mobile.have(national):
            return PhoneNumberType.FIXED_LINE_OR_MOBILE if fixed else PhoneNumberType.MOBILE
        return PhoneNumberType.FIXED_LINE if fixed else PhoneNumberType.UNKNOWN


@cache
def _plan_of(code: str) -> _Plan | None:
    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code), ())
    main = phonenumbers.PhoneMetadata.metadata_for_region(regions[0]) if regions else None
    if main is None:  # no country code, or one that belongs to no region
        return None
    return _Plan(_compiled(main.national_prefix_for_parsing), tuple(regions))


@cache
def _numbering_of(region: str) -> _Numbering:
    known = phonenumbers.PhoneMetadata.metadata_for_region(region)
    assert known is not None, "a country code names regions that have metadata"
    special = ((_numbers(getattr(known, name)), kind) for name, kind in _SPECIAL)
    return _Numbering(
        _compiled(known.leading_digits),
        _numbers(known.general_desc),
        tuple((numbers, kind) for numbers, kind in special if numbers),
        _numbers(known.fixed_line),
        _numbers(known.mobile),
        known.same_mobile_and_fixed_line_pattern,
    )


def _numbers(known: PhoneNumberDesc | None) -> _Numbers | None:
    pattern = _compiled(known.national_number_pattern) if known else None
    return _Numbers(frozenset(known.possible_length), pattern) if known and pattern else None


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(pattern) if pattern else None


_SPECIAL = (
    ("premium_rate", PhoneNumberType.PREMIUM_RATE),
    ("toll_free", PhoneNumberType.TOLL_FREE),
    ("shared_cost", PhoneNumberType.SHARED_COST),
    ("voip", PhoneNumberType.VOIP),
    ("personal_number", PhoneNumberType.PERSONAL_NUMBER),
    ("pager", PhoneNumberType.PAGER),
    ("uan", PhoneNumberType.UAN),
    ("voicemail", PhoneNumberType.VOICEMAIL),
)


# Senders and words.

_NAME_BREAKERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_QUOTED_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _sender_name(name: str, text: str) -> str:
    if _NAME_BREAKERS.search(name):
        raise InvalidInput(
            f"sender {_shown(text)} holds a line break or a control character: write the name on one line",
            field="sender",
        )
    if quoted := _QUOTED_NAME.fullmatch(name):
        name = re.sub(r"\\(.)", r"\1", quoted[1])
    name = unicodedata.normalize("NFC", _INVISIBLE.sub("", name)).strip()
    if len(name) > SENDER_NAME_LENGTH_MAX:
        raise InvalidInput(
            f"the sender's name has {len(name)} characters and may have {SENDER_NAME_LENGTH_MAX}: shorten it",
            field="sender",
        )
    return name


def _unknown_channel(channel: str) -> InvalidInput:
    return InvalidInput(f"channel {_shown(channel)} is unknown: use email or sms", field="channel")


def _shown(text: str) -> str:
    """The value for a message: quoted, cut, and with everything unprintable escaped."""
    return repr(text if len(text) <= 80 else text[:80] + "...")
