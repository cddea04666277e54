"""The compiled templates of a process: each version is loaded and compiled once.

Versions never change, so what is compiled stays true for good; until the store itself goes back to what it
was before some of them were made, after which `forget` is called. Which version is the newest does change; a
book remembers the answer until `refresh`, which whoever keeps a book for long calls at the start of each
round (an import, a pass).

What a template may read besides the reminder's own data is decided here, in `variables`, so that the
test rendering at intake and the real one at publication see the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.ports.store import Store, StoredTemplate, Tx
from sendonce.render import Template, TemplateSource, compile_template

Loader = Callable[[str, str, int], Sequence[StoredTemplate]]
"""(tenant, name, version) -> all channels of that version; version 0 is the newest, [] is none."""

KEPT_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """One version of a template: its channels, ready to render. `hashes` as the store has them."""

    name: str
    version: int
    parts: Mapping[Channel, Template]
    hashes: Mapping[Channel, str]

    def part(self, channel: Channel) -> Template:
        """The template of a channel. Raises `InvalidInput` where this version has none."""
        try:
            return self.parts[channel]
        except KeyError:
            raise InvalidInput(
                f"template {self.name!r} version {self.version} has no {channel} part, only "
                f"{', '.join(self.parts)}: add a version with one, or leave {channel} out",
                field="template",
                code="no_such_part",
            ) from None


class TemplateBook:
    """Compiled templates by tenant, name and version. Safe to share between threads.

    At most `KEPT_MAX` versions are kept; the one compiled longest ago goes first.
    """

    def __init__(self, load: Loader) -> None:
        self._default_load = load
        self._lock = Lock()
        self._newest: dict[tuple[str, str], CompiledTemplate] = {}
        self._kept: dict[tuple[str, str, int], CompiledTemplate] = {}

    def get(
        self, tenant: str, name: str, version: int = 0, *, load: Loader | None = None
    ) -> CompiledTemplate:
        """The template; version 0 is the newest. Raises `InvalidInput` (code "unknown_template").

        `load` stands in for the book's own loader: a unit of the store reads through its `Tx`.
        """
        found = self._kept.get((tenant, name, version)) if version else self._newest.get((tenant, name))
        return found or self._open(tenant, name, version, load or self._default_load)

    def has(self, tenant: str, name: str, version: int = 0) -> bool:
        """Whether `get` finds it here, without asking the store."""
        return (tenant, name, version) in self._kept if version else (tenant, name) in self._newest

    def refresh(self) -> None:
        """Forget which versions are the newest."""
        self._newest.clear()

    def forget(self) -> None:
        """Forget everything: the store may have other templates under the numbers that are known here."""
        with self._lock:
            self._newest.clear()
            self._kept.clear()

    def _open(self, tenant: str, name: str, version: int, load: Loader) -> CompiledTemplate:
        stored = load(tenant, name, version)
        if not stored:
            raise _unknown(name, version)
        key = (tenant, name, stored[0].version)
        compiled = self._kept.get(key) or compiled_of(stored)
        with self._lock:
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = compiled
            if version == 0:
                if len(self._newest) >= KEPT_MAX:
                    self._newest.clear()
                self._newest[tenant, name] = compiled
        return compiled


def from_store(store: Store) -> Loader:
    """Loads through a read of the store, outside any unit."""
    return lambda tenant, name, version: store.read(lambda tx: from_tx(tx)(tenant, name, version))


def from_tx(tx: Tx) -> Loader:
    """Loads inside a unit."""

    def load(tenant: str, name: str, version: int) -> list[StoredTemplate]:
        if not name.isprintable():
            return []  # no template can have such a name
        if version:
            return tx.templates.version(tenant, name, version)
        return tx.templates.newest(tenant, name)

    return load


def compiled_of(stored: Sequence[StoredTemplate]) -> CompiledTemplate:
    """Compile all channels of one stored version. Raises `InvalidInput` as `compile_template`."""
    return CompiledTemplate(
        stored[0].name,
        stored[0].version,
        {
            part.channel: compile_template(
                TemplateSource(part.channel.value, part.subject, part.text, part.html)
            )
            for part in stored
        },
        {part.channel: part.hash for part in stored},
    )


def variables(
    data: Mapping[str, object],
    *,
    reminder: str,
    customer: str,
    channel: Channel,
    delivery_key: str,
    due_local: str,
    timezone: str,
    unsubscribe: str = "",
) -> dict[str, object]:
    """All that a template can read: the reminder's data, and what every delivery has.

    `due_local` is ISO 8601 wall time, so `{{ due_local | date("%A") }}` works. `unsubscribe_url` is there
    where the category has one, so that no mail shows a link to nowhere.
    """
    return {
        **data,
        **({"unsubscribe_url": unsubscribe} if unsubscribe else {}),
        "reminder": reminder,
        "customer": customer,
        "channel": channel.value,
        "delivery_key": delivery_key,
        "due_local": due_local,
        "timezone": timezone,
    }


def _unknown(name: str, version: int) -> InvalidInput:
    if version:
        rule = f"template {name!r:.80} has no version {version}: see `sendonce template show NAME`"
    else:
        rule = f"there is no template {name!r:.80}: add it with `sendonce template add`, or correct the name"
    return InvalidInput(rule, field="template", code="unknown_template")
