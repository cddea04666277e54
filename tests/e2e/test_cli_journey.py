"""From a file to the last question about it, command by command, with providers that misbehave on the way.

Each answer for programs has exactly the keys that `docs/cli.md` names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.pipeline import importer
from sendonce.ports.store import Process, Tx
from sendonce.runtime.clock import SystemClock
from sendonce.store.sqlite import SqliteStore, open_store
from sendonce.testing.sandbox import SandboxClient
from tests.e2e.command_line import ROOT, Folder

PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")

ROWS = """\
id,customer,due,template,email,phone,name,parcel
s-1,c-1,now,shipped,ann@example.com,+12025550101,Ann,1
s-2,c-2,now,shipped,,+12025550199,Bob,2
s-3,c-3,in 2h,shipped,eve@example.com,,Eve,3
s-4,c-4,2027-02-30T09:00,shipped,zoe@example.com,,Zoe,4
s-5,c-5,now,shipped,max@example.com,,Max,5
s-5,c-5,now,shipped,max@example.com,,Max,6
"""


def documented(command: str) -> set[str]:
    section = PAGE.split(f"\n## `sendonce {command}`\n")[1].split("\n## ")[0]
    named = re.search(r"^JSON: (.+?)(?:\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert named is not None, command
    return set(re.findall("`(.+?)`", named[1]))


def delivery_keys() -> set[str]:
    return set(re.findall("`(.+?)`", PAGE.split("Several answers hold deliveries")[1].split("\n\n")[0]))


def ask(
    folder: Folder, command: str, *arguments: str, code: int = 0, besides: frozenset[str] = frozenset()
) -> Any:
    """The answer for programs, whose keys must be the documented ones."""
    answer = folder.json(*command.split(), *arguments, code=code)
    assert set(answer) == documented(command) | besides
    return answer


def test_a_file_goes_in_is_sent_and_can_be_asked_about(folder: Folder, sandbox: SandboxClient) -> None:
    key = "s-1:c-1:email"
    assert all(finding["verdict"] != "bad" for finding in ask(folder, "check")["findings"])
    folder.write("templates/shipped.subject.txt", "Parcel {{ parcel }}")
    folder.write("templates/shipped.txt", "{{ name }}: {{ parcel }} [ref:{{ delivery_key }}]")
    folder.write("templates/shipped.sms.txt", "{{ name }}: {{ parcel }} [ref:{{ delivery_key }}]")
    assert ask(folder, "template add", "shipped")["new"] is True
    assert ask(folder, "template add", "shipped")["new"] is False
    assert len(ask(folder, "template list")["templates"]) == 2
    assert len(ask(folder, "template show", "shipped")["parts"]) == 2
    previews = ask(folder, "template preview", "shipped", "--set", "name=Ann", "--set", "parcel=7")[
        "previews"
    ]
    assert previews[1]["segments"]["parts"] == 1
    assert "variable" in folder.run("template", "preview", "shipped", code=2).err

    folder.write("list.csv", ROWS)
    rehearsed = ask(folder, "import", "list.csv", "--dry-run", code=1)
    done = ask(folder, "import", "list.csv", "--report", "problems.jsonl", code=1)
    counted = ("rows", "accepted", "invalid", "conflicting", "deliveries", "problems")
    assert [done[name] for name in counted] == [rehearsed[name] for name in counted]
    assert (done["rows"], done["accepted"], done["invalid"], done["conflicting"]) == (6, 4, 1, 1)
    assert {problem["row"] for problem in done["problems"]} == {5, 7}
    lines = (folder.path / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == done["problems"]
    assert ask(folder, "import", "list.csv", code=1)["unchanged"] == 4
    assert [each["id"] for each in folder.json("import", "--list")["imports"]] == [2, 1]

    sandbox.change(sms={"recipients": [{"pattern": "99$", "refusal": "invalid"}], "lost_after": {"next": 1}})
    assert ask(folder, "pass", "--trigger", "cron")["published"] == 4
    drained = ask(folder, "drain", "--max-time", "20s")
    assert drained["left"] == 0
    states = [folder.states(reminder) for reminder in ("s-1", "s-2", "s-3", "s-5")]
    assert states == [
        {key: "ACCEPTED", "s-1:c-1:sms": "UNCERTAIN"},
        {"s-2:c-2:sms": "REJECTED"},
        {"s-3:c-3:email": "SCHEDULED"},
        {"s-5:c-5:email": "ACCEPTED"},
    ]

    (story,) = ask(folder, "status", key)["deliveries"]
    assert story["address"] == "a***@example.com"
    assert "ann@example.com" not in folder.run("status", key).out
    ledger = ask(folder, "ledger", key, besides=frozenset(delivery_keys()) - {"entries"})
    assert [entry["event"] for entry in ledger["entries"]][:2] == ["scheduled", "published"]
    (found,) = ask(folder, "find", story["receipt"])["found"]
    assert (found["key"], found["by"]) == (key, ["receipt"])
    assert ask(folder, "find", "nobody", code=4)["found"] == []
    overview = ask(folder, "overview")
    assert [channel["uncertain"] for channel in overview["channels"]] == [0, 1]
    report = ask(folder, "report", "--day", story["due_at"][:10], "--zone", "UTC")
    assert report["adds_up"]
    assert report["due"] == sum(report["counts"].values())
    assert ask(folder, "verify")["ok"]
    assert ask(folder, "db info")["deliveries"] == 5
    assert ask(folder, "db care") == {"tables": [], "findings": []}
    for command in (["overview"], ["ledger", key], ["verify"], ["report", "--day", story["due_at"][:10]]):
        assert folder.run(*command).out


def test_an_operator_mends_what_went_wrong(folder: Folder, sandbox: SandboxClient) -> None:
    folder.add_template()
    folder.write("list.csv", "\n".join(ROWS.splitlines()[:3]))
    sandbox.change(sms={"recipients": [{"pattern": "99$", "refusal": "blocked"}], "lost_after": {"next": 1}})
    folder.run("import", "list.csv")
    folder.run("drain", "--max-time", "20s")

    (doubt,) = ask(folder, "uncertain")["uncertain"]
    assert doubt["key"] == "s-1:c-1:sms"
    assert "twice" in folder.run("resolve", doubt["key"], "--as", "resend", "--reason", "asked", code=5).err
    assert "nothing is chosen" in folder.run("resolve", "--as", "sent", "--reason", "x", code=2).err
    by_cause = ("--cause", "unknown", "--as", "resend", "--reason", "asked")
    planned = ask(folder, "resolve", *by_cause, "--preview")
    assert (planned["resolved"], planned["refused"], planned["answers"]) == (1, [], [])
    said = folder.run("resolve", *by_cause, "--preview").out
    assert "1 delivery would be decided: resend" in said
    assert ask(folder, "uncertain", "--cause", "unknown")["uncertain"] == [doubt]
    answers = ask(
        folder, "resolve", doubt["key"], "--as", "sent", "--receipt", "SM1", "--reason", "seen in the console"
    )["answers"]
    assert [answer["state"] for answer in answers] == ["ACCEPTED"]
    ask(folder, "resolve", doubt["key"], "--as", "not-sent", "--reason", "x", code=5)
    ask(folder, "resolve", "no:such:sms", "--as", "sent", "--reason", "x", code=4)

    listed = ask(folder, "dead list")
    assert [group["count"] for group in listed["groups"]] == [1]
    dead = listed["deliveries"][0]["key"]
    shown = ask(folder, "dead show", dead, besides=frozenset(delivery_keys()))
    assert len(shown["attempts_made"]) == 1
    assert "nothing is chosen" in folder.run("redrive", "--reason", "x", code=2).err
    assert ask(folder, "redrive", dead, "--reason", "mended", "--preview")["redriven"] == 1
    sandbox.change(sms={"recipients": None})
    assert ask(folder, "redrive", "--all", "--reason", "mended")["redriven"] == 1
    folder.run("drain", "--max-time", "20s")
    assert folder.states("s-2") == {dead: "ACCEPTED"}
    assert sandbox.report()["channels"]["sms"]["duplicates"] == 0

    again = ask(folder, "again", dead, "--reason", "the customer lost it")
    assert again["key"] == "s-2/again-1:c-2:sms"
    assert ask(folder, "again", dead, "--reason", "pressed twice")["verdict"] == "unchanged"
    assert (
        ask(folder, "cancel", "--delivery", again["key"], "--reason", "found it", "--preview")["changed"] == 1
    )
    assert ask(folder, "cancel", "--delivery", again["key"], "--reason", "found it")["counts"] == {
        "cancelled": 1
    }
    assert ask(folder, "cancel", "--reminder", "s-2", "--reason", "too late", code=1)["counts"] == {
        "already_sent": 1
    }
    assert ask(folder, "verify")["ok"]


def test_what_waits_for_an_account_is_given_to_another_by_hand(
    folder: Folder, sandbox: SandboxClient
) -> None:
    path = folder.path / "sendonce.toml"
    text = path.read_text(encoding="utf-8")
    mail = text.partition("[account.mail]\n")[2].partition("[account.text]")[0]
    shared = text.replace('account = "mail"', "accounts = { mail = 999, spare = 1 }")
    path.write_text(f"{shared}\n[account.spare]\n{mail}", encoding="utf-8")
    folder.add_template()
    given = ["--due", "now", "--template", "shipped", "--set", "name=Ann", "--set", "parcel=1"]
    for name in ("m-1", "m-2"):
        address = ["--customer", name, "--email", f"{name}@example.com", "--group", "autumn"]
        ask(folder, "schedule", name, *given, *address)
    folder.run("pass")
    way = ["--from", "mail", "--to", "spare", "--reason", "the relay is slow"]
    assert ask(folder, "accounts move", *way, "--preview")["moved"] == 2
    assert ask(folder, "accounts move", *way, "--group", "winter") == {
        "from": "mail",
        "to": "spare",
        "preview": False,
        "moved": 0,
        "left": {"filter": 2},
    }
    assert "2 deliveries moved from mail to spare" in folder.run("accounts", "move", *way).out
    ready = {each["name"]: each["ready"] for each in ask(folder, "accounts list")["accounts"]}
    assert (ready["mail"], ready["spare"]) == (0, 2)
    folder.run("drain", "--max-time", "10s")
    assert {state for name in ("m-1", "m-2") for state in folder.states(name).values()} == {"ACCEPTED"}
    story = folder.run("status", "m-1").out
    assert "spare" in story
    folder.run("accounts", "move", "--from", "mail", "--to", "text", "--reason", "x", code=2)


def test_what_is_paused_waits_and_limits_change_while_running(folder: Folder) -> None:
    folder.add_template()
    given = [
        "--due",
        "now",
        "--template",
        "shipped",
        "--set",
        "name=Ann",
        "--set",
        "parcel=1",
        "--customer",
        "c-1",
    ]
    addresses = ["--email", "ann@example.com", "--phone", "+12025550101"]
    ask(folder, "pause", "channel", "sms", "--reason", "a gateway moves", "--until", "in 1h")
    ask(folder, "accounts pause", "mail", "--reason", "a relay moves")
    assert ask(folder, "schedule", "p-1", *given, *addresses)["results"][0]["verdict"] == "accepted"
    ask(folder, "schedule", "p-1", *given, "--email", "eve@example.com", code=1)
    folder.run("pass")
    assert ask(folder, "drain", "--max-time", "10s")["left"] == 0
    assert set(folder.states("p-1").values()) == {"QUEUED", "SCHEDULED"}
    assert "paused" in folder.run("overview").out

    assert ask(folder, "resume", "channel", "sms", "--reason", "moved")["was_paused"] is True
    ask(folder, "accounts resume", "mail", "--reason", "moved")
    folder.run("drain", "--max-time", "10s")
    assert set(folder.states("p-1").values()) == {"ACCEPTED"}

    assert ask(folder, "accounts limits", "text")["before"] is None
    folder.run("accounts", "limits", "text", "--lanes", "2", code=2)  # no reason given
    changed = ask(
        folder, "accounts limits", "text", "--limit", "5 parts/s", "--lanes", "2", "--reason", "asked"
    )
    assert (changed["before"]["lanes"], changed["limits"]["lanes"]) == (4, 2)
    text = next(each for each in ask(folder, "accounts list")["accounts"] if each["name"] == "text")
    assert text["gate"]["changed"] is True
    ask(folder, "pause", "scheduler", "--reason", "a migration")
    assert folder.json("pass") == {"run": None, "paused": True, "held": False, "taken_in": 0, "parked": 0}


def test_what_a_person_said_holds_at_once(folder: Folder) -> None:
    folder.add_template()
    given = ["--due", "in 1h", "--template", "shipped", "--set", "name=Eve", "--set", "parcel=1"]
    folder.run("schedule", "e-1", *given, "--email", "eve@example.com", "--customer", "c-1")
    told = ask(folder, "suppress add", "Eve@Example.com", "--kind", "opt_out", "--evidence", "ticket 7")
    assert told["deliveries"] == {"suppressed": 1}
    assert folder.states("e-1") == {"e-1:c-1:email": "SUPPRESSED"}
    folder.write("out.csv", "email,kind,evidence\nann@example.com,opt_out,form\nnobody,opt_out,form\n")
    done = ask(folder, "suppress import", "out.csv", code=1)
    assert (done["new"], done["invalid"]) == (1, 1)
    assert len(ask(folder, "suppress list")["records"]) == 2
    (record,) = ask(folder, "suppress list", "eve@example.com")["records"]
    assert record["masked"].lower() == "e***@example.com"
    asked = ["eve@example.com", "--kind", "opt_out", "--reason", "wrong person"]
    assert ask(folder, "suppress remove", *asked)["removed"] == 1
    folder.run("suppress", "remove", *asked, code=4)


def test_an_import_is_taken_back(folder: Folder) -> None:
    folder.add_template()
    head = ROWS.splitlines()[0]
    rows = [f"u-{number},c-{number},in 1h,shipped,u{number}@example.com,,Ann,1" for number in range(3)]
    folder.write("list.csv", "\n".join([head, *rows]))
    assert ask(folder, "import", "list.csv", "--source", "crm")["accepted"] == 3
    folder.write("list.csv", "\n".join([head, *rows[:2]]))
    kept = ask(folder, "import", "list.csv", "--source", "crm", "--cancel-missing", code=1)
    assert "not listed" in kept["missing_refused"]
    said = folder.run("import", "list.csv", "--source", "crm", "--cancel-missing", code=1).out
    assert said.count("nothing was cancelled (see --max-missing)") == said.count("nothing was cancelled") == 1
    gone = ask(folder, "import", "list.csv", "--source", "crm", "--cancel-missing", "--max-missing", "0.5")
    assert gone["missing"] == {"cancelled": 1}
    done = ask(folder, "undo", "1", "--reason", "the wrong file")
    assert done["deliveries"] == {"cancelled": 3}
    assert set(folder.states("u-0").values()) == {"CANCELLED"}
    folder.run("undo", "99", "--reason", "x", code=4)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["overvew"], 2, "Did you mean 'overview'"),
        (["status"], 2, "Missing argument 'KEY'; see sendonce status --help"),
        (["status", "nothing"], 4, "nothing is known of 'nothing'"),
        (["status", "nothing", "--config", "none.toml"], 2, "run `sendonce init`"),
        (["import", "none.csv"], 2, "'none.csv' cannot be read"),
        (["import", "list.csv", "--set", "nmae=x"], 2, "is no column"),
        (["import", "list.csv", "--set", "name"], 2, "must be NAME=VALUE"),
        (["import", "list.csv", "--cancel-missing"], 2, "source"),
        (["cancel", "--reason", "x"], 2, "name exactly one"),
        (["cancel", "--reason", "", "--reminder", "r"], 2, "reason"),
        (["cancel", "--reason", "x", "--reminder", "r"], 4, "no delivery"),
        (["report", "--day", "yesterday"], 2, "is no day"),
        (["pause", "everything", "--reason", "x"], 2, "scheduler, channel, group, account"),
        (["pause", "channel", "--reason", "x"], 2, "needs a name"),
        (["accounts", "limits", "nobody"], 4, "mail, text"),
        (["accounts", "limits", "mail", "--limit", "fast", "--reason", "x"], 2, "is no rate"),
        (["resolve", "a:b:sms", "--as", "maybe", "--reason", "x"], 2, "must be one of sent"),
        (["template", "add", "none"], 2, "templates"),
        (["template", "show", "none"], 4, "none"),
        (["send-test", "somebody@example.org"], 5, "may not be written to"),
        (["send-test", "somebody@example.com", "--account", "text"], 2, "carries sms"),
        (["drain", "--stop-after", "soon"], 2, "soon"),
        (["schedule", "r", "--data", "[1]"], 2, "JSON object"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_code(
    folder: Folder, arguments: list[str], code: int, said: str
) -> None:
    folder.write("list.csv", ROWS)
    ran = folder.run(*arguments, code=code)
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert len(ran.err.strip().splitlines()) == 1
    assert said in ran.err
    answer = folder.json(*arguments, code=code)
    assert (answer["exit"], set(answer["error"]) >= {"code", "message"}) == (code, True)


def test_a_test_touches_nothing_but_its_own_message(folder: Folder, sandbox: SandboxClient) -> None:
    """Beside it lie one that is queued and one that is due: both stay as they are."""
    folder.add_template()
    head = ROWS.splitlines()[0]
    folder.write("queued.csv", head + "\nqueued,c-1,now,shipped,ann@example.com,,Ann,1\n")
    folder.write("due.csv", head + "\ndue,c-2,now,shipped,eve@example.com,,Eve,2\n")
    folder.run("import", "queued.csv")
    folder.run("pass")
    folder.run("import", "due.csv")
    others = ("queued:c-1:email", "due:c-2:email")
    before = [folder.json("ledger", key) for key in others]
    answer = ask(folder, "send-test", "you@example.com")
    assert (answer["state"], answer["attempts"]) == ("ACCEPTED", 1)
    assert [folder.json("ledger", key) for key in others] == before
    assert sandbox.report()["channels"]["email"]["effects"] == 1
    assert folder.json("overview")["last_pass"]["counts"]["published"] == 1


def test_a_test_that_is_not_sent_says_what_for_and_what_to_do(folder: Folder, sandbox: SandboxClient) -> None:
    sandbox.change(email={"refuse_credentials": True})
    said = folder.run("send-test", "you@example.com", "--wait", "2s", code=1).out
    assert "not sent yet: the provider refuses our account" in said
    assert "mend it, then `sendonce accounts resume mail --reason ...`" in said
    assert "to take it back: `sendonce cancel --delivery send-test/" in said
    assert "refused our account, not this customer: our credentials are refused (code 535" in said
    sandbox.change(email={"refuse_credentials": False})
    opened = folder.run("accounts", "resume", "mail", "--reason", "mended").out
    assert "it was closed, since the provider refuses our account" in opened
    folder.run("accounts", "pause", "text", "--reason", "a test")
    paused = folder.run("send-test", "+12025550101", "--wait", "1s", code=1).out
    assert "not sent yet: account text is paused: `sendonce accounts resume text" in paused


def test_an_import_that_the_store_stops_says_how_far_it_came(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.add_template()
    rows = [f"s-{number},c-{number},in 2h,shipped,a@example.com,,A,{number}" for number in range(1_000)]
    folder.write("list.csv", "\n".join((ROWS.splitlines()[0], *rows)))
    write = SqliteStore.write
    taken: list[int] = []

    def full_after_two(store: SqliteStore, unit: Callable[[Tx], Any]) -> Future[Any]:
        def counted(tx: Tx) -> Any:
            before = tx.rows("view_scheduled_total")[0]["total"]
            answer = unit(tx)
            if tx.rows("view_scheduled_total")[0]["total"] != before:
                if len(taken) == 2:
                    raise StoreUnavailable("the disk is full: free space", code="store_full")
                taken.append(1)
            return answer

        return write(store, counted)

    monkeypatch.setattr(SqliteStore, "write", full_after_two)
    monkeypatch.setattr(importer, "WIDE", 50)
    stopped = folder.run("import", "list.csv", code=3).err
    assert "the disk is full: free space" in stopped
    said = re.search(r"at least (\d+) reminders taken in before it stopped: import the same file", stopped)
    assert said is not None
    monkeypatch.undo()
    monkeypatch.chdir(folder.path)
    kept = folder.json("db", "info")["scheduled"]
    again = folder.json("import", "list.csv")
    assert 0 < kept == again["unchanged"] == int(said[1]) < 1_000
    assert again["accepted"] == 1_000 - kept


def test_a_drain_says_what_waits_for_a_pause(folder: Folder) -> None:
    folder.add_template()
    rows = [f"s-{number},c,now,shipped,a@example.com,,A,{number}" for number in range(3)]
    later = "s-9,c,in 2h,shipped,a@example.com,,A,9"
    folder.write("list.csv", "\n".join((ROWS.splitlines()[0], *rows, later)))
    folder.run("import", "list.csv")
    folder.run("pause", "channel", "email", "--reason", "wrong prices")
    drained = folder.run("drain", "--max-time", "20s").out
    assert "3 deliveries wait for a pause, the night, a catch-up or the configuration" in drained
    assert ask(folder, "drain", "--max-time", "20s")["held"] == 3
    folder.run("resume", "channel", "email", "--reason", "corrected")
    assert ask(folder, "drain", "--max-time", "20s")["held"] == 0


def test_the_overview_shows_the_last_few_that_ended_and_all_that_have_gone(folder: Folder) -> None:
    """A cron that drains every minute leaves sixty in an hour; a dead one must not be lost among them."""
    folder.run("db", "info")
    store = open_store(f"sqlite:///{folder.path}/sendonce.db", SystemClock())

    def live(tx: Tx) -> None:
        ended = Process("", "drain", "sms", "host", 1, tx.now, tx.now, tx.steady, stopped=True)
        for number in range(8):
            tx.processes.beat(replace(ended, id=f"ended-{number}", beat_at=tx.now - number))
        tx.processes.beat(replace(ended, id="gone", beat_at=tx.now - 99, stopped=False))

    store.write(live).result()
    store.close()
    shown = folder.run("overview").out
    assert re.findall(r"^(ended-\d|gone) ", shown, re.MULTILINE) == [
        *(f"ended-{n}" for n in range(5)),
        "gone",
    ]
    assert "3 more ended within the last hour" in shown
    assert len(folder.json("overview")["processes"]) == 9


def test_an_account_that_is_gone_while_it_is_needed_is_named_with_the_fix(
    folder: Folder, sandbox: SandboxClient
) -> None:
    folder.add_template()
    folder.write("list.csv", ROWS.splitlines()[0] + "\ns-1,c-1,now,shipped,,+12025550101,Ann,1\n")
    folder.run("import", "list.csv")
    sandbox.change(sms={"lost_after": {"next": 1}})
    folder.run("drain", "--max-time", "20s")
    assert folder.states("s-1") == {"s-1:c-1:sms": "UNCERTAIN"}
    assert ask(folder, "check")["ok"] is True
    renamed = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    folder.write(
        "sendonce.toml",
        renamed.replace("[account.text", "[account.other").replace('account = "text"', 'account = "other"'),
    )
    checked = folder.run("check", code=1)
    assert "account text: not configured any more" in checked.out
    assert "put [account.text] back" in checked.out
    assert ask(folder, "overview", code=1)["alerts"] == ["text"]


def test_a_backup_is_restored_without_sending_anything_twice(
    folder: Folder, sandbox: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.add_template()
    folder.write("list.csv", ROWS.splitlines()[0] + "\ns-1,c-1,now,shipped,ann@example.com,,Ann,1\n")
    folder.run("import", "list.csv")
    answer = ask(folder, "db backup", "copy.db")
    assert (answer["epoch"], answer["bytes"]) == (2, (folder.path / "copy.db").stat().st_size)
    assert "is there already" in folder.run("db", "backup", "copy.db", code=2).err
    folder.run("drain", "--max-time", "20s")
    assert sandbox.report()["channels"]["email"]["effects"] == 1
    monkeypatch.setenv("SENDONCE_STORE_URL", f"sqlite:///{folder.path}/copy.db")
    folder.run("drain", "--max-time", "20s")
    assert folder.states("s-1") == {"s-1:c-1:email": "SCHEDULED"}
    overview = folder.run("overview", code=1).out
    assert "the store is held: it was restored from a backup, or copied" in overview
    assert ask(folder, "overview", code=1)["alerts"] == ["store"]
    assert "store: held" in folder.run("check", code=1).out
    assert folder.json("pass", code=1)["held"] is True
    assert folder.json("db", "info")["epoch"] == 2
    given = ["--reason", "compared with the provider"]
    folder.run("db", "released", code=2)  # no reason given
    earlier = ["--until", (datetime.now(UTC) - timedelta(minutes=5)).isoformat()]
    assert ask(folder, "db released", *given, *earlier, "--preview")["counts"] == []  # it was not due yet
    seen = ask(folder, "db released", *given, "--preview")
    assert seen["counts"] == [{"state": "SCHEDULED", "class": "N", "fate": "text", "count": 1}]
    assert (seen["epoch"], folder.json("db", "info")["held"]) == (None, seen["words"])
    done = ask(folder, "db released", *given)
    assert (done["epoch"], done["counts"]) == (3, seen["counts"])
    assert "not held" in folder.run("db", "released", *given, code=5).err
    folder.run("pass")
    (found,) = folder.json("status", "s-1:c-1:email")["deliveries"]
    assert (found["state"], found["maybe_sent"]) == ("QUEUED", True)  # no key, so no claim takes it
    assert sandbox.report()["channels"]["email"]["effects"] == 1


def test_a_store_is_held_and_released_by_hand(folder: Folder, sandbox: SandboxClient) -> None:
    folder.add_template()
    folder.write("list.csv", ROWS.splitlines()[0] + "\ns-1,c-1,now,shipped,ann@example.com,,Ann,1\n")
    folder.run("import", "list.csv")
    held = ask(folder, "db hold", "--reason", "files set back")
    assert held["held"].startswith("files set back [operator:")
    assert ask(folder, "drain", "--max-time", "20s")["held"] == 1
    text = folder.run("db", "released", "--reason", "they were the newest", "--nothing-lost").out
    assert "released, epoch 2: 0 deliveries doubted" in text
    folder.run("drain", "--max-time", "60s")
    assert folder.states("s-1") == {"s-1:c-1:email": "ACCEPTED"}


def test_a_store_that_cannot_be_opened_is_code_3(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("other.db", "not a database, but long enough to be taken for the header of one" * 20)
    for url, said in (
        (f"sqlite:///{folder.path}/none/x.db", "folder does not exist"),
        (f"sqlite:///{folder.path}/other.db", "not a sound SQLite database"),
    ):
        monkeypatch.setenv("SENDONCE_STORE_URL", url)
        assert said in folder.run("overview", code=3).err


def test_everything_wrong_with_a_configuration_is_said_at_once(folder: Folder) -> None:
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    folder.write(
        "sendonce.toml", text.replace("lanes = 4", "lane = 4").replace('expiry = "24h"', "expiry = 1")
    )
    ran = folder.run("check", code=2)
    assert len(ran.err.strip().splitlines()) >= 3


def test_an_account_that_refuses_the_login_is_told_apart(folder: Folder, sandbox: SandboxClient) -> None:
    sandbox.change(sms={"refuse_credentials": True})
    answer = ask(folder, "check", code=1)
    verdicts = {finding["part"]: finding["verdict"] for finding in answer["findings"]}
    assert verdicts == {
        "configuration": "ok",
        "store": "ok",
        "audit": "note",
        "channel email": "ok",
        "channel sms": "ok",
        "account mail": "ok",
        "account text": "bad",
    }


def test_a_bug_says_where_and_nothing_of_what_it_choked_on(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    choked_on = "ann@example.com or +1 202 555 0101"

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(choked_on)

    monkeypatch.setattr("sendonce.pipeline.overview.overview", broken)
    for extra in ([], ["--debug"]):
        ran = folder.run("overview", *extra, code=70)
        assert "RuntimeError at test_cli_journey.py" in ran.err
        assert "ann@example.com" not in ran.err
        assert "202 555" not in ran.err
        assert ("in broken" in ran.err) is bool(extra)
