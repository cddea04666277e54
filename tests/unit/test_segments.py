"""SMS size and cut: tables from the standard's limits, and what must hold for every text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.errors import InvalidInput
from sendonce.core.segments import BASIC, EXTENSION, Segments, count, split

COOL = "\U0001f60e"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
gsm7 = st.text(st.sampled_from(sorted(BASIC | EXTENSION)), max_size=700)
astral = st.text(st.sampled_from(["a", "é", COOL, "中"]), max_size=300)
texts = st.one_of(anything, gsm7, astral)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Segments("gsm7", 0, 0, 160)),
        (COOL * 35, Segments("ucs2", 70, 1, 70)),
        (COOL * 36, Segments("ucs2", 72, 2, 67)),
        (COOL * 70, Segments("ucs2", 140, 3, 67)),
        ("It's due", Segments("gsm7", 8, 1, 160)),
        ("It\u2019s due", Segments("ucs2", 8, 1, 70)),
        ("\u00c7", Segments("gsm7", 1, 1, 160)),
        ("Re\u00e7u", Segments("ucs2", 4, 1, 70)),
        (FAMILY, Segments("ucs2", 8, 1, 70)),
        ("a" * 160, Segments("gsm7", 160, 1, 160)),
        ("a" * 161, Segments("gsm7", 161, 2, 153)),
        ("a" * 306, Segments("gsm7", 306, 2, 153)),
        ("a" * 307, Segments("gsm7", 307, 3, 153)),
        ("я" * 70, Segments("ucs2", 70, 1, 70)),
        ("я" * 71, Segments("ucs2", 71, 2, 67)),
        ("я" * 134, Segments("ucs2", 134, 2, 67)),
        ("я" * 135, Segments("ucs2", 135, 3, 67)),
        ("€" * 80, Segments("gsm7", 160, 1, 160)),
        ("€" * 81, Segments("gsm7", 162, 2, 153)),
        # 153 pairs are 306 septets, yet 76 pairs fill a part and one septet of each is left over
        ("€" * 153, Segments("gsm7", 306, 3, 153)),
        # 67 pairs are 134 units, yet only 33 pairs fit a part
        (COOL * 67, Segments("ucs2", 134, 3, 67)),
    ],
)
def test_count(text: str, expected: Segments) -> None:
    """CONT-05."""
    assert count(text) == expected


def test_the_alphabet_is_complete() -> None:
    assert len(BASIC) == 127  # 128 code points, one of which is the escape
    assert len(EXTENSION) == 10
    assert not BASIC & EXTENSION


@pytest.mark.parametrize("pair", sorted(EXTENSION))
def test_an_extension_character_moves_whole_to_the_next_part(pair: str) -> None:
    assert split("a" * 152 + pair + "b" * 20) == ["a" * 152, pair + "b" * 20]


def test_a_surrogate_pair_moves_whole_to_the_next_part() -> None:
    assert split("я" * 66 + COOL + "я" * 10) == ["я" * 66, COOL + "я" * 10]


@pytest.mark.parametrize("text", ["Ann\ud83d", "\ude0eAnn", "a" * 500 + "\ud83d" + "b"])
def test_a_lone_surrogate_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"lone surrogate U\+D") as caught:
        count(text)
    str(caught.value).encode()  # the message itself can be printed
    with pytest.raises(InvalidInput):
        split(text)


def units(text: str, encoding: str) -> int:
    """Counted one character at a time, as the standard words it."""
    double = EXTENSION if encoding == "gsm7" else {c for c in text if ord(c) > 0xFFFF}
    return sum(2 if c in double else 1 for c in text)


@given(texts)
def test_the_cut_loses_nothing_and_agrees_with_the_count(text: str) -> None:
    size, parts = count(text), split(text)
    assert "".join(parts) == text
    assert len(parts) == size.parts
    assert size.encoding == ("gsm7" if all(c in BASIC or c in EXTENSION for c in text) else "ucs2")
    assert size.units == units(text, size.encoding)
    assert all(0 < units(part, size.encoding) <= size.per_part for part in parts)


@given(texts)
def test_no_part_could_have_held_the_next_character(text: str) -> None:
    size, parts = count(text), split(text)
    for part, following in pairwise(parts):
        assert units(part + following[0], size.encoding) > size.per_part
