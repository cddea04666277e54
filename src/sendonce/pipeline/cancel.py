"""Cancelling: what a caller names is taken back, and the answer is true for each delivery.

A selection names a reminder, a delivery, a group, a customer or an import; a plan's reminders are
one group, so that "stop when paid" is one call. `preview` answers the same and changes nothing.

The work is done in pages, each a unit of its own, so a large group holds up nobody. Stopped halfway
and asked again, it goes on, and what was taken back before is answered as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from sendonce.core.delivery import parse_key
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Event
from sendonce.core.policy import Policy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.moves import facts_of
from sendonce.ports.store import Delivery, Store, Tx
from sendonce.withdrawal import Answer, check_reason, judge, withdraw

PAGE: Final = 50
"""Deliveries in one unit: about 5 ms of the write lock."""

ANSWERS_MAX: Final = 1_000


class By(StrEnum):
    """What a selection names."""

    REMINDER = "reminder"
    DELIVERY = "delivery"
    GROUP = "group"
    CUSTOMER = "customer"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Selection:
    """Deliveries of one tenant by a name; for an import its number. An import means what it created."""

    by: By
    name: str
    tenant: str = DEFAULT_TENANT

    def __str__(self) -> str:
        return f"{self.by} {self.name}"


@dataclass(slots=True)
class Cancellation:
    """What became of a selection.

    counts   by word; `changed` of them by this request, the others had been answered before
    answers  the first `ANSWERS_MAX`; `more` came after them
    """

    selection: Selection
    preview: bool
    counts: Counter[str] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)
    more: int = 0
    changed: int = 0

    @property
    def found(self) -> int:
        return self.counts.total()

    def add(self, answer: Answer) -> None:
        self.counts[answer.word.value] += 1
        self.changed += answer.changed
        if len(self.answers) < ANSWERS_MAX:
            self.answers.append(answer)
        else:
            self.more += 1


def selected(names: Mapping[By, str], tenant: str) -> Selection:
    """The one selection that is named. Raises `InvalidInput` where none or several are."""
    given = [(by, name) for by, name in names.items() if name]
    if len(given) != 1:
        raise InvalidInput(
            f"{len(given) or 'nothing'} named: name exactly one of {', '.join(names)}", field="selection"
        )
    return Selection(*given[0], tenant=tenant)


def find(tx: Tx, selection: Selection, *, limit: int = PAGE, after: int = 0) -> list[Delivery]:
    """A page of the selected deliveries, in order of id, above id `after`.

    Raises `InvalidInput` for a name that cannot be one.
    """
    tenant, name = selection.tenant, selection.name
    match selection.by:
        case By.DELIVERY:
            parse_key(name)
            return [row for row in tx.deliveries.by_keys([(tenant, name)]) if row.id > after]
        case By.IMPORT:
            value: Mapping[str, int | str] = {"import_id": _import_id(tx, selection)}
        case By.REMINDER | By.CUSTOMER | By.GROUP:
            value = {"tenant": tenant, selection.by.value: name}
    return tx.deliveries.matching(selection.by.value, value, limit, after)


def cancel(
    store: Store,
    selection: Selection,
    *,
    policy: Policy,
    reason: str,
    actor: str,
    preview: bool = False,
    progress: Callable[[Cancellation], None] = lambda cancellation: None,
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> Cancellation:
    """Take back everything selected; answered when it is durable.

    `progress` is called after each page. Raises `NotFound` where nothing is selected, `InvalidInput`
    for an empty reason, and `StoreUnavailable`: what was answered until then is done.
    """
    reason = check_reason(reason)
    done = Cancellation(selection, preview)
    after = 0
    while True:
        if preview:
            page = store.read(partial(_preview_page, selection, policy, after))
        else:
            page = store.write(partial(_cancel_page, selection, policy, reason, actor, after)).result()
        if not page:
            break
        after = page[-1].delivery_id
        for answer in page:
            done.add(answer)
            on_answer(answer)
        progress(done)
    if not done.found:
        raise NotFound(f"no delivery of {selection} in tenant {selection.tenant}: check the name")
    if done.changed and not preview:
        _note(store, selection, reason, actor, done)
    return done


def _preview_page(selection: Selection, policy: Policy, after: int, tx: Tx) -> list[Answer]:
    return [
        judge(row, Event.CANCELLED, facts_of(row, policy, now=tx.now, steady=tx.steady))[0]
        for row in find(tx, selection, after=after)
    ]


def _cancel_page(
    selection: Selection, policy: Policy, reason: str, actor: str, after: int, tx: Tx
) -> list[Answer]:
    page = find(tx, selection, after=after)
    return withdraw(tx, page, Event.CANCELLED, policy=policy, actor=actor, reasons=reason)


def _note(store: Store, selection: Selection, reason: str, actor: str, done: Cancellation) -> None:
    counts = dict(done.counts)
    store.write(
        lambda tx: tx.runs.audit(actor, "cancel", f"{selection.tenant}/{selection}", reason, counts)
    ).result()


def _import_id(tx: Tx, selection: Selection) -> int:
    name = selection.name
    if not (name.isascii() and name.isdigit()):
        raise InvalidInput(f"import {name!r:.80} is no number: see `sendonce import --list`", field="import")
    runs = tx.rows("import_get", id=int(name))
    if not runs or runs[0]["tenant"] != selection.tenant:
        raise NotFound(f"no import {name} in tenant {selection.tenant}")
    return int(name)
