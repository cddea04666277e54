"""The house itself: locks, documents and version agree with `pyproject.toml`; the checkers find faults."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tools import check_docs, environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIN = re.compile(r"([a-z0-9-]+)==[0-9][\w.]*( ; [^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
COMMENT = re.compile(r" *#.*\n")


def names(requirements: list[str]) -> set[str]:
    """The normalised name of each requirement."""
    return {re.sub(r"[-_.]+", "-", NAME.match(text)[0]).lower() for text in requirements}  # type: ignore[index]


def runtime_dependencies() -> set[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    return names(PROJECT["project"]["dependencies"]) | set().union(*map(names, extras))


def pinned(lock: str) -> set[str]:
    return {pin[1] for pin in PIN.finditer((ROOT / "requirements" / lock).read_text(encoding="utf-8"))}


def documented(page: str, section: str) -> dict[str, list[str]]:
    """The rows of a page's tables under a heading: the code-styled first cell to the other cells."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:3] == "| `"
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_pins_with_hashes_and_nothing_else(lock: Path) -> None:
    """No option, index, host, URL or path can hide in it: all text is either a hashed pin or a comment."""
    rest = PIN.sub("", lock.read_text(encoding="utf-8"))
    assert COMMENT.sub("", rest) == ""
    assert all(
        re.fullmatch(r" *#[ \w.,:()<>=\[\]-]*(-c requirements/runtime\.lock)?", line)
        for line in rest.splitlines()
    )


def test_the_locks_hold_what_the_project_asks_for() -> None:
    groups = PROJECT["dependency-groups"]
    assert runtime_dependencies() <= pinned("runtime.lock")
    assert runtime_dependencies() | names(groups["dev"]) <= pinned("dev.lock")
    assert names(groups["lock"]) == pinned("tools.lock")


def test_users_and_tests_get_the_same_versions() -> None:
    runtime = set((ROOT / "requirements/runtime.lock").read_text(encoding="utf-8").split("\n"))
    development = set((ROOT / "requirements/dev.lock").read_text(encoding="utf-8").split("\n"))
    assert {line for line in runtime if "==" in line} <= development


def test_the_build_backend_is_pinned_too() -> None:
    assert names(PROJECT["build-system"]["requires"]) <= pinned("dev.lock")


def test_every_dependency_of_users_is_explained() -> None:
    explained = documented("docs/dependencies.md", "What users get")
    assert set(explained) == runtime_dependencies()
    assert all(all(cells) and len(cells) in (5, 6) for cells in explained.values())


def test_every_dependency_of_the_gate_is_explained() -> None:
    explained = documented("docs/dependencies.md", "What the gate needs")
    assert set(explained) == set().union(*map(names, PROJECT["dependency-groups"].values()))
    assert all(all(cells) and len(cells) == 3 for cells in explained.values())


def test_what_dependencies_bring_is_named() -> None:
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    indirect = pinned("runtime.lock") - runtime_dependencies() - {"colorama"}  # colorama: Windows only
    assert {name for name in indirect if f"`{name}`" not in text} == set()


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_the_version_has_one_source() -> None:
    version = PROJECT["project"]["version"]
    assert importlib.metadata.version("sendonce") == version
    copies = [
        path for path in (ROOT / "src").rglob("*.py") if f'"{version}"' in path.read_text(encoding="utf-8")
    ]
    assert copies == []


@pytest.mark.parametrize("part", ["core", "ports"])
def test_the_lowest_parts_need_the_standard_library_only(part: str) -> None:
    folder = ROOT / "src/sendonce" / part
    imported = {name for path in folder.rglob("*.py") for name in imports(path)}
    assert imported
    assert {name for name in imported if name not in sys.stdlib_module_names} <= {"sendonce"}


def imports(path: Path) -> set[str]:
    """The top-level names that a module imports, wherever in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("sendonce" if node.level else (node.module or "").partition(".")[0])
    return found


def test_the_oldest_python_is_said_once() -> None:
    oldest = ".".join(map(str, environment.OLDEST_PYTHON))
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert f"--python-version {oldest}" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_an_old_python_is_refused_with_its_version_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(
        SystemExit, match=r"is Python 3\.9, but sendonce needs 3\.11 or later; .*make PYTHON="
    ):
        environment.refuse_old_python()


INDEX = {"docs/README.md": "[a](a.md)\n", "docs/a.md": "# First steps\n\n[up](README.md)\n"}
LOCAL_PATH = "/".join(("", "root", "x"))
REGISTRY = ".".join(("pythonhosted", "org"))


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, []),
        ({"docs/b.md": "alone"}, ["docs/b.md: cannot be reached from docs/README.md"]),
        ({"docs/a.md": "[b](b.md)", "docs/b.md": "reached through a"}, []),
        ({"README.md": "see\n[x](docs/none.md)"}, ["README.md:1: docs/none.md does not exist"]),
        (
            {"README.md": "[x](docs/) [y](docs/a.md) [z](https://b.test/x.md) [m](mailto:a@b.test)"},
            [],
        ),
        ({"README.md": "![picture](none.png)"}, ["README.md:1: none.png does not exist"]),
        ({"README.md": "[x][r]\n\n[r]: none.md"}, ["README.md:1: none.md does not exist"]),
        ({"README.md": "`[x](none.md)`\n\n```\n[x](none.md)\n```"}, []),
        ({"README.md": "[x](docs/a.md#first-steps) [y](#top)\n\n# Top"}, []),
        ({"README.md": "# Twice\n\n# Twice\n\n[x](#twice-1)"}, []),
        ({"README.md": "[x](docs/a.md#last)"}, ["README.md:1: docs/a.md has no heading #last"]),
        ({"x.py": f"open('{LOCAL_PATH}')"}, [f"x.py:1: {LOCAL_PATH[:-1]} is a name of one machine"]),
        ({"x.py": f"\n# {REGISTRY}"}, [f"x.py:2: {REGISTRY} is a name of one machine"]),
        ({"x.py": f"url = 'https://example.com{LOCAL_PATH}'"}, []),
    ],
)
def test_the_checker_of_documents_finds_faults(files: dict[str, str], found: list[str]) -> None:
    tree = check_docs.Tree(INDEX | files)
    problems = [problem for check in check_docs.CHECKS for problem in check(tree)]
    assert len(problems) == len(found), problems
    assert all(map(str.startswith, problems, found)), problems
