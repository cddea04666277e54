"""Check what documentation and tracked files promise about each other.

    python tools/check_docs.py [ROOT]

Each check is a function from the `Tree` (tracked text files by path) to the problems it sees, one line each
with file, line and what to do. To add one, write the function and list it in `CHECKS`.
"""

import posixpath
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

DOCS_INDEX = "docs/README.md"


@dataclass(frozen=True, slots=True)
class Link:
    """A link or image of a Markdown file, as written."""

    line: int
    target: str


@dataclass(frozen=True)
class Tree:
    """Text by path, relative to the root with `/`, of every file git tracks or would track."""

    files: Mapping[str, str]

    @cached_property
    def folders(self) -> frozenset[str]:
        return frozenset(str(parent) for name in self.files for parent in Path(name).parents)

    @cached_property
    def markdown(self) -> dict[str, list[Token]]:
        parser = MarkdownIt("commonmark").enable("table")
        return {name: parser.parse(text) for name, text in self.files.items() if name.endswith(".md")}

    @classmethod
    def at(cls, root: Path) -> "Tree":
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        names = [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
        return cls({name: (root / name).read_text(encoding="utf-8", errors="replace") for name in names})


def main(root: Path) -> None:
    tree = Tree.at(root)
    sys.exit("\n".join(problem for check in CHECKS for problem in check(tree)) or 0)


def links_resolve(tree: Tree) -> Iterator[str]:
    """Every relative link names a file or folder of the tree, and every fragment a heading."""
    for name in tree.markdown:
        for link in links(tree, name):
            if is_external(link.target):
                continue
            target, fragment = resolve(name, link.target)
            if target not in tree.files and target not in tree.folders:
                yield f"{name}:{link.line}: {link.target} does not exist; name a file, relative to this one"
            elif fragment and target in tree.markdown and fragment not in anchors(tree, target):
                yield f"{name}:{link.line}: {target} has no heading #{fragment}; use one it has"


def docs_are_reachable(tree: Tree) -> Iterator[str]:
    """A reader who starts at the index comes to every page under `docs/`."""
    reached, waiting = set[str](), [DOCS_INDEX]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in tree.markdown:
            continue
        reached.add(name)
        targets = (link.target for link in links(tree, name))
        waiting += [resolve(name, target)[0] for target in targets if not is_external(target)]
    for name in sorted(tree.markdown):
        if name.startswith("docs/") and name not in reached:
            yield f"{name}: cannot be reached from {DOCS_INDEX}; link to it there, or in a page linked there"


def nothing_local(tree: Tree) -> Iterator[str]:
    """No tracked file names a path of one machine or the host of a package registry.

    Such a name is of no use to anyone else, and a lock file that names a registry works with that one only.
    """
    for name, text in tree.files.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if found := LOCAL.search(line):
                yield f"{name}:{number}: {found[0]} is a name of one machine or network; leave it out"


CHECKS: tuple[Callable[[Tree], Iterator[str]], ...] = (links_resolve, docs_are_reachable, nothing_local)


# Written in pieces, so that this file does not hold what it forbids.
HOME_FOLDERS = "|".join(("work", "root", "home", "Users", "tmp/bash_jobs"))
REGISTRY_HOSTS = "|".join(
    re.escape(".".join(parts))
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("deb", "debian", "org"))
)
LOCAL = re.compile(rf"(?<![\w.}}>~/-])/(?:{HOME_FOLDERS})/|\b(?:{REGISTRY_HOSTS})\b")


def links(tree: Tree, name: str) -> Iterator[Link]:
    for block in tree.markdown[name]:
        line = block.map[0] + 1 if block.map else 1
        for token in block.children or ():
            target = token.attrGet("href") or token.attrGet("src")
            if isinstance(target, str):
                yield Link(line, target)


def is_external(target: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE) is not None


def resolve(name: str, target: str) -> tuple[str, str]:
    """The path, from the root, and the fragment that a link in `name` leads to."""
    path, _, fragment = unquote(target).partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name), fragment


def anchors(tree: Tree, name: str) -> set[str]:
    """The fragments of a page's headings, formed as code hosts form them; a repeated one gets a number."""
    seen: dict[str, int] = {}
    found = set[str]()
    tokens = tree.markdown[name]
    for heading, text in pairwise(tokens):
        if heading.type == "heading_open":
            words = "".join(child.content for child in text.children or ())
            anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = seen.get(anchor, 0)
            found.add(f"{anchor}-{count}" if count else anchor)
            seen[anchor] = count + 1
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
