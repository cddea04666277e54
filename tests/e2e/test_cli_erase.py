"""`sendonce erase` as an operator uses it, and what a scheduler that stays does by itself."""

from __future__ import annotations

import apsw
import pytest

from tests.e2e.command_line import Folder, ended, environment, wait_for

ADDRESS = "zerlina.quux@example.com"
NAME = "Zerlina Quux"


@pytest.fixture
def folder(folder: Folder) -> Folder:
    folder.add_template()
    return folder


def schedule(folder: Folder, reminder: str, due: str, *, customer: str = "c-z") -> None:
    folder.run(
        "schedule", reminder, "--customer", customer, "--email", ADDRESS, "--due", due,
        "--template", "shipped", "--set", f"name={NAME}", "--set", "parcel=7",
    )  # fmt: skip


def traces(folder: Folder) -> list[str]:
    """Files of the store in which the person still is."""
    words = (ADDRESS.encode(), NAME.encode())
    files = [file for file in folder.path.glob("*.db*") if file.is_file()]
    assert files
    return [file.name for file in files if any(word in file.read_bytes() for word in words)]


def test_a_customer_is_erased_after_a_look_and_a_yes(folder: Folder) -> None:
    schedule(folder, "sent", "now")
    folder.run("drain")
    schedule(folder, "later", "in 2h")
    folder.run("suppress", "add", ADDRESS, "--kind", "opt_in", "--evidence", f"{NAME} called")
    schedule(folder, "shared", "in 2h", customer="c-2")
    assert traces(folder)
    refused = folder.json("erase", "c-z", "--reason", "asked", code=5)
    assert "--preview" in refused["error"]["message"]
    seen = folder.json("erase", "c-z", "--reason", "asked", "--preview")
    assert (seen["preview"], seen["deliveries"], seen["reminders"]) == (True, 2, 2)
    assert folder.states("later") == {"later:c-z:email": "SCHEDULED"}
    done = folder.json("erase", "c-z", "--reason", "asked by letter", "--yes")
    assert (done["reminders"], done["waiting"], done["overwritten"]) == (2, 0, True)
    assert (seen["others"], done["others"]) == (1, 1)
    assert traces(folder)  # of the other customer, who has the same address
    folder.run("erase", "c-2", "--reason", "asked", "--yes")
    assert traces(folder) == []
    assert folder.states("later") == {"later:c-z:email": "CANCELLED"}
    assert folder.states("sent") == {"sent:c-z:email": "ACCEPTED"}
    assert folder.json("verify")["ok"]
    records = folder.json("suppress", "list")["records"]
    assert {(each["kind"], each["masked"], each["evidence"]) for each in records} == {
        ("opt_in", "", ""),
        ("suppressed", "", ""),
    }
    assert "nothing of theirs was left" in folder.run("erase", "c-z", "--reason", "again", "--yes").out
    schedule(folder, "anew", "now", customer="c-3")
    folder.run("drain")
    assert folder.states("anew") == {"anew:c-3:email": "SUPPRESSED"}


def test_nobody_is_known_by_that_name(folder: Folder) -> None:
    assert folder.json("erase", "c-9", "--reason", "asked", "--yes", code=4)["error"]["code"] == "not_found"


def test_an_id_that_is_an_address_is_pointed_out(folder: Folder) -> None:
    schedule(folder, "a", "in 2h", customer="ann@example.com")
    assert "looks like an address" in folder.run("erase", "ann@example.com", "--reason", "x", "--preview").out


def test_a_scheduler_that_stays_removes_what_is_old_and_the_report_adds_up(folder: Folder) -> None:
    settings = folder.path / "sendonce.toml"
    text = '\n[audit]\nseal = false\n\n[retention]\ncontent = "30d"\ndeliveries = "90d"\n'
    settings.write_text(settings.read_text("utf-8") + text, "utf-8")
    schedule(folder, "old", "now")
    folder.run("drain")
    schedule(folder, "newest", "in 2h")
    raw = apsw.Connection(str(next(folder.path.glob("*.db"))))
    raw.execute("UPDATE delivery SET ended_at = ended_at - 91 * 86400 * 1000000 WHERE ended_at > 0")
    raw.execute("DELETE FROM meta WHERE name = 'retention_round'")
    day = str(
        raw.execute("SELECT date(due_at / 1000000, 'unixepoch') FROM delivery LIMIT 1").fetchall()[0][0]
    )

    def gone() -> bool:
        return raw.execute("SELECT count(*) FROM delivery").fetchall() == [(1,)]

    assert not gone()
    with ended(folder.process("scheduler", env=environment(folder.path))):
        wait_for(gone)
    raw.close()
    proof = folder.json("verify")
    assert (proof["ok"], proof["removed"]) == (True, 1)
    report = folder.json("report", "--day", day, "--zone", "Etc/UTC")
    assert (report["adds_up"], report["removed"], report["counts"]["ACCEPTED"]) == (True, 1, 1)
    schedule(folder, "old", "now")
    folder.run("drain")
    folder.run("status", "old", code=4)
