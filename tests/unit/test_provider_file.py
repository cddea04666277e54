"""The adapters for development: a line in a file, a block on the terminal."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from sendonce.core.errors import ConfigError
from sendonce.core.outcome import Accepted, Failed, NoAnswer, NotStarted, Reason, Rejected, Unknown
from sendonce.ports.provider import EmailContent, Message, ProviderClass, SmsContent, TooLate
from sendonce.providers.console import ConsoleProvider, ConsoleSettings
from sendonce.providers.file import FileProvider, FileSettings

SMS = Message("r:c:sms", "ab" * 32, "+12025550123", SmsContent("due “é”\n", "+1202"), 17, valid_s=5)
EMAIL = Message("r:c:email", "cd" * 32, "a@example.com", EmailContent("s", "t", "<p>", "b@example.com"), 17)


async def nothing() -> None:
    pass


async def late() -> None:
    raise TooLate("slot_missed")


def test_each_message_is_one_line_and_nothing_is_de_duplicated(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    provider = FileProvider(FileSettings(path))
    outcomes = [asyncio.run(provider.send(each, start=nothing)) for each in (SMS, EMAIL, SMS)]
    lines = path.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["send_key"] for line in lines] == [SMS.send_key, EMAIL.send_key, SMS.send_key]
    assert lines[0] == lines[2]
    assert json.loads(lines[0])["content"] == {"text": "due “é”\n", "sender": "+1202"}
    ends = [sum(map(len, lines[:count])) for count in (1, 2, 3)]
    assert outcomes == [Accepted(str(end)) for end in ends]
    assert path.stat().st_mode & 0o077 == 0, "messages are nobody else's business"
    assert provider.promise.provider_class is ProviderClass.NEITHER
    assert asyncio.run(provider.look_up(SMS)) == NoAnswer("unsupported")


def test_the_file_provider_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    provider = FileProvider(FileSettings(path))
    assert asyncio.run(provider.send(SMS, start=late)) == NotStarted("slot_missed")
    odd = Message("r:c:sms", "ab" * 32, "+1", SmsContent("\ud800", "+1"), 17)
    assert asyncio.run(provider.send(odd, start=nothing)) == Rejected(Reason.BAD_CONTENT, "encoding")
    assert path.read_bytes() == b""

    missing = FileProvider(FileSettings(tmp_path / "no" / "such" / "folder"))
    assert asyncio.run(missing.send(SMS, start=nothing)) == Failed(
        Reason.UNAVAILABLE, "no_such_file_or_directory"
    )
    with pytest.raises(ConfigError, match="path"):
        asyncio.run(missing.check())
    assert str(path) in asyncio.run(provider.check())

    asyncio.run(provider.close())
    assert asyncio.run(provider.send(SMS, start=nothing)) == NotStarted("stopping")


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("function", "fault", "expected"),
    [
        ("write", full, Failed(Reason.UNAVAILABLE, "write")),
        ("write", lambda file, line: 5, Unknown("truncated", "short_write")),
        ("fsync", full, Unknown("truncated", "fsync")),
    ],
)
def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, fault: object, expected: object
) -> None:
    monkeypatch.setattr(os, function, fault)
    provider = FileProvider(FileSettings(tmp_path / "out.jsonl"))
    outcome = asyncio.run(provider.send(SMS, start=nothing))
    monkeypatch.undo()
    assert outcome == expected


def test_the_console_shows_a_message_and_no_terminal_commands(capsys: pytest.CaptureFixture[str]) -> None:
    provider = ConsoleProvider(ConsoleSettings())
    evil = Message("r:c:sms", "ef" * 32, "+1", SmsContent("a\x1b[2Jb\u202ec", "+1"), 17)
    for message in (SMS, EMAIL, evil):
        assert isinstance(asyncio.run(provider.send(message, start=nothing)), Accepted)
    assert asyncio.run(provider.send(SMS, start=late)) == NotStarted("slot_missed")
    shown = capsys.readouterr().out
    assert shown.count("--- r:c:") == 3
    assert "To: +12025550123\n\ndue “é”\n---\n" in shown
    assert "Subject: s\n\nt\n" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "a\\x1b[2Jb\\u202ec" in shown
    assert "standard output" in asyncio.run(provider.check())
    asyncio.run(provider.close())
    assert asyncio.run(provider.send(SMS, start=nothing)) == NotStarted("stopping")
