"""A mailbox read as a queue over real sockets: what waits, what is done with, and what cuts a session off."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from sendonce.ports.returned_mail import MailboxUnavailable
from sendonce.ports.secret import Secret
from sendonce.providers.imap import KEYWORD, ImapMailbox, ImapSecurity, ImapSettings
from sendonce.providers.mail_report import BYTES_MAX
from tests.imap_server import PASSWORD, PLAIN_PASSWORD, USER, Box, imap_server
from tests.unit.test_provider_smtp import self_signed

MAILS = [b"Subject: %d\r\n\r\nbody (\r\n" % number for number in range(5)]


def settings_of(box: Box) -> ImapSettings:
    return ImapSettings(
        "127.0.0.1", USER, Secret(box.password), ImapSecurity.NONE, port=box.port, timeout_s=5.0
    )


def take(mailbox: ImapMailbox, limit: int = 50) -> list[bytes]:
    """One whole session, with all that it read marked."""
    with mailbox.session() as session:
        found = list(session.waiting(limit))
        session.done([uid for uid, _ in found])
    return [raw for _, raw in found]


@pytest.mark.parametrize(
    "box",
    [
        Box(),
        Box(keywords=False),
        Box(capabilities=("IMAP4rev1",), password=PLAIN_PASSWORD),
    ],
)
def test_what_is_done_with_waits_no_more(box: Box) -> None:
    with imap_server(box):
        box.put(*MAILS)
        mailbox = ImapMailbox(settings_of(box))
        assert take(mailbox, 3) == MAILS[:3]
        assert take(mailbox) == MAILS[3:]
        assert take(mailbox) == []
        assert box.flags() == [{KEYWORD if box.keywords else "\\Seen"}] * 5
        assert not any("EXPUNGE" in command for command in box.commands)


@pytest.mark.parametrize("capabilities", [("IMAP4rev1", "MOVE"), ("IMAP4rev1", "UIDPLUS"), ("IMAP4rev1",)])
def test_what_is_done_with_is_moved_where_a_folder_is_named(capabilities: tuple[str, ...]) -> None:
    box = Box({"INBOX": [], "Old mail": []}, (*capabilities, "AUTH=PLAIN"))
    with imap_server(box):
        box.put(*MAILS)
        mailbox = ImapMailbox(replace(settings_of(box), done_folder="Old mail"))
        assert take(mailbox) == MAILS
        assert take(mailbox) == []
        assert [mail.raw for mail in box.folders["Old mail"]] == MAILS
        left = [] if capabilities != ("IMAP4rev1",) else [{"\\Deleted"}] * 5
        assert box.flags() == left


def test_reading_alone_marks_nothing() -> None:
    with imap_server() as box:
        box.put(*MAILS)
        mailbox = ImapMailbox(settings_of(box))
        for _ in range(2):
            with mailbox.session() as session:
                assert [raw for _, raw in session.waiting(50)] == MAILS
        assert box.flags() == [set()] * 5


def test_a_mail_that_a_person_opened_is_read_all_the_same() -> None:
    with imap_server() as box:
        box.put(*MAILS)
        box.folders["INBOX"][0].flags.add("\\Seen")
        box.folders["INBOX"][1].flags.add("\\Deleted")
        assert take(ImapMailbox(settings_of(box))) == [MAILS[0], *MAILS[2:]]


def test_a_huge_mail_is_fetched_in_part() -> None:
    with imap_server() as box:
        box.put(b"x" * (BYTES_MAX + 100_000))
        (raw,) = take(ImapMailbox(settings_of(box)))
        assert len(raw) == box.fetched == BYTES_MAX + 1


@pytest.mark.parametrize("command", ["AUTHENTICATE", "SELECT", "SEARCH", "FETCH", "STORE"])
def test_a_session_that_is_cut_off_leaves_its_mail_waiting(command: str) -> None:
    with imap_server() as box:
        box.put(*MAILS)
        mailbox = ImapMailbox(settings_of(box))
        box.break_at = command
        with pytest.raises(MailboxUnavailable):
            take(mailbox)
        box.break_at = ""
        assert take(mailbox) == MAILS


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with imap_server() as box:
        box.hang_at = "SEARCH"
        with pytest.raises(MailboxUnavailable, match="timeout"):
            take(ImapMailbox(replace(settings_of(box), timeout_s=0.2)))


def test_why_a_mailbox_cannot_be_read_is_told_in_a_word() -> None:
    with imap_server() as box:
        given = settings_of(box)
        cases = {
            "login": replace(given, password=Secret("wrong")),
            "folder": replace(given, folder="Elsewhere"),
            "tls": replace(given, security=ImapSecurity.STARTTLS),
            "connect": replace(given, port=1),
        }
        for why, settings in cases.items():
            with pytest.raises(MailboxUnavailable) as caught:
                ImapMailbox(settings).check()
            assert caught.value.why == why
        box.put(*MAILS)
        with pytest.raises(MailboxUnavailable, match="done_folder"):
            take(ImapMailbox(replace(given, done_folder="Elsewhere")))
        assert box.flags() == [set()] * 5
        assert ImapMailbox(given).check() == f"5 mails wait in INBOX; what is done with is marked {KEYWORD}"
    with pytest.raises(MailboxUnavailable, match="connect"):
        ImapMailbox(given).check()


def test_the_server_must_be_who_it_says(tmp_path: Path) -> None:
    pem = self_signed(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    with imap_server(tls=tls) as box:
        box.put(*MAILS)
        secure = replace(settings_of(box), security=ImapSecurity.TLS)
        assert take(ImapMailbox(replace(secure, ca_file=pem))) == MAILS
        with pytest.raises(MailboxUnavailable, match="certificate"):
            take(ImapMailbox(secure))


def test_a_password_is_never_shown() -> None:
    with imap_server() as box:
        assert PASSWORD not in repr(settings_of(box))
        with pytest.raises(MailboxUnavailable) as caught:
            ImapMailbox(replace(settings_of(box), password=Secret("hunter2"))).check()
        assert "hunter2" not in repr(caught.value) + str(caught.value.__context__)
