"""How many parts a text message costs, and where it is cut.

A text whose every character is in the GSM 7-bit default alphabet or its extension table
(3GPP TS 23.038, 6.2.1) travels in septets; any other character turns the whole text into UCS-2,
sixteen bits a unit. One part holds 160 septets or 70 units; where more are needed, each gives up
six octets to a header that numbers the parts (3GPP TS 23.040, 9.2.3.24), and 153 or 67 are left.

An extension character is two septets (escape and character) and a character beyond U+FFFF is two
units (a surrogate pair). Neither is ever cut in half, so a part may hold one less than it could,
and the number of parts is that of the real cut, not a division. National shift tables are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sendonce.core.errors import InvalidInput

Encoding = Literal["gsm7", "ucs2"]

BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
EXTENSION = frozenset("\f^{}\\[~]|€")

_GSM7 = BASIC | EXTENSION
_SINGLE = {"gsm7": 160, "ucs2": 70}
_JOINED = {"gsm7": 153, "ucs2": 67}


@dataclass(frozen=True, slots=True)
class Segments:
    """The size of one text.

    units     septets (gsm7) or sixteen-bit units (ucs2), extension and surrogate pairs as two
    parts     what a provider charges for; 0 for the empty text
    per_part  units that one part of this text can hold: 160 or 153, 70 or 67
    """

    encoding: Encoding
    units: int
    parts: int
    per_part: int


def count(text: str) -> Segments:
    """Count the units and parts of `text`.

    Raises `InvalidInput` for a lone surrogate, which no encoding can carry.
    """
    encoding, units = _measure(text)
    if units <= _SINGLE[encoding]:
        return Segments(encoding, units, 1 if text else 0, _SINGLE[encoding])
    per_part = _JOINED[encoding]
    parts = -(-units // per_part) if units == len(text) else len(_cut(text, encoding, per_part))
    return Segments(encoding, units, parts, per_part)


def split(text: str) -> list[str]:
    """Cut `text` into its parts; joined they are `text` again. Raises as `count`."""
    encoding, units = _measure(text)
    if units <= _SINGLE[encoding]:
        return [text] if text else []
    return _cut(text, encoding, _JOINED[encoding])


def _measure(text: str) -> tuple[Encoding, int]:
    characters = set(text)
    if characters <= _GSM7:
        return "gsm7", len(text) + sum(text.count(pair) for pair in characters & EXTENSION)
    try:
        return "ucs2", len(text.encode("utf-16-le")) // 2
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the text holds half a character (lone surrogate U+{ord(text[error.start]):04X}) at position "
            f"{error.start}; no message can carry it: send the text as valid Unicode",
            field="text",
        ) from None


def _cut(text: str, encoding: Encoding, per_part: int) -> list[str]:
    """Fill each part with whole characters, as many as fit."""
    parts: list[str] = []
    start = used = 0
    for at, character in enumerate(text):
        size = 2 if (character in EXTENSION if encoding == "gsm7" else character > "\uffff") else 1
        if used + size > per_part:
            parts.append(text[start:at])
            start, used = at, 0
        used += size
    parts.append(text[start:])
    return parts
