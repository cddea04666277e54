"""Rows out of files: CSV and JSON lines, one row at a time, whoever wrote the file.

A file comes from a spreadsheet, a database or a colleague. What can be read without guessing is
read: a byte order mark, any line end, a comma, semicolon or tab, quoted line breaks, columns under
other names. What cannot be read is said with its row number, and never stops the rows after it.

    file = TableFile(stream, COLUMNS)       raises before any row where the file as a whole is wrong
    for row in file: ...                    Row, or BadRow with the reason

Row numbers are those that a spreadsheet shows (the header is 1, blank rows count, a quoted line
break does not); in JSON lines they are line numbers. Nothing but the current row is in memory.
"""

from __future__ import annotations

import csv
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import IO, Final, Literal, NoReturn

from sendonce.core.errors import InvalidInput

LINE_BYTES_MAX: Final = 1024 * 1024
COLUMNS_MAX: Final = 500
DELIMITERS: Final = ",;\t"

Columns = Mapping[str, Sequence[str]]
"""Field -> other names for it; see `core.reminder.COLUMNS`."""

Format = Literal["auto", "csv", "jsonl"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `values` by field name, trimmed, only those that are not empty; `data` is the rest."""

    number: int
    values: Mapping[str, str]
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read. `message` names value, rule and fix; `values` is what could be read."""

    number: int
    field: str
    message: str
    values: Mapping[str, str]


class TableFile:
    """A file of rows, read once from front to back.

    stream    binary; need not be seekable (standard input is fine)
    columns   which names mean which field; all others are data, a `data.` before a name is dropped
    defaults  field or `data.NAME` -> what a row gets that gives none itself
    lists     fields that JSON lines may give as a list of texts

    `columns` given to rows is what the header said; `bytes_read` moves with the rows, for a progress
    bar; `all_there`: no row is waited for, as at a pipe. Raises `InvalidInput` for a file or defaults
    that cannot be meant.
    """

    def __init__(
        self,
        stream: IO[bytes],
        columns: Columns,
        *,
        defaults: Mapping[str, str] | None = None,
        form: Format = "auto",
        lists: Sequence[str] = ("channels",),
    ) -> None:
        self.all_there = _all_there(stream)
        self._names = _Names(columns)
        self._values, self._data = _defaults(defaults or {}, self._names)
        self._lines = _Lines(stream)
        self._lists = frozenset(lists)
        first = self._lines.first()
        is_json = form == "jsonl" or (form == "auto" and first.lstrip()[:1] in ("{", "["))
        self._rows = self._json_rows(first) if is_json else self._csv_rows()

    @property
    def bytes_read(self) -> int:
        return self._lines.bytes_read

    def __iter__(self) -> Iterator[Row | BadRow]:
        return self._rows

    # CSV

    def _csv_rows(self) -> Iterator[Row | BadRow]:
        delimiter = self._lines.delimiter()
        records = csv.reader(self._lines, delimiter=delimiter, strict=True)
        number, header = _header(records, self._lines)
        layout = _Layout(header, self._names)
        return self._csv_records(records, layout, number)

    def _csv_records(
        self, records: Iterator[list[str]], layout: _Layout, number: int
    ) -> Iterator[Row | BadRow]:
        lines, values, data = self._lines, self._values, self._data
        while True:
            number += 1
            from_line = lines.number + 1
            try:
                cells = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRow(number, "", _unreadable(error, from_line, lines.number), {})
                lines.take_fault()
                continue
            if lines.fault:
                yield BadRow(number, "", lines.take_fault(), {})
                continue
            if not cells or (len(cells) > 1 and not any(map(str.strip, cells))):
                continue
            yield layout.row(number, cells, values, data)

    # JSON lines

    def _json_rows(self, first: str) -> Iterator[Row | BadRow]:
        if first.lstrip().startswith("["):
            raise InvalidInput(
                "the file is one JSON list: write JSON lines, one object a line without commas between them "
                "(jq -c '.[]' does it)",
                code="unreadable_file",
            )
        return self._json_lines()

    def _json_lines(self) -> Iterator[Row | BadRow]:
        lines = self._lines
        for line in lines:
            if lines.fault:
                yield BadRow(lines.number, "", lines.take_fault(), {})
            elif line.strip():
                yield self._json_row(lines.number, line)

    def _json_row(self, number: int, line: str) -> Row | BadRow:
        values: dict[str, str] = {}
        try:
            given = json.loads(line, object_pairs_hook=_without_twins, parse_constant=_no_number)
            if not isinstance(given, dict):
                raise _Unreadable(f"the line holds {type(given).__name__} and must hold an object: {{...}}")
            data = self._json_fields(given, values)
        except _Unreadable as error:
            return BadRow(number, error.field, str(error), values)
        except json.JSONDecodeError as error:
            rule = f"no JSON object: {error.msg} at character {error.colno}"
            return BadRow(number, "", f"{rule}; write one object a line", values)
        except (RecursionError, ValueError):
            return BadRow(
                number, "", "nested too deeply, or a number of too many digits: simplify it", values
            )
        return Row(number, {**self._values, **values}, {**self._data, **data})

    def _json_fields(self, given: Mapping[str, object], values: dict[str, str]) -> dict[str, object]:
        data: dict[str, object] = {}
        said: dict[str, str] = {}
        for name, value in given.items():
            if name == "data" and isinstance(value, Mapping):
                data.update(value)
                continue
            field, variable = self._names.meaning(name, keep_case=True)
            if field:
                if field in said:
                    raise _Unreadable(f"{said[field]!r} and {name!r} both mean {field}: keep one", field)
                said[field] = name
                if text := _json_text(value, field, as_list=field in self._lists):
                    values[field] = text
            else:
                data[variable] = value
        return data


def _all_there(stream: IO[bytes]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # no file of the system: bytes in memory
        return True


class _Unreadable(Exception):
    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


# Names of columns.


class _Names:
    """What a column's name means."""

    def __init__(self, columns: Columns) -> None:
        self.fields = tuple(columns)
        self._field_of = {_folded(name): field for field in columns for name in (field, *columns[field])}

    def meaning(self, name: str, *, keep_case: bool = False) -> tuple[str, str]:
        """(field, ""), or ("", name of a template variable)."""
        trimmed = name.strip()
        if trimmed[:5].lower() == "data.":
            return "", trimmed[5:].strip()
        folded = _folded(trimmed)
        field = self._field_of.get(folded, "")
        return (field, "") if field else ("", trimmed if keep_case else folded)

    def near(self, name: str) -> str:
        close = get_close_matches(_folded(name), self._field_of, n=1)
        return f"did you mean {self._field_of[close[0]]}?" if close else f"known are {', '.join(self.fields)}"


def _folded(name: str) -> str:
    return re.sub(r"[\s.\-]+", "_", name.strip().casefold())


def _defaults(defaults: Mapping[str, str], names: _Names) -> tuple[dict[str, str], dict[str, object]]:
    values: dict[str, str] = {}
    data: dict[str, object] = {}
    for name, text in defaults.items():
        field, variable = names.meaning(name)
        if field:
            values[field] = text.strip()
        elif name.strip()[:5].lower() == "data.":
            data[variable] = text
        else:
            raise InvalidInput(
                f"--set {name!r:.80} is no column: {names.near(name)} (a template variable is data.NAME)",
                field=name,
            )
    return values, data


# CSV: the header, and what it makes of a row.


def _header(records: Iterator[list[str]], lines: _Lines) -> tuple[int, list[str]]:
    """The first row that is not blank, with its number."""
    number = 1 if lines.skipped_hint else 0
    try:
        for cells in records:
            number += 1
            if lines.fault:
                raise InvalidInput(f"header: {lines.take_fault()}", code="unreadable_file")
            if any(map(str.strip, cells)):
                return number, cells
    except csv.Error as error:
        raise InvalidInput(
            f"the header cannot be read ({error}): is it a CSV file in UTF-8?", code="unreadable_file"
        ) from None
    raise InvalidInput("the file is empty: its first row must name the columns", code="empty_file")


class _Layout:
    """Where each field and each variable stands in a row."""

    def __init__(self, header: Sequence[str], names: _Names) -> None:
        while header and not header[-1].strip():  # a spreadsheet's empty columns on the right
            header = header[:-1]
        if len(header) > COLUMNS_MAX:
            raise InvalidInput(
                f"the header has {len(header)} columns and may have {COLUMNS_MAX}: drop some",
                code="unreadable_file",
            )
        self.width = len(header)
        self.fields: list[tuple[str, int]] = []
        self.variables: list[tuple[str, int]] = []
        seen: dict[tuple[str, str], str] = {}
        for at, name in enumerate(header):
            if not name.strip():
                raise InvalidInput(
                    f"column {at + 1} has no name: name it in the first row, or delete it",
                    code="unreadable_file",
                )
            field, variable = meaning = names.meaning(name)
            if meaning in seen:
                raise InvalidInput(
                    f"columns {seen[meaning]!r} and {name!r} both mean {field or variable}: keep one",
                    field=field or variable,
                    code="twin_columns",
                )
            seen[meaning] = name
            (self.fields if field else self.variables).append((field or variable, at))
        if not self.fields:
            shown = ", ".join(name.strip() for name in header[:5])
            raise InvalidInput(
                f"the first row ({shown:.200}) names no known column: {names.near(header[0])}; "
                "the first row must be the header",
                code="no_header",
            )

    def row(
        self, number: int, cells: list[str], values: dict[str, str], data: dict[str, object]
    ) -> Row | BadRow:
        if len(cells) < self.width:
            found = {field: cells[at].strip() for field, at in self.fields if at < len(cells)}
            return BadRow(number, "", self._ragged(len(cells)), found)
        if len(cells) > self.width and any(map(str.strip, cells[self.width :])):
            return BadRow(number, "", self._ragged(len(cells)), {})
        given = {field: text for field, at in self.fields if (text := cells[at].strip())}
        variables: dict[str, object] = {name: cells[at].strip() for name, at in self.variables}
        if data:
            own = {name: text for name, text in variables.items() if text or name not in data}
            variables = {**data, **own}
        return Row(number, {**values, **given} if values else given, variables)

    def _ragged(self, count: int) -> str:
        fix = (
            "put quotes around a cell that holds the delimiter"
            if count > self.width
            else "fill up the missing cells"
        )
        return f"the row has {count} cells and the header {self.width}: {fix}"


def _unreadable(error: csv.Error, from_line: int, to_line: int) -> str:
    said = str(error)
    lines = f"line {from_line}" if to_line <= from_line else f"lines {from_line} to {to_line}"
    if "unexpected end" in said or to_line > from_line:
        why = f"a quote opened in line {from_line} of the file is not closed"
        fix = "close it, and write a quote inside a cell twice"
    elif "new-line" in said:
        why, fix = "a carriage return stands inside a cell", "put the cell in quotes"
    elif "field larger" in said:
        why, fix = f"a cell has more than {csv.field_size_limit()} characters", "shorten it"
    else:
        why, fix = "a quote stands inside a quoted cell", "write it twice"
    return f"{why}: {fix}; nothing of {lines} was read"


# JSON lines.


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise _Unreadable(f"{twin!r:.80} stands twice in an object: keep one", twin)
    return found


def _no_number(text: str) -> NoReturn:
    raise _Unreadable(f"{text} is no JSON number: leave it out")


def _json_text(value: object, field: str, *, as_list: bool) -> str:
    match value:
        case None:
            return ""
        case str():
            if "\x00" in value:
                raise _Unreadable(f"{field} holds a NUL character (U+0000): remove it", field)
            return value.strip()
        case int() if not isinstance(value, bool):
            return str(value)
        case list() if as_list and all(isinstance(item, str) for item in value):
            return ",".join(value)
        case _:
            kind = {"bool": "true or false", "dict": "an object", "list": "a list", "float": "a fraction"}
            found = kind.get(type(value).__name__, type(value).__name__)
            raise _Unreadable(f"{field} is {found} and must be text: write it in quotes", field)


# Lines: bytes in, text out, with the first thing that is wrong in them.


class _Lines:
    """An iterator of decoded lines for the CSV and JSON readers.

    number      lines given out so far
    fault       what is wrong with the lines since `take_fault`, "" for nothing
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._ahead: list[bytes] = []
        self.bytes_read = 0
        self.number = 0
        self.fault = ""
        self.skipped_hint = False

    def first(self) -> str:
        """The first line with something in it, kept for the reader; refuses what is no UTF-8 text."""
        while True:
            line = self._stream.readline(LINE_BYTES_MAX + 1)
            if not self._ahead:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise InvalidInput(
                        'the file is UTF-16: save it as UTF-8 (in a spreadsheet "CSV UTF-8")',
                        code="unreadable_file",
                    )
                if line.startswith((b"PK\x03\x04", b"%PDF", b"\xd0\xcf\x11\xe0", b"\x1f\x8b")):
                    raise InvalidInput(
                        "the file is a workbook, a PDF or an archive, not text: export it as CSV in UTF-8",
                        code="unreadable_file",
                    )
                if line.startswith(b"\xef\xbb\xbf"):
                    line, self.bytes_read = line[3:], 3
            if b"\r" in line.rstrip(b"\r\n").replace(b"\r\n", b"") and not line.endswith(b"\n"):
                raise InvalidInput(
                    "the lines end with a carriage return alone: save the file with other line ends",
                    code="unreadable_file",
                )
            self._ahead.append(line)
            if line.strip() or not line:
                return line.decode("utf-8", "replace")

    def delimiter(self) -> str:
        """What separates the cells, by the first line; a `sep=;` line of spreadsheets says so itself."""
        line = self._ahead[-1].decode("utf-8", "replace").rstrip("\r\n")
        if line[:4].lower() == "sep=" and len(line) == 5 and line[4] in DELIMITERS:
            self.bytes_read += sum(map(len, self._ahead))
            self._ahead.clear()
            self.number += 1
            self.skipped_hint = True
            return line[4]
        bare = re.sub(r'"[^"]*"?', "", line)
        return max(DELIMITERS, key=bare.count)

    def take_fault(self) -> str:
        fault, self.fault = self.fault, ""
        return fault

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._ahead.pop(0) if self._ahead else self._stream.readline(LINE_BYTES_MAX + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > LINE_BYTES_MAX:
            line = self._skipped(line)
        start = self.bytes_read
        self.bytes_read += len(line)
        if b"\0" in line and not self.fault:
            self.fault = f"a NUL byte at byte {start + line.index(0)} of the file: remove it"
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            if not self.fault:
                self.fault = (
                    f"not UTF-8: byte 0x{line[error.start]:02x} at byte {start + error.start} of the file "
                    f"({_around(line, error.start)}); save the file as UTF-8"
                )
            return line.decode("utf-8", "replace")

    def _skipped(self, line: bytes) -> bytes:
        """Read past a line that is too long, and give out a harmless one."""
        self.fault = self.fault or (
            f"line {self.number} of the file has more than {LINE_BYTES_MAX // 1024} KB: shorten it, "
            "or close its quotes"
        )
        while line and not line.endswith(b"\n"):
            self.bytes_read += len(line)
            line = self._stream.readline(LINE_BYTES_MAX + 1)
        self.bytes_read += len(line)
        return b"-\n"


def _around(line: bytes, at: int) -> str:
    before = line[max(0, at - 12) : at].decode("ascii", "replace").rpartition("\ufffd")[2]
    return f"after {before!r}" if before else "at its start"
