"""What the README tells a newcomer to type, typed: against a real SMTP server and a Twilio-shaped API."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from sendonce.testing.sandbox import SandboxClient
from tests.e2e.command_line import BIN, ROOT, Folder, ended, environment, on_ports, wait_for

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## A first reminder of your own\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


def test_the_path_of_the_readme_is_walked_as_written(tmp_path: Path, sandbox: SandboxClient) -> None:
    """Every block, in order; only the ports differ, and `up` gets its Ctrl-C once both have arrived."""
    home, folder = tmp_path, tmp_path / "reminders"
    folder.mkdir()
    env = environment(home)
    shell = [text for language, text in BLOCKS if language == "sh"]
    python = [text for language, text in BLOCKS if language == "python"]
    install, init, check, templates, up, ask = shell
    assert "make setup" in install  # done, where tests run

    say(init, folder, env)
    config = folder / "sendonce.toml"
    config.write_text(on_ports(config.read_text(encoding="utf-8"), sandbox), encoding="utf-8")
    checked = say(check, folder, env)
    assert "ready" in checked
    assert checked.count("ACCEPTED") == 2
    imported = say(with_marker(templates), folder, env)
    assert "2 deliveries" in imported

    assert up.split() == ["sendonce", "up"]
    command = [str(BIN / "sendonce"), "up"]
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ended(process):
        wait_for(lambda: arrived(sandbox) == {"email": 1, "sms": 1})
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
        assert process.returncode == 0
        assert "stopping" in err

    story = say(ask, folder, env)
    assert story.count("ACCEPTED") >= 2
    assert "every chain is whole" in story
    (program,) = python
    (folder / "program.py").write_text(program, encoding="utf-8")
    subprocess.run([str(BIN / "python"), "program.py"], cwd=folder, env=env, check=True)
    again = say("sendonce import reminders.csv", folder, env)
    assert "unchanged" in again
    assert arrived(sandbox) == {"email": 1, "sms": 1}


def test_the_commented_configuration_works_once_its_marked_lines_are_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], sandbox: SandboxClient
) -> None:
    """SMTP and Twilio as `sendonce init` writes them, with a sandbox in place of the providers."""
    folder = Folder(tmp_path, monkeypatch, capfd)
    folder.run("init")
    folder.run("init", code=2)
    monkeypatch.setenv("SMTP_PASSWORD", "secret-of-mail")
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", "AC" + "0" * 32)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "secret-of-text")
    config = tmp_path / "sendonce.toml"
    text = config.read_text(encoding="utf-8")
    text = text.replace('host = "smtp.example.com"', 'host = "127.0.0.1"\nsecurity = "none"')
    text = text.replace("port = 587", f"port = {sandbox.smtp_port}")
    text = text.replace(
        'auth_token = "env:TWILIO_AUTH_TOKEN"',
        f'auth_token = "env:TWILIO_AUTH_TOKEN"\nbase_url = "{sandbox.http_url}"\nallow_plain_http = true',
    )
    text = re.sub(r"^(user|username|password) = .*\n", "", text, flags=re.MULTILINE)  # no login in clear
    text = re.sub(r"^quiet_hours = .*\n", "", text, flags=re.MULTILINE)  # the hour of day must not matter
    config.write_text(text, encoding="utf-8")
    folder.run("check")
    assert "ACCEPTED" in folder.run("send-test", "you@example.com").out
    assert "ACCEPTED" in folder.run("send-test", "+12025550123").out
    assert "not be written to" in folder.run("send-test", "somebody@example.com", code=5).err


def say(block: str, folder: Path, env: dict[str, str]) -> str:
    """Type a block of commands into a shell; each must succeed. Returns what it answered."""
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", block], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, (block, done.stdout, done.stderr)
    return done.stdout


def with_marker(block: str) -> str:
    """The templates with something in the text that the sandbox can count by."""
    return block.replace("arrives tomorrow.'", "arrives tomorrow. [ref:{{ delivery_key }}]'")


def arrived(sandbox: SandboxClient) -> dict[str, int]:
    """How many messages of the reminder reached people, by channel."""
    counts = {"email": 0, "sms": 0}
    for effect in sandbox.effects():
        counts[effect["channel"]] += effect["marker"].startswith("shipment-4821:")
    return counts
