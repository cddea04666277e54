"""Returned mail as a stage: marked after what it says is durable, counted, and read again after a fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.pipeline.returned_mail import AGAIN_S, PAGE, ReturnedMail, take
from sendonce.ports.returned_mail import Found, Reading
from sendonce.providers.imap import ImapMailbox
from tests.imap_server import Box, imap_server
from tests.unit.test_imap import settings_of


def read(raw: bytes) -> Reading:
    """A mail here is the word for what it is."""
    found = Found(raw.split(b" ")[0].decode())
    if found in (Found.REPORT, Found.UNREADABLE):
        kind = EventKind.BOUNCED_HARD if found is Found.REPORT else EventKind.UNKNOWN
        return Reading(found, (ProviderEvent(raw.decode(), kind, send_key="ab" * 16),))
    return Reading(found)


class Taken:
    """Takes in, after so many failures."""

    def __init__(self, box: Box | None = None, fails: int = 0) -> None:
        self.box, self.fails = box, fails
        self.pages: list[list[str]] = []

    def __call__(self, events: Sequence[ProviderEvent]) -> None:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("locked")
        if self.box is not None:
            assert self.box.flags() == [set()] * len(self.box.flags()), "marked before it is durable"
        self.pages.append([event.identity for event in events])


def test_what_mails_say_is_taken_in_and_all_of_them_are_counted() -> None:
    mails = [b"report 1", b"foreign", b"automatic", b"unreadable 1", b"report 2", b"oversized"]
    taken = Taken()
    done = take(mails, read, taken)
    assert taken.pages == [["report 1", "unreadable 1", "report 2"]]
    assert done.mails == 6
    assert done.found == {"report": 2, "foreign": 1, "automatic": 1, "unreadable": 1, "oversized": 1}
    assert done.events == {"bounced_hard": 2, "unknown": 1}


def test_many_are_taken_in_page_by_page() -> None:
    taken = Taken()
    take((b"report %d" % number for number in range(2 * PAGE + 1)), read, taken)
    assert [len(page) for page in taken.pages] == [PAGE, PAGE, 1]


def test_a_mail_is_marked_after_its_events_are_durable_and_never_before() -> None:
    with imap_server() as box:
        box.put(b"report 1", b"foreign", b"oversized")
        taken = Taken(box, fails=1)
        stage = ReturnedMail(ImapMailbox(settings_of(box)), read, taken, every_s=60.0)
        with pytest.raises(StoreUnavailable):
            stage.step()
        assert box.flags() == [set()] * 3
        assert stage.step() == 60.0
        assert all(box.flags()), "also what said nothing, or it would be read for ever"
        assert taken.pages == [["report 1"]]


def test_a_mail_whose_mark_was_lost_is_taken_in_again_with_the_same_identity() -> None:
    with imap_server() as box:
        box.put(b"report 1")
        taken = Taken(box)
        stage = ReturnedMail(ImapMailbox(settings_of(box)), read, taken, every_s=60.0)
        box.break_at = "STORE"
        assert stage.step() == 60.0
        box.break_at = ""
        stage.step()
        stage.step()
        assert taken.pages == [["report 1"], ["report 1"]]


def test_a_full_mailbox_is_read_on_at_once_and_one_that_is_away_after_a_while() -> None:
    with imap_server() as box:
        box.put(*(b"report %d" % number for number in range(PAGE + 1)))
        taken = Taken()
        stage = ReturnedMail(ImapMailbox(settings_of(box)), read, taken, every_s=5.0)
        assert [stage.step(), stage.step()] == [0.0, 5.0]
        assert sum(map(len, taken.pages)) == PAGE + 1
    assert stage.step() == AGAIN_S
