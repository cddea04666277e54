"""`sendonce drill` as a user runs it: what it tells, whom it calls and never calls, and that it can fail."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sendonce.cli.main import main
from sendonce.core.lifecycle import State
from sendonce.core.provider_event import EventKind
from sendonce.pipeline.cancel import Cancellation, Selection
from sendonce.testing.drill import (
    SCENARIOS,
    Drill,
    Result,
    Scenario,
    Totals,
    Verdict,
    prepared,
    run,
    scenarios,
)
from sendonce.testing.sandbox import ChannelRules, Idempotency, sandbox_in_thread
from sendonce.withdrawal import Answer, Word
from tests.e2e.command_line import ROOT

CONFIG = """
[store]
url = "sqlite:///mine.db"

[tenant.default]
zone = "Etc/UTC"

[channel.email]
account = "mail"
expiry = "2h"
alert_after = "10m"
uncertain = "{uncertain}"

[channel.sms]
account = "text"
expiry = "2h"
alert_after = "10m"
uncertain = "hold"

[account.mail]
provider = "smtp"
channel = "email"
limits = ["10/s"]
lanes = 4
from = "Shop <shop@example.com>"
host = "127.0.0.1"
port = {trap}
security = "none"
password = "env:NOT_SET_HERE"
username = "shop"

[account.text]
provider = "http"
channel = "sms"
limits = ["10/s"]
lanes = 4
from = "+12025550199"
url = "http://127.0.0.1:{port}/v1/messages"
allow_plain_http = true
bearer = "{bearer}"
body_json = '{{"to": "{{{{ to }}}}", "text": "{{{{ text }}}}"}}'
key_header = "Idempotency-Key"
key_window = "24h"
receipt_path = "id"
sandbox = {sandbox}

[intake]
category = "usual"

[category.usual]
no_consent = "refuse"

{recipients}
"""


class Trap:
    """Where a provider would be: counts whoever comes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.visits = 0
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while True:
            try:
                visitor, _ = self._listening.accept()
            except OSError:
                return
            self.visits += 1
            visitor.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def trap() -> Iterator[Trap]:
    made = Trap()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SENDONCE_CONFIG", "SENDONCE_STORE_URL", "NOT_SET_HERE"):
        monkeypatch.delenv(name, raising=False)


def configure(
    trap: Trap,
    *,
    uncertain: str = "hold",
    port: int = 0,
    sandbox: str = "false",
    recipients: str = "",
    bearer: str = "env:NOT_SET_HERE",
) -> None:
    text = CONFIG.format(
        trap=trap.port,
        port=port or trap.port,
        uncertain=uncertain,
        sandbox=sandbox,
        recipients=recipients,
        bearer=bearer,
    )
    Path("sendonce.toml").write_text(text, "utf-8")


def drilled(*names: str, rules: ChannelRules | None = None) -> Totals:
    """These scenarios, in this process."""
    drill = prepared(Path("sendonce.toml").absolute(), Path("drill"), environ=os.environ)
    if rules is not None:
        drill = replace(drill, rules=rules)
    return Totals(list(run(drill, chosen(drill, *names))))


def chosen(drill: Drill, *names: str) -> list[Scenario]:
    found = [scenario for scenario in drill.scenarios() if scenario.name in names]
    assert len(found) == len(names)
    return found


def failed(totals: Totals) -> list[str]:
    return [
        f"{result.scenario.name}: {step}"
        for result in totals.results
        for step in result.steps
        if not step.held
    ]


def test_it_tells_what_it_saw_and_calls_no_configured_provider_and_opens_no_store(
    trap: Trap, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(trap)
    code = main(
        [
            "drill",
            "--html",
            "report.html",
            "--scenario",
            "class",
            "--scenario",
            "duplicate",
            "--scenario",
            "killed",
            "--scenario",
            "bounce",
        ]
    )
    out, err = capfd.readouterr()
    assert code == 0, out + err
    assert out.splitlines()[-1] == "drill: scenarios=5 passed=5 failed=0 duplicates=0 lost=0"
    assert "1 came back: undelivered; 1 arrived: delivered; 2 ACCEPTED; 2 calls" in out
    assert "not configured: no account of class L" in out
    assert "mail (smtp, class N), text (http, class K)" in out
    assert len(re.findall(r"^    ✓ ", out, re.MULTILINE)) == len(
        re.findall(r"^      seen: ", out, re.MULTILINE)
    )
    assert trap.visits == 0, "each account's host is the trap"
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["report.html", "sendonce.toml"]
    page = Path("report.html").read_text("utf-8")
    assert "Every promise held" in page
    assert "worker killed in the middle of calls" in page


def test_json_is_one_document_with_the_documented_keys(trap: Trap, capfd: pytest.CaptureFixture[str]) -> None:
    import json

    configure(trap)
    assert main(["drill", "--json", "--scenario", "class K"]) == 0
    document = json.loads(capfd.readouterr().out)
    section = (ROOT / "docs/cli.md").read_text("utf-8").split("## `sendonce drill`")[1]
    keys = re.search(r"^JSON: (.+?)\n\n", section, re.MULTILINE | re.DOTALL)
    assert keys is not None
    assert set(document) == set(re.findall("`(.+?)`", keys[1]))
    assert (document["ok"], document["scenarios"], document["results"][0]["verdict"]) == (True, 1, "passed")
    assert {each["name"]: (each["class"], each["by"]) for each in document["accounts"]} == {
        "mail": ("N", "a sandbox"),
        "text": ("K", "a sandbox"),
    }


# A drill that cannot fail shows nothing


def test_a_provider_that_ignores_keys_makes_a_duplicate_and_the_drill_fails(
    trap: Trap, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(trap)
    totals = drilled(
        "response lost after acceptance, class K",
        "duplicate publication",
        rules=ChannelRules(idempotency=Idempotency.IGNORED),
    )
    assert [result.verdict for result in totals.results] == [Verdict.PASSED, Verdict.FAILED]
    assert (totals.duplicates, totals.ok) == (1, False)
    assert any("was taken 2 times" in text for text in failed(totals))


def test_a_cancel_that_only_says_so_is_found(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is taken away: the answer is `cancelled`, and the delivery goes out."""

    def says_so(store: object, selection: Selection, **_: object) -> Cancellation:
        done = Cancellation(selection, preview=False)
        for number in range(2):
            done.add(Answer(number, f"key-{number}", Word.CANCELLED, State.CANCELLED, changed=True))
        return done

    monkeypatch.setattr(scenarios, "cancel", says_so)
    configure(trap)
    totals = drilled("cancellation after publication")
    assert [result.verdict for result in totals.results] == [Verdict.FAILED]
    assert any("2 calls" in text for text in failed(totals))


def test_a_provider_that_is_never_done_ends_the_scenario_as_failed(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sendonce.testing.drill import world

    monkeypatch.setattr(world, "WITHIN_S", 1.0)
    monkeypatch.setattr(world.World.wait_for, "__kwdefaults__", {"within_s": 1.0})
    configure(trap)
    totals = drilled("duplicate publication", rules=ChannelRules(refuse_credentials=True))
    assert [result.verdict for result in totals.results] == [Verdict.FAILED]
    assert totals.lost == 4, "what has not ended counts as lost"
    assert any("not within 1 s" in text for text in failed(totals))


def test_a_bounce_that_would_be_taken_for_a_delivery_is_found(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sendonce.testing.drill import world

    monkeypatch.setattr(world.World, "told", lambda self, key: {EventKind.DELIVERED})
    configure(trap)
    totals = drilled("acceptance followed by a later bounce")
    assert [result.verdict for result in totals.results] == [Verdict.FAILED]
    assert any("one message never came" in text for text in failed(totals))


def test_without_the_api_a_bounce_is_not_configured(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["sendonce.testing.drill.run"], "find_spec", lambda name: None)
    configure(trap)
    (result,) = drilled("acceptance followed by a later bounce").results
    assert (result.verdict, result.why) == (Verdict.NOT_CONFIGURED, "needs the extra sendonce[api]")


def test_a_failure_is_told_with_exit_code_1_and_leaves_its_stores_for_a_look(
    trap: Trap, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(drill: Drill, chosen: list[Scenario], **_: object) -> Iterator[Result]:
        (drill.folder / "drill.db").touch()
        yield Result(SCENARIOS[0], Verdict.FAILED, lost=1)

    monkeypatch.setattr("sendonce.testing.drill.run", fails)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    configure(trap)
    assert main(["drill"]) == 1
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == "drill: scenarios=1 passed=0 failed=1 duplicates=0 lost=1"
    kept = re.search(r"kept for a look: .* in (\S+)$", out, re.MULTILINE)
    assert kept is not None
    assert (Path(kept[1]) / "drill.db").exists()


def test_what_the_user_allowed_to_go_twice_is_told_and_is_no_duplicate(trap: Trap) -> None:
    configure(trap, uncertain="resend")
    totals = drilled("response lost after acceptance, class N")
    assert (totals.ok, totals.duplicates) == (True, 0), failed(totals)
    seen = [step.saw for result in totals.results for step in result.steps]
    assert any('sent once more, as uncertain = "resend" allows' in text for text in seen)


# A real account


@pytest.mark.parametrize(
    ("options", "name", "code", "word"),
    [
        ({}, "text", 5, "sandbox = true under [account.text]"),
        ({"sandbox": "true"}, "text", 5, "nobody is named"),
        (
            {"sandbox": "true", "recipients": '[recipients]\nallow = ["+1202*", "ann@example.com"]'},
            "text",
            5,
            "sms",
        ),
        ({"sandbox": "true"}, "txt", 2, "did you mean text?"),
    ],
)
def test_a_real_account_is_refused_unless_it_is_for_tests_and_says_whom_it_writes_to(
    trap: Trap, capfd: pytest.CaptureFixture[str], options: dict[str, str], name: str, code: int, word: str
) -> None:
    configure(trap, **options)  # type: ignore[arg-type]
    assert main(["drill", "--sandbox-account", name]) == code
    assert word in capfd.readouterr().err
    assert trap.visits == 0
    assert [path.name for path in Path.cwd().iterdir()] == ["sendonce.toml"]


def test_a_real_account_for_tests_gets_two_messages_and_no_other_account_a_byte(
    trap: Trap, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("token").write_text("made-up\n", "utf-8")
    with sandbox_in_thread() as provider:
        allow = '[recipients]\nallow = ["+12025550123", "+1303*", "ann@example.com"]'
        configure(trap, port=provider.http_port, sandbox="true", recipients=allow, bearer="file:token")
        code = main(["drill", "--sandbox-account", "text"])
        out, err = capfd.readouterr()
        assert code == 0, out + err
        assert out.splitlines()[-1] == "drill: scenarios=2 passed=2 failed=0 duplicates=0 lost=0"
        effects = provider.effects()
    assert [effect["to"] for effect in effects] == ["+12025550123"] * 2
    assert len({effect["marker"] for effect in effects}) == 2
    assert trap.visits == 0
    assert "with this real account" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--scenario", "no such thing"], "is in no name"),
        (["--html", "nowhere/report.html"], "there is no folder nowhere"),
    ],
)
def test_a_wrong_option_is_told_before_anything_begins(
    trap: Trap, capfd: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    configure(trap)
    assert main(["drill", *arguments]) == 2
    assert word in capfd.readouterr().err
