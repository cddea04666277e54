"""Bodies as JSON, strictly: UTF-8, numbers that JSON has, whole characters, each name once, not deep.

A document that cannot be read is refused as a whole, before anything of it is used.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import NoReturn

from sendonce.api.problems import Problem
from sendonce.asking import DEPTH_MAX, too_deep


def document_of(body: bytes) -> object:
    """The value of a body; None for an empty one. Raises `Problem` (bad_json) that says where."""
    if not body:
        return None
    value = parsed(body)
    if b"\\u" in body:
        _check_text(value)
    if too_deep(value):
        raise Problem("bad_json", f"it is nested more than {DEPTH_MAX} deep: make it flat")
    return value


def parsed(body: bytes) -> object:
    """The value of a body as it stands. Raises `Problem` (bad_json)."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_each_name_once)
    except UnicodeDecodeError as error:
        raise Problem("bad_json", f"byte {error.start} is not UTF-8: send UTF-8") from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise Problem("bad_json", f"{error.msg} at {at}: send JSON (RFC 8259)") from None
    except RecursionError:
        raise Problem("bad_json", f"it is nested more than {DEPTH_MAX} deep: make it flat") from None
    except ValueError as error:  # a number of thousands of digits
        raise Problem("bad_json", f"a number cannot be read ({error})") from None


def _check_text(value: object) -> None:
    """An escape may spell half a character, which no store can keep."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Problem(
            "bad_json", "an escape such as \\ud83d is half a character: write both, or the character itself"
        ) from None
    except RecursionError:
        raise Problem("bad_json", f"it is nested more than {DEPTH_MAX} deep: make it flat") from None


def _each_name_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Of two values under one name a reader may take either: nobody can tell which was meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Problem("bad_json", f"{name!r:.80} stands twice in one object: leave one of them out")
    return found


def _no_number(text: str) -> NoReturn:
    raise Problem("bad_json", f"{text} is no number in JSON: send null, or a number")
