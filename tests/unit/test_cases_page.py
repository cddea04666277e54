"""docs/cases.md: every case is there, each test that it names exists and names the case."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAST = {
    "DUP": 9, "LOST": 9, "RATE": 13, "TIME": 13, "CANC": 7,
    "DLQ": 9, "CONT": 17, "HOOK": 11, "STOR": 9, "API": 11,
}  # fmt: skip
"""The cases of a kind have odd numbers, up to this one."""
CASES = [f"{kind}-{number:02}" for kind, last in LAST.items() for number in range(1, last + 1, 2)]
PAGE = (ROOT / "docs" / "cases.md").read_text("utf-8")
ITEMS = dict(re.findall(r"^- \*\*([A-Z]+-\d+)\*\*(.*?)(?=^- |^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
NAMED = re.compile(r"`(\w+/\w+\.py)::(\w+)`")


@cache
def names_in(path: str) -> dict[str, str]:
    """The tests of a file, each with what it says of itself: its name and its first words."""
    tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        each.name: f"{each.name.upper().replace('_', '-')} {ast.get_docstring(each) or ''}" for each in tests
    }


def test_all_59_are_there_and_nothing_else() -> None:
    assert len(CASES) == 59
    assert list(ITEMS) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_case_names_its_tests_and_they_name_it(case: str) -> None:
    tests = NAMED.findall(ITEMS[case])
    assert tests or "*Not yet.*" in ITEMS[case], "name a test that proves it, or say that there is none yet"
    for path, name in tests:
        assert name in names_in(path), f"tests/{path} has no {name}"
        assert case in names_in(path)[name], f"{name} does not say that it proves {case}"
