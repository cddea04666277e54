"""Templates on their way into the store: added from files, listed, shown, tried out.

A version never changes: adding other content makes the next one, adding the same content makes none.
A reminder names a version, or takes the newest when it goes out; what it was sent with is frozen
with the delivery, so an old version can always be read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sendonce.core.delivery import Channel, Identity
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.reminder import AUTOMATIC, DEFAULT_TENANT
from sendonce.core.segments import Segments
from sendonce.core.segments import count as count_segments
from sendonce.ports.store import Row, Store, StoredTemplate, Tx
from sendonce.render import (
    Rendered,
    TemplateSource,
    check_template_name,
    compile_template,
    content_hash,
    load_template,
)
from sendonce.template_book import compiled_of, from_store, variables

PREVIEW_DUE: Final = "2026-12-01T09:00:00"
PREVIEW_UNSUBSCRIBE: Final = "https://example.com/unsubscribe/TOKEN"


@dataclass(frozen=True, slots=True)
class Added:
    """The version that now holds the content; `new` is False where it was there already."""

    name: str
    version: int
    new: bool
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """One channel of a template with data filled in; `segments` for a text message."""

    channel: Channel
    version: int
    rendered: Rendered
    segments: Segments | None


def add(store: Store, directory: Path, name: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> Added:
    """Add the files of a template as a version. Raises `InvalidInput` for what cannot be rendered."""
    return add_sources(store, name, load_template(directory, name), actor=actor, tenant=tenant)


def add_sources(
    store: Store,
    name: str,
    sources: Mapping[str, TemplateSource],
    *,
    actor: str,
    tenant: str = DEFAULT_TENANT,
) -> Added:
    """As `add`, from sources by channel."""
    check_template_name(name)
    for source in sources.values():
        compile_template(source)
    hashes = {Channel(channel): content_hash(_parts(source)) for channel, source in sources.items()}

    def unit(tx: Tx) -> Added:
        newest = tx.templates.newest(tenant, name)
        if newest and {part.channel: part.hash for part in newest} == hashes:
            return Added(name, newest[0].version, False, tuple(hashes))
        version = newest[0].version + 1 if newest else 1
        tx.templates.put(
            [
                StoredTemplate(
                    tenant,
                    name,
                    version,
                    channel,
                    sources[channel].subject,
                    sources[channel].text,
                    sources[channel].html,
                    hash_,
                    tx.now,
                )
                for channel, hash_ in hashes.items()
            ]
        )
        tx.runs.audit(actor, "template_add", f"{tenant}/{name}", "", {"version": version})
        return Added(name, version, True, tuple(hashes))

    return store.write(unit).result()


def list_templates(store: Store, *, tenant: str = DEFAULT_TENANT, page: int = 500) -> Iterator[Row]:
    """Every version, one row a channel: name, version, channel, hash, added_at."""
    name, version = "", 0
    # A version has at most one row for each channel, so a full page never cuts one that fits whole.
    while rows := store.read(partial(_list_page, tenant, name, version, page)):
        whole = rows if len(rows) < page else [row for row in rows if _key(row) != _key(rows[-1])]
        yield from whole
        name, version = str(whole[-1]["name"]), int(whole[-1]["version"])


def versions(
    tx: Tx, *, tenant: str, limit: int, after: tuple[str, int] = ("", 0)
) -> tuple[list[Row], tuple[str, int] | None]:
    """Up to `limit` whole versions behind a name and number, one row a channel; and where the next begin.

    None: there are no more.
    """
    name, version = after
    rows = _list_page(tenant, name, version, len(Channel) * limit + 1, tx)
    keys = list(dict.fromkeys(_key(row) for row in rows))[:limit]
    page = [row for row in rows if _key(row) in keys]
    if len(page) == len(rows):
        return page, None
    return page, (str(keys[-1][0]), int(keys[-1][1]))


def show(store: Store, name: str, version: int = 0, *, tenant: str = DEFAULT_TENANT) -> list[StoredTemplate]:
    """The parts of a version, 0 for the newest. Raises `NotFound`."""
    found = list(from_store(store)(tenant, name, version))
    if not found:
        which = f"version {version} of template" if version else "template"
        raise NotFound(f"no {which} {name!r:.80}: see `sendonce template list`")
    return found


def preview(
    store: Store,
    name: str,
    data: Mapping[str, object],
    *,
    version: int = 0,
    reminder: str = "preview",
    customer: str = "customer",
    due_local: str = PREVIEW_DUE,
    timezone: str = "UTC",
    tenant: str = DEFAULT_TENANT,
) -> list[Preview]:
    """Each channel as it would go out with this data. Raises `NotFound`, and `InvalidInput` as rendering."""
    for automatic in AUTOMATIC:
        if automatic in data:
            raise InvalidInput(
                f"variable {automatic!r} is filled in by sendonce: give yours another name", field=automatic
            )
    compiled = compiled_of(show(store, name, version, tenant=tenant))
    previews = []
    for channel, template in compiled.parts.items():
        rendered = template.render(
            variables(
                data,
                reminder=reminder,
                customer=customer,
                channel=channel,
                delivery_key=Identity(reminder, customer, channel).key,
                due_local=due_local,
                timezone=timezone,
                unsubscribe=PREVIEW_UNSUBSCRIBE if channel is Channel.EMAIL else "",
            )
        )
        segments = count_segments(rendered.text) if channel is Channel.SMS else None
        previews.append(Preview(channel, compiled.version, rendered, segments))
    return previews


def _parts(source: TemplateSource) -> dict[str, str]:
    return {"subject": source.subject, "text": source.text, "html": source.html}


def _key(row: Row) -> tuple[int | str, int | str]:
    return row["name"], row["version"]


def _list_page(tenant: str, name: str, version: int, limit: int, tx: Tx) -> list[Row]:
    return tx.rows("template_list", tenant=tenant, name=name, version=version, limit=limit)
