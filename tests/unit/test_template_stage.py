"""Templates in the store: immutable versions, and a book that compiles each once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.reminder import AUTOMATIC
from sendonce.pipeline.templates import add, add_sources, list_templates, preview, show
from sendonce.ports.store import StoredTemplate
from sendonce.render import TemplateSource
from sendonce.store.sqlite import SqliteStore, open_store
from sendonce.template_book import KEPT_MAX, TemplateBook, from_store, from_tx, variables
from sendonce.testing.clock import VirtualClock


@pytest.fixture
def store() -> SqliteStore:
    return open_store("sqlite://:memory:", VirtualClock(), inline=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pay.subject.txt").write_text("Due {{ due_local | date('%A') }}\n")
    (tmp_path / "pay.txt").write_text("Dear {{ name }}\r\n[ref:{{ delivery_key }}]")
    (tmp_path / "pay.sms.txt").write_text("Hi {{ name }} 😎")
    return tmp_path


def test_unchanged_content_is_no_new_version(store: SqliteStore, folder: Path) -> None:
    first = add(store, folder, "pay", actor="operator:kim")
    assert (first.version, first.new, set(first.channels)) == (1, True, {Channel.EMAIL, Channel.SMS})
    assert add(store, folder, "pay", actor="operator:kim").new is False
    (folder / "pay.txt").write_text("Hello {{ name }}")
    assert add(store, folder, "pay", actor="operator:kim").version == 2
    (folder / "pay.sms.txt").unlink()
    third = add(store, folder, "pay", actor="operator:kim")
    assert (third.version, third.channels) == (3, (Channel.EMAIL,))
    assert "Dear" in show(store, "pay", 1)[0].text
    assert [part.version for part in show(store, "pay")] == [3]


def test_line_ends_of_the_file_are_no_change(store: SqliteStore, folder: Path) -> None:
    add(store, folder, "pay", actor="a")
    content = (folder / "pay.txt").read_text().replace("\r\n", "\n")
    (folder / "pay.txt").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert add(store, folder, "pay", actor="a").new is False


def test_what_cannot_be_rendered_is_not_stored(store: SqliteStore, folder: Path) -> None:
    (folder / "pay.txt").write_text("Dear {{ name")
    with pytest.raises(InvalidInput, match="text"):
        add(store, folder, "pay", actor="a")
    with pytest.raises(InvalidInput, match="no file"):
        add(store, folder, "other", actor="a")
    assert list(list_templates(store)) == []
    with pytest.raises(NotFound):
        show(store, "pay")


@pytest.mark.parametrize("page", [3, 4, 5, 500])
def test_the_list_is_whole_whatever_the_page(store: SqliteStore, page: int) -> None:
    wanted = []
    for name in ("a", "b", "c"):
        for version in (1, 2):
            both = {
                "email": TemplateSource("email", "S", f"{name}{version}"),
                "sms": TemplateSource("sms", text=f"{name}{version}"),
            }
            add_sources(store, name, both, actor="a")
            wanted += [(name, version, "email"), (name, version, "sms")]
    add_sources(store, "a", {"sms": TemplateSource("sms", text="other")}, actor="a", tenant="other")
    found = [(row["name"], row["version"], row["channel"]) for row in list_templates(store, page=page)]
    assert found == wanted


def test_preview_shows_each_channel_and_what_a_text_message_costs(store: SqliteStore, folder: Path) -> None:
    add(store, folder, "pay", actor="a")
    email, sms = preview(store, "pay", {"name": "Ann"}, reminder="r-1", customer="c:1")
    assert email.rendered.subject == "Due Tuesday"
    assert email.rendered.text == "Dear Ann\n[ref:r-1:c%3A1:email]"
    assert email.segments is None
    assert sms.rendered.text == "Hi Ann 😎"
    assert sms.segments is not None
    assert (sms.segments.encoding, sms.segments.units, sms.segments.parts) == ("ucs2", 9, 1)
    long = preview(store, "pay", {"name": "x" * 70})[1].segments
    assert long is not None
    assert long.parts == 2


def test_preview_finds_what_is_missing(store: SqliteStore, folder: Path) -> None:
    add(store, folder, "pay", actor="a")
    with pytest.raises(InvalidInput, match="name"):
        preview(store, "pay", {})
    with pytest.raises(NotFound, match="version 7"):
        preview(store, "pay", {"name": "Ann"}, version=7)
    with pytest.raises(InvalidInput, match="filled in"):
        preview(store, "pay", {"name": "Ann", "channel": "x"})


# The book


def stored(name: str, version: int, text: str = "x") -> StoredTemplate:
    return StoredTemplate("t", name, version, Channel.SMS, "", text, "", f"{name}{version}", 0)


class Shelf:
    """A loader that counts."""

    def __init__(self, *templates: StoredTemplate) -> None:
        self.templates = list(templates)
        self.loads: list[tuple[str, int]] = []

    def __call__(self, tenant: str, name: str, version: int) -> Sequence[StoredTemplate]:
        self.loads.append((name, version))
        own = [part for part in self.templates if (part.tenant, part.name) == (tenant, name)]
        wanted = version or max((part.version for part in own), default=0)
        return [part for part in own if part.version == wanted]


def test_each_version_is_loaded_and_compiled_once() -> None:
    shelf = Shelf(stored("a", 1), stored("a", 2))
    book = TemplateBook(shelf)
    first = book.get("t", "a", 1)
    assert book.get("t", "a", 1) is first
    assert (first.version, book.get("t", "a").version, book.get("t", "a").version) == (1, 2, 2)
    assert shelf.loads == [("a", 1), ("a", 0)]
    assert book.get("t", "a", 2) is book.get("t", "a")
    assert len(shelf.loads) == 2


def test_the_newest_is_asked_for_anew_after_a_refresh() -> None:
    shelf = Shelf(stored("a", 1, "old"))
    book = TemplateBook(shelf)
    old = book.get("t", "a")
    shelf.templates.append(stored("a", 2, "new"))
    assert book.get("t", "a") is old
    book.refresh()
    assert book.get("t", "a").part(Channel.SMS).render({}).text == "new"
    assert book.get("t", "a", 1) is old


def test_a_unit_reads_through_its_own_view(store: SqliteStore) -> None:
    book = TemplateBook(from_store(store))

    def unit(tx: object) -> int:
        tx.templates.put([stored("a", 1)])  # type: ignore[attr-defined]
        return book.get("t", "a", load=from_tx(tx)).version  # type: ignore[arg-type]

    assert store.write(unit).result() == 1


def test_unknown_names_versions_and_parts() -> None:
    book = TemplateBook(Shelf(stored("a", 1)))
    with pytest.raises(InvalidInput, match="no template 'b'"):
        book.get("t", "b")
    with pytest.raises(InvalidInput, match="no version 9"):
        book.get("t", "a", 9)
    with pytest.raises(InvalidInput, match="no template 'a'"):
        book.get("other", "a")
    with pytest.raises(InvalidInput, match="no email part, only sms"):
        book.get("t", "a").part(Channel.EMAIL)


def test_the_book_is_bounded() -> None:
    shelf = Shelf(*(stored(f"a{n}", 1) for n in range(KEPT_MAX + 50)))
    book = TemplateBook(shelf)
    for n in range(KEPT_MAX + 50):
        book.get("t", f"a{n}", 1)
    assert len(book._kept) == KEPT_MAX
    book.get("t", f"a{KEPT_MAX + 49}", 1)
    book.get("t", "a0", 1)
    assert shelf.loads[-1] == ("a0", 1)


def test_the_automatic_variables_are_those_that_are_declared() -> None:
    names = variables(
        {},
        reminder="r",
        customer="c",
        channel=Channel.SMS,
        delivery_key="k",
        due_local="d",
        timezone="z",
        unsubscribe="https://u",
    )
    assert set(names) == set(AUTOMATIC)
