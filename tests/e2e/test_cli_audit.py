"""The seals from the command line: a key is made, entries are sealed, and what is tampered with is named."""

from __future__ import annotations

import re
import stat
from typing import Any

import apsw
import pytest

from sendonce.core import seal
from sendonce.testing.sandbox import SandboxClient
from tests.e2e.command_line import ROOT, Folder, ended, wait_for

PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
ROWS = """\
id,customer,due,template,email,name,parcel
s-1,c-1,now,shipped,ann@example.com,Ann,1
s-2,c-2,now,shipped,bob@example.com,Bob,2
"""
SIGNED = 'key = "file:audit.key"\ncheckpoint_file = "points"'


def ask(folder: Folder, command: str, *arguments: str, code: int = 0) -> Any:
    """The answer for programs, whose keys must be the documented ones."""
    answer = folder.json(*command.split(), *arguments, code=code)
    section = PAGE.split(f"\n## `sendonce {command}`\n")[1].split("\n## ")[0]
    named = re.search(r"^JSON: (.+?)(?:\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert named is not None
    assert set(answer) == set(re.findall("`(.+?)`", named[1]))
    return answer


def configured(folder: Folder, sandbox: SandboxClient, audit: str = SIGNED) -> Folder:
    """A configured folder with a key and two reminders."""
    folder.configure(sandbox)
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    folder.write("sendonce.toml", f"{text}\n[audit]\n{audit}\n")
    folder.run("audit", "key", "audit.key")
    folder.add_template()
    folder.write("list.csv", ROWS)
    folder.run("import", "list.csv")
    return folder


def tamper(folder: Folder, statement: str) -> None:
    (path,) = folder.path.glob("*.db")
    raw = apsw.Connection(str(path))
    raw.execute(statement)
    assert raw.total_changes()
    raw.close()


def test_entries_are_sealed_signed_exported_and_proven(folder: Folder, sandbox: SandboxClient) -> None:
    configured(folder, sandbox)
    assert stat.S_IMODE((folder.path / "audit.key").stat().st_mode) == 0o600
    assert ask(folder, "audit seal") == {"blocks": 1, "entries": 2, "signed": True, "waits": False}
    assert ask(folder, "audit seal")["blocks"] == 0
    (line,) = (folder.path / "points").read_text(encoding="utf-8").splitlines()
    assert seal.read_checkpoint(line)[1].number == 1
    proof = ask(folder, "verify")
    assert proof["ok"]
    seals = proof["seals"]
    assert (seals["blocks"], seals["unsigned"], seals["entries"], seals["checkpoints"]) == (1, 0, 2, 1)
    shown = folder.run("verify").out
    assert "1 block with 2 entries and 1 act of people, 1 signed, 1 checkpoint: every seal holds" in shown
    section = PAGE.split("\n## `sendonce verify`\n")[1].split("\n## ")[0]
    assert {f"`{name}`" for name in seals} <= set(re.findall("`[a-z_]+`", section))


def test_a_delivery_that_was_taken_away_ends_with_code_1_and_its_place(
    folder: Folder, sandbox: SandboxClient
) -> None:
    configured(folder, sandbox)
    folder.run("audit", "seal")
    for table, column in (("ledger", "delivery_id"), ("agenda", "delivery_id"), ("delivery", "id")):
        tamper(folder, f"DELETE FROM {table} WHERE {column} = 1")
    tamper(folder, "DELETE FROM reminder WHERE id = 1")
    proof = ask(folder, "verify", code=1)
    assert (proof["ok"], proof["faulty"], proof["seals"]["faulty"]) == (False, 0, 1)
    told = folder.run("verify", code=1).out
    assert "1 fault in the seals" in told
    assert "entries 1 of the ledger are gone" in told


def test_the_end_cut_off_is_found_with_checkpoints_that_were_kept_elsewhere(
    folder: Folder, sandbox: SandboxClient
) -> None:
    configured(folder, sandbox)
    folder.run("audit", "seal")
    kept = (folder.path / "points").rename(folder.path / "kept")
    tamper(folder, "DELETE FROM seal")
    assert ask(folder, "verify")["ok"]
    told = folder.run("verify", "--checkpoints", str(kept), code=1).out
    assert "line 1 of the checkpoints has it" in told
    assert "cannot be read" in folder.run("verify", "--checkpoints", "nowhere", code=2).err


def test_without_a_key_it_is_said_that_nobody_signs(folder: Folder, sandbox: SandboxClient) -> None:
    configured(folder, sandbox, "every = '1s'")
    assert ask(folder, "audit seal")["signed"] is False
    assert "a key under [audit] signs" in folder.run("verify").out


def test_who_has_the_public_key_alone_can_check(folder: Folder, sandbox: SandboxClient) -> None:
    configured(folder, sandbox)
    folder.run("audit", "seal")
    public = str(ask(folder, "audit key", "second.key")["public_key"])
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    folder.write("sendonce.toml", text.replace('key = "file:audit.key"', f'public_keys = ["{public}"]'))
    assert "signed it, which [audit] public_keys does not name" in folder.run("verify", code=1).out
    folder.write("sendonce.toml", text.replace('key = "file:audit.key"', ""))
    assert "signatures were not checked" in folder.run("verify").out


@pytest.mark.parametrize(
    ("audit", "what"),
    [
        ('key = "file:sandbox-token"', "[audit] key is no Ed25519 private key"),
        ('key = "file:none.key"', "cannot be read"),
        ('key = "here"', "must not stand in this file"),
        ('public_keys = ["x"]', "must be 32 bytes in base64"),
        ('every = "1ms"', "must be at least 1s"),
        ("checkpoint_command = 'cat'", "must be a list"),
        ("keys = 1", "did you mean key"),
    ],
)
def test_what_is_wrong_with_the_settings_is_told(
    folder: Folder, sandbox: SandboxClient, audit: str, what: str
) -> None:
    folder.configure(sandbox)
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    folder.write("sendonce.toml", f"{text}\n[audit]\n{audit}\n")
    assert what in folder.run("audit", "seal", code=2).err


def test_a_key_is_never_overwritten(folder: Folder, sandbox: SandboxClient) -> None:
    configured(folder, sandbox)
    before = (folder.path / "audit.key").read_bytes()
    assert "a key is never overwritten" in folder.run("audit", "key", "audit.key", code=2).err
    assert (folder.path / "audit.key").read_bytes() == before
    assert "cannot be written" in folder.run("audit", "key", "no/where", code=2).err


def test_a_process_that_schedules_seals_beside_its_work(folder: Folder, sandbox: SandboxClient) -> None:
    configured(folder, sandbox, f'{SIGNED}\nevery = "1s"\ncheckpoint_every = "1s"')
    with ended(folder.process("up")) as process:
        wait_for(lambda: (folder.path / "points").exists())
        wait_for(lambda: ask(folder, "verify")["seals"]["entries"] >= 8)
        process.terminate()
        assert process.wait(20) == 0
    proof = ask(folder, "verify")
    assert proof["ok"]
    assert proof["seals"]["unsigned"] == 0


def test_a_process_with_a_key_that_is_none_does_not_begin(folder: Folder, sandbox: SandboxClient) -> None:
    configured(folder, sandbox)
    assert "blocks are signed with key" in folder.run("check").out
    folder.write("audit.key", "none")
    assert "[audit] key is no Ed25519 private key" in folder.run("check", code=1).out
    assert "[audit] key is no Ed25519 private key" in folder.run("up", code=2).err
