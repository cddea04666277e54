"""Returned mail: reports of mail servers and complaints, taken from a mailbox or from files, become events.

    mailbox -> read one mail -> its events are taken in, durable -> the mail is marked

It decides nothing: `read` knows what a mail says and whose it is, `take_in` what follows. A mail is marked
only after its events are durable, and a mail that says nothing is marked too, or it would be read for ever;
what it was is counted and told. Two processes at one mailbox harm nobody: an event has one identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sendonce import telemetry
from sendonce.core.provider_event import ProviderEvent
from sendonce.ports.returned_mail import Found, Mailbox, MailboxUnavailable, Reading
from sendonce.telemetry import tell

PAGE: Final = 50
"""Mails in one session, and events in one unit of the store at least."""

AGAIN_S: Final = 10.0
"""How soon a mailbox that cannot be read is asked again, at the soonest."""

Read = Callable[[bytes], Reading]
TakeIn = Callable[[Sequence[ProviderEvent]], object]
"""Returns when the events are durable; raises where they are not."""


@dataclass(slots=True)
class Returned:
    """What was read. `found` counts mails by what they were, `events` what they said."""

    found: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def mails(self) -> int:
        return self.found.total()


def take(mails: Iterable[bytes], read: Read, take_in: TakeIn) -> Returned:
    """Read mails and take in what they say, in pages; all of it durable on return."""
    done = Returned()
    page: list[ProviderEvent] = []
    for raw in mails:
        reading = read(raw)
        done.found[reading.found.value] += 1
        done.events.update(event.kind.value for event in reading.events)
        page += reading.events
        if len(page) >= PAGE:
            take_in(page)
            page = []
    if page:
        take_in(page)
    return done


class ReturnedMail:
    """Looks into one mailbox, again and again. It blocks: step it on a thread."""

    def __init__(self, mailbox: Mailbox, read: Read, take_in: TakeIn, *, every_s: float) -> None:
        self._mailbox = mailbox
        self._read = read
        self._take_in = take_in
        self._every_s = every_s

    def step(self) -> float:
        """One session; how many seconds until the next. Raises as `take_in`: then nothing is marked."""
        try:
            return self._session()
        except MailboxUnavailable as error:
            tell(telemetry.MAILBOX_UNAVAILABLE, why=error.why)
            return max(self._every_s, AGAIN_S)

    def _session(self) -> float:
        uids: list[int] = []

        def mails() -> Iterable[bytes]:
            for uid, raw in session.waiting(PAGE):
                uids.append(uid)
                yield raw

        with self._mailbox.session() as session:
            done = take(mails(), self._read, self._take_in)
            session.done(uids)
        if done.mails:
            _tell(done)
        return 0.0 if len(uids) == PAGE else self._every_s


def _tell(done: Returned) -> None:
    found = done.found
    tell(
        telemetry.MAIL_RETURNED,
        mails=done.mails,
        events=done.events.total(),
        unreadable=found[Found.UNREADABLE.value],
        automatic=found[Found.AUTOMATIC.value],
        foreign=found[Found.FOREIGN.value],
        oversized=found[Found.OVERSIZED.value],
    )
