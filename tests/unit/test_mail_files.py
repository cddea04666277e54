"""Mail from files: found by looking, in order, and each within bounds."""

from __future__ import annotations

import io
import mailbox
from email.message import EmailMessage
from pathlib import Path

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.providers.mail_files import mails_in, mails_of
from sendonce.providers.mail_report import BYTES_MAX


def written(number: int) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = f"mail {number}"
    mail.set_content("From here on\n\nFrom there\n")
    return mail


def subjects(path: Path) -> list[bytes]:
    return [raw.splitlines()[0] for _, raw in mails_in(path)]


WANTED = [b"Subject: mail %d" % number for number in range(3)]


def test_one_mail_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.eml"
    path.write_bytes(written(0).as_bytes())
    assert list(mails_in(path)) == [("one.eml:1", written(0).as_bytes())]


def test_an_mbox_is_split_as_others_write_it(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "box")
    for number in range(3):
        box.add(written(number))
    box.close()
    assert subjects(tmp_path / "box") == WANTED
    (first, *_) = mails_of(io.BytesIO((tmp_path / "box").read_bytes()))
    assert b"\nFrom there\n" in first


def test_a_maildir_is_read_new_mail_first(tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "box")
    for number in range(3):
        box.add(written(number))
    (tmp_path / "box" / "tmp" / "half").write_bytes(b"Subject: half\n\n")
    assert sorted(subjects(tmp_path / "box")) == WANTED


def test_a_folder_holds_a_mail_a_file(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.eml").write_bytes(written(number).as_bytes())
    (tmp_path / ".hidden").write_bytes(b"x")
    assert subjects(tmp_path) == WANTED


def test_nothing_is_no_mail_and_what_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert list(mails_in(tmp_path / "empty")) == []
    with pytest.raises(InvalidInput, match="cannot be read"):
        list(mails_in(tmp_path / "nowhere"))


def test_no_mail_is_kept_beyond_its_bound() -> None:
    huge = b"Subject: huge\n\n" + b"x" * (2 * BYTES_MAX)
    (one,) = mails_of(io.BytesIO(huge))
    first, second = mails_of(io.BytesIO(b"From a\n" + huge + b"\n\nFrom b\nSubject: next\n\n"))
    assert len(one) == BYTES_MAX + 1
    assert BYTES_MAX < len(first) <= BYTES_MAX + 64 * 1024
    assert second == b"Subject: next\n\n"
