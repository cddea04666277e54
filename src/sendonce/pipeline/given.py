"""Reminders as programs give them, prepared in their order: here, and for long calls by a further process.

Preparation is pure, so who does it makes no difference to the answer; the store is written here. The hands of
a `runtime.crew` are started with the first long call and stay for the next ones. One call has them at a time,
and another prepares by itself meanwhile. So most of what a long call costs is not done by the interpreter
that also serves everybody else, and perhaps sends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final

from sendonce.asking import asked_of_mapping
from sendonce.core.errors import InvalidInput
from sendonce.core.policy import Policy
from sendonce.core.reminder import Asked
from sendonce.pipeline.packing import Error, PackedOutcome, Sources, loader_of, packed, sources_of, unpacked
from sendonce.preparation import Prepared, prepare
from sendonce.runtime.crew import Crew
from sendonce.template_book import TemplateBook

LONG: Final = 400
"""Reminders in a call from which on a hand takes its part: a smaller one is over before it would pay."""
CHUNK: Final = 100

Outcome = list[Prepared] | InvalidInput
"""The reminders of one that was given, for a plan one for each step, or what is wrong with it."""
_Line = tuple[int, object]
_Answer = tuple[int, object, Outcome]


@dataclass(frozen=True, slots=True)
class Speaking:
    """What is the same for all reminders of a call. `bound`: whoever asks may speak for this tenant only."""

    tenant: str
    now: int
    bound: bool


def asked_of(given: object, speaking: Speaking) -> Asked:
    """What is asked for, of whatever was given. Raises `InvalidInput`."""
    if isinstance(given, Asked):
        asked = given
    elif isinstance(given, Mapping):
        asked = asked_of_mapping(given, speaking.tenant)
    else:
        raise InvalidInput(
            f"it is {type(given).__name__} and must be an object with the fields of a reminder",
            field="reminder",
        )
    if speaking.bound and asked.tenant != speaking.tenant:
        raise InvalidInput(
            f"tenant {asked.tenant!r:.80}: the key is of tenant {speaking.tenant}, leave it out",
            field="tenant",
        )
    return asked


class Hands:
    """Further processes for the long calls of one program, started with the first of them.

    Safe to share between threads. `close` ends them.
    """

    def __init__(self, policy: Policy, secret: bytes, *, hands: int) -> None:
        self._policy = policy
        self._secret = secret
        self._hands = hands
        self._in_use = Lock()
        self._crew: Crew | None = None

    def outcomes(
        self, given: Sequence[object], speaking: Speaking, templates: TemplateBook
    ) -> Generator[_Answer, None, None]:
        """Each with its place, and what it comes to, in order."""
        lines = list(enumerate(given))

        def here(chunk: Sequence[_Line]) -> list[_Answer]:
            return list(prepared_here(chunk, speaking, self._policy, self._secret, templates))

        if not self._hands or len(given) < LONG or not self._in_use.acquire(blocking=False):
            yield from prepared_here(lines, speaking, self._policy, self._secret, templates)
            return
        whole = False
        chunks = [lines[at : at + CHUNK] for at in range(0, len(lines), CHUNK)]
        try:
            if self._crew is None:
                self._crew = Crew(preparing, (self._policy, self._secret), hands=self._hands)
            pack = partial(_pack, speaking, templates)
            for chunk in self._crew.each(chunks, here=here, pack=pack, unpack=_unpack):
                yield from chunk
            whole = True
        finally:
            if not whole:  # answers to what nobody wants any more would be taken for those of the next call
                self._end()
            self._in_use.release()

    def close(self) -> None:
        """End the hands; they are started anew where they are wanted. Idempotent."""
        with self._in_use:
            self._end()

    def _end(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None


def prepared_here(
    lines: Iterable[_Line], speaking: Speaking, policy: Policy, secret: bytes, templates: TemplateBook
) -> Generator[_Answer, None, None]:
    """Each with its place, and what it comes to: one by one, in this process."""
    for index, given in lines:
        outcome: Outcome
        try:
            asked = asked_of(given, speaking)
            outcome = prepare(asked, policy, templates, secret=secret, now=speaking.now)
        except InvalidInput as error:
            outcome = error
        yield index, given, outcome


# What a hand gets, and does

_Packed = tuple[Speaking, list[object], dict[tuple[str, int], Sources | Error]]


def _pack(speaking: Speaking, templates: TemplateBook, chunk: Sequence[_Line]) -> _Packed:
    """With the templates under the usual names: what names one in another way raises there, and is done
    here."""
    named: dict[tuple[str, int], Sources | Error] = {}
    for _, given in chunk:
        if isinstance(given, Mapping):
            name, version = given.get("template"), given.get("template_version") or 0
            if isinstance(name, str) and type(version) is int and (name, version) not in named:
                named[name, version] = sources_of(templates, speaking.tenant, name, version)
    return speaking, [given for _, given in chunk], named


def preparing(material: tuple[Policy, bytes]) -> Callable[[_Packed], list[PackedOutcome]]:
    """What a hand does with a chunk."""
    policy, secret = material
    sources: dict[tuple[str, int], Sources | Error] = {}
    templates = TemplateBook(loader_of(sources))

    def one(given: object, speaking: Speaking) -> list[Prepared]:
        asked = asked_of(given, speaking)
        return prepare(asked, policy, templates, secret=secret, now=speaking.now)

    def work(chunk: _Packed) -> list[PackedOutcome]:
        speaking, every, named = chunk
        sources.clear()
        sources.update(named)
        templates.refresh()
        return [packed(partial(one, given, speaking)) for given in every]

    return work


def _unpack(chunk: Sequence[_Line], outcomes: list[PackedOutcome]) -> list[_Answer]:
    return [
        (index, given, unpacked(outcome)) for (index, given), outcome in zip(chunk, outcomes, strict=True)
    ]
