"""Reading files: what can be read without guessing is read, what cannot is said with its row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.core.errors import InvalidInput
from sendonce.core.reminder import COLUMNS, asked_of
from sendonce.table_file import LINE_BYTES_MAX, BadRow, Format, Row, TableFile


def read(
    content: bytes | str, *, defaults: Mapping[str, str] | None = None, form: Format = "auto"
) -> list[Row | BadRow]:
    raw = content.encode() if isinstance(content, str) else content
    return list(TableFile(io.BytesIO(raw), COLUMNS, defaults=defaults, form=form))


def rows(content: bytes | str, **options: object) -> list[Row]:
    found = read(content, **options)  # type: ignore[arg-type]
    assert all(isinstance(row, Row) for row in found), found
    return [row for row in found if isinstance(row, Row)]


def bad(content: bytes | str) -> list[BadRow]:
    return [row for row in read(content) if isinstance(row, BadRow)]


# The cases that other systems got wrong


def test_a_byte_order_mark_is_no_part_of_the_first_header() -> None:
    """API-01: "CSV UTF-8" from a spreadsheet, CRLF, with a blank last line."""
    content = bytes.fromhex(
        "efbbbf656d61696c2c70686f6e652c6e616d652c73656e645f61740d0a616e6e406578616d706c652e636f6d2c2b3132"
        "3032353535303132332c416e6e2c323032362d30352d30315430393a30303a30305a0d0a0d0a"
    )
    assert read(content) == [
        Row(
            2,
            {"email": "ann@example.com", "phone": "+12025550123", "due": "2026-05-01T09:00:00Z"},
            {"name": "Ann"},
        )
    ]


def test_two_columns_of_one_meaning_are_refused_before_any_row() -> None:
    """API-05."""
    content = "phone number,PHONE-NUMBER,name\n+12025550123,+12025550199,Ann"
    with pytest.raises(InvalidInput) as error:
        TableFile(io.BytesIO(content.encode()), COLUMNS)
    assert "'phone number'" in str(error.value)
    assert "'PHONE-NUMBER'" in str(error.value)
    assert error.value.code == "twin_columns"


@pytest.mark.parametrize(
    "header", ["name,Name", "id,reminder", "email,e-mail", "due,When", "data.x,x", "to,mobile"]
)
def test_twins_of_every_kind(header: str) -> None:
    with pytest.raises(InvalidInput, match="both mean"):
        TableFile(io.BytesIO(f"template,{header}\na,b,c\n".encode()), COLUMNS)


def test_an_empty_cell_of_a_file_with_one_column_is_a_row_and_a_blank_line_is_none() -> None:
    """API-03: the fourth row must be counted, not vanish."""
    found = rows('email\nAnn@Example.com\nann@example.com \n\n""\n')
    assert [row.number for row in found] == [2, 3, 5]
    assert [row.values.get("email") for row in found] == ["Ann@Example.com", "ann@example.com", None]


# CSV


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiters_line_ends_and_marks(delimiter: str, end: str, mark: str) -> None:
    lines = [
        ["id", "email", "name"],
        ["r-1", "ann@example.com", "Ann, May; x"],
        ["r-2", "b@example.com", "a\nb"],
    ]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(lines)
    found = rows(mark + text.getvalue())
    assert [row.data["name"] for row in found] == ["Ann, May; x", "a\nb"]
    assert [row.values["reminder"] for row in found] == ["r-1", "r-2"]


def test_row_numbers_are_those_of_a_spreadsheet() -> None:
    content = 'id,name\nr-1,"two\nlines"\n\n,\nr-2,x\n'
    assert [(row.number, row.values["reminder"]) for row in rows(content)] == [(2, "r-1"), (5, "r-2")]


def test_blank_lines_before_the_header_count_too() -> None:
    assert [row.number for row in rows("\n\nid,name\nr-1,x\n")] == [4]


def test_a_separator_hint_of_a_spreadsheet() -> None:
    assert rows("sep=;\r\nid;email\r\nr-1;a@example.com\r\n") == [
        Row(3, {"reminder": "r-1", "email": "a@example.com"}, {})
    ]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Reminder ID", "reminder"),
        ("customer-id", "customer"),
        ("Send At", "due"),
        ("TZ", "timezone"),
        ("E-Mail", "email"),
        ("e.mail", "email"),
        ("Phone Number", "phone"),
        ("channel", "channels"),
        ("Expires_At", "expires"),
    ],
)
def test_header_synonyms(name: str, field: str) -> None:
    assert rows(f"{name},x\nvalue,1\n")[0].values == {field: "value"}


def test_every_synonym_means_one_field_only() -> None:
    names = [name for field in COLUMNS for name in (field, *COLUMNS[field])]
    assert len(names) == len(set(names))


def test_other_columns_are_data_and_a_prefix_keeps_its_spelling() -> None:
    assert rows("id,First Name,data.orderNo,data.Due Date\n1, Ann ,7,x\n")[0].data == {
        "first_name": "Ann",
        "orderNo": "7",
        "Due Date": "x",
    }


def test_defaults_fill_what_a_row_leaves_empty() -> None:
    found = rows(
        "id,template,name\n1,,Ann\n2,other,\n",
        defaults={"template": "pay", "due": "now", "data.name": "you", "data.team": "x"},
    )
    assert [(row.values, row.data) for row in found] == [
        ({"reminder": "1", "template": "pay", "due": "now"}, {"name": "Ann", "team": "x"}),
        ({"reminder": "2", "template": "other", "due": "now"}, {"name": "you", "team": "x"}),
    ]


def test_a_default_for_no_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean template"):
        read("id\n1\n", defaults={"templte": "pay"})


@pytest.mark.parametrize(
    ("content", "numbers", "says"),
    [
        ("id,email\n1\n2,b@example.com\n", [2], "1 cells and the header 2"),
        ("id,email\n1,a,b\n2,b@example.com\n", [2], "3 cells and the header 2: put quotes"),
        (b"id,email\n1,caf\xe9\n2,b@example.com\n", [2], "byte 0xe9 at byte 14 of the file (after '1,caf')"),
        (b"\xef\xbb\xbfid,email\n1,caf\xe9\n2,b\n", [2], "at byte 17 of the file"),
        (b"id,email\n1,a\0b\n2,b@example.com\n", [2], "NUL byte at byte 12"),
        ('id,email\n1,"a"x\n2,b@example.com\n', [2], "a quote stands inside a quoted cell"),
        ('id,email\n2,b@example.com\n1,"open\n', [3], "not closed"),
        (b"id,email\n1," + b"x" * LINE_BYTES_MAX + b"\n2,b\n", [2], "more than 1024 KB"),
        (b"id,email\n1," + b"\xff" * LINE_BYTES_MAX * 2 + b"\n2,b\n", [2], "more than 1024 KB"),
    ],
    ids=[
        "short",
        "long",
        "latin-1",
        "latin-1-after-a-mark",
        "nul",
        "stray-quote",
        "open-quote",
        "huge",
        "huger",
    ],
)
def test_a_row_that_cannot_be_read_stops_no_other(
    content: bytes | str, numbers: list[int], says: str
) -> None:
    assert [row.number for row in bad(content)] == numbers
    assert says in bad(content)[0].message
    assert [row.values["reminder"] for row in read(content) if isinstance(row, Row)] == ["2"]


def test_an_open_quote_swallows_no_row_in_silence() -> None:
    found = bad('id,name\n1,"Ann\n2,"Bob"\n3,Cid\n')
    assert [row.number for row in found] == [2]
    assert "line 2" in found[0].message
    assert "nothing of lines 2 to 3 was read" in found[0].message


def test_extra_empty_cells_and_columns_of_a_spreadsheet_are_nothing() -> None:
    assert rows("id,email,,\n1,a@example.com,,\n2,b@example.com\t\n".replace("\t", ","))[0].values == {
        "reminder": "1",
        "email": "a@example.com",
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\n\n\n", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        ("id,email\n1,a".encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04\x14\0", "a workbook"),
        (b"id,email\r1,a\r2,b\r", "carriage return alone"),
        (b"1,ann@example.com\n2,bob@example.com\n", "names no known column"),
        (b"id,,email\n1,2,3\n", "column 2 has no name"),
        (b'[{"id":1}]', "one JSON list"),
        (b"id," + b",".join(b"c%d" % n for n in range(600)) + b"\n", "601 columns"),
        (b'"id', "header cannot be read"),
        (b"id,caf\xe9\n", "header: not UTF-8"),
    ],
)
def test_files_that_cannot_be_meant(content: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TableFile(io.BytesIO(content), COLUMNS)


def test_bytes_read_reaches_the_end() -> None:
    content = '\ufeffid,name\n1,"a\nb"\n\n2,é\n'.encode()
    file = TableFile(io.BytesIO(content), COLUMNS)
    seen = [file.bytes_read for _ in file]
    assert all(before < after for before, after in pairwise(seen))
    assert file.bytes_read == len(content)


class _Pipe(io.RawIOBase):
    """Standard input: gives a little at a time and cannot seek."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        taken, self._left = self._left[:7], self._left[7:]
        view[: len(taken)] = taken
        return len(taken)


def test_a_stream_is_read_as_it_comes() -> None:
    stream = io.BufferedReader(_Pipe(b"id,email\n1,a@example.com\n2,b@example.com\n"))
    assert [row.number for row in TableFile(stream, COLUMNS)] == [2, 3]


cells = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12
).map(str.strip)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(cells.filter(bool), cells, cells), max_size=8),
    st.sampled_from(",;\t"),
    st.sampled_from(["\n", "\r\n"]),
)
def test_whatever_a_spreadsheet_writes_is_read_back(
    lines: list[tuple[str, str, str]], delimiter: str, end: str
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "name", "note"), *lines])
    found = rows(text.getvalue())
    assert [(row.values["reminder"], row.data["name"], row.data["note"]) for row in found] == lines
    assert [row.number for row in found] == list(range(2, len(lines) + 2))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_refusal(content: bytes) -> None:
    for start in (b"", b"id,email\n", b'{"id":1}\n'):
        with suppress(InvalidInput):
            found = list(TableFile(io.BytesIO(start + content), COLUMNS))
            assert all(row.number > 0 for row in found)
            assert all(row.message for row in found if isinstance(row, BadRow))


# JSON lines


def test_json_lines_with_values_of_every_kind() -> None:
    line = {
        "id": 7,
        "Customer-ID": "c",
        "channels": ["email", "sms"],
        "email": None,
        "priority": 3,
        "data": {"name": "Ann", "items": [1, {"x": None}]},
        "Total": 1.5,
    }
    assert read(json.dumps(line)) == [
        Row(
            1,
            {"reminder": "7", "customer": "c", "channels": "email,sms", "priority": "3"},
            {"name": "Ann", "items": [1, {"x": None}], "Total": 1.5},
        )
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{bad", "no JSON object"),
        ("[1]", "holds list"),
        ('"text"', "holds str"),
        ('{"id":"1","id":"2"}', "'id' stands twice"),
        ('{"id":1,"data":{"a":1,"a":2}}', "'a' stands twice"),
        ('{"id":"1","reminder":"1"}', "'id' and 'reminder' both mean reminder"),
        ('{"id":true}', "reminder is true or false"),
        ('{"id":{"a":1}}', "reminder is an object"),
        ('{"email":["a@example.com"]}', "email is a list"),
        ('{"x":NaN}', "NaN is no JSON number"),
        ('{"x":Infinity}', "Infinity is no JSON number"),
        ('{"id":"a\\u0000b"}', "reminder holds a NUL"),
        ('{"x":' + "9" * 5_000 + "}", "too many digits"),
        ("[" * 100_000, "nested too deeply"),
        (b'{"id":"caf\xe9"}', "byte 0xe9"),
    ],
)
def test_one_bad_line_never_stops_the_others(line: str | bytes, says: str) -> None:
    """CONT-15, among others: NUL in a file is told as what it is."""
    raw = line if isinstance(line, bytes) else line.encode()
    found = read(b'{"id":"first"}\n' + raw + b'\n\n{"id":"last"}\n')
    assert [row.number for row in found] == [1, 2, 4]
    assert isinstance(found[1], BadRow)
    assert says in found[1].message
    assert [found[0].values["reminder"], found[2].values["reminder"]] == ["first", "last"]


def test_json_lines_take_defaults_per_row() -> None:
    found = rows('{"id":"1"}\n{"id":"2","template":"b","x":2}\n', defaults={"template": "a", "data.x": "1"})
    assert [(row.values["template"], row.data["x"]) for row in found] == [("a", "1"), ("b", 2)]


@pytest.mark.parametrize("name", ["template_version", "priority"])
@pytest.mark.parametrize("text", ["-1", "1.5", "x", "１", "9" * 10])
def test_numbers_that_are_none(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        asked_of({name: text}, {})
    assert error.value.field == name


def test_a_row_becomes_a_request() -> None:
    row = rows("id;customer;due;channels;priority;name\nr;c;now;email, sms;2;Ann\n")[0]
    asked = asked_of(row.values, row.data, tenant="acme")
    assert (asked.reminder, asked.customer, asked.due, asked.tenant) == ("r", "c", "now", "acme")
    assert (asked.channels, asked.priority, asked.data) == (("email", "sms"), 2, {"name": "Ann"})
