"""What `sendonce forecast`, `slo report` and `slo rules` answer to people and to programs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from sendonce.cli import slo
from sendonce.cli.screen import Screen
from sendonce.core.forecast import Burst
from sendonce.pipeline.forecast import AccountForecast, Forecast
from tests.e2e.command_line import Folder
from tests.e2e.test_cli_journey import ask

HOUR_US = 3_600_000_000
OBJECTIVES = """
[channel.sms.objectives]
accepted_within = "10m"
published_within = "1s"
recovered_within = "1m"
"""


@pytest.fixture
def slow(folder: Folder) -> Folder:
    """Twenty text messages that fall due in two hours, over an account that sends one a minute."""
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    assert text.count('["10 parts/s"]') == 1
    folder.write("sendonce.toml", text.replace('["10 parts/s"]', '["1/min"]') + OBJECTIVES)
    folder.add_template()
    rows = "".join(f"s-{n},c-{n},in 2h,shipped,+1202555{n:04},Ann,1\n" for n in range(100, 120))
    folder.write("list.csv", f"id,customer,due,template,phone,name,parcel\n{rows}")
    return folder


def test_with_nothing_to_come_everything_will_be_in_time(slow: Folder) -> None:
    said = slow.run("forecast").out
    assert said.splitlines()[-1] == "everything will be in time"
    assert re.search(r"^mail +0 +0 +[\d.]+ +rate +- +0 +0$", said, re.MULTILINE)
    seen = ask(slow, "forecast")
    assert (seen["missed"], seen["sampled"], seen["unroutable"], seen["night"]) == (0, False, 0, 0)
    assert [each["account"] for each in seen["accounts"]] == ["mail", "text"]


def test_what_will_be_late_is_said_with_the_rate_that_would_do(slow: Folder) -> None:
    slow.run("import", "list.csv")
    said = slow.run("forecast", "--minutes", code=1).out
    assert re.search(r"^text +0 +20 +0\.01\d+ +rate +\d{4}-.+ +\d+ +0$", said, re.MULTILINE)
    assert re.search(
        r"^text: 20 deliveries from .+, drained .+ after 2\d min.*; (8|9|10) late$", said, re.MULTILINE
    )
    assert re.search(r"^text: too late first, about: s-1\d\d:c-1\d\d:sms, ", said, re.MULTILINE)
    assert re.search(r"^text: 0\.03\d* calls a second would suffice; it has 0\.01\d+$", said, re.MULTILINE)
    assert re.search(r"^minute +due +leave +expire +wait at its end$", said, re.MULTILINE)
    assert "in time" not in said
    seen = ask(slow, "forecast", code=1)
    (text,) = (each for each in seen["accounts"] if each["account"] == "text")
    assert seen["missed"] == text["late"] > 0
    assert 0 < text["per_s"] < 1 / 60
    assert text["needed_per_s"] > text["per_s"]

    slow.run("pause", "account", "text", "--reason", "test")
    said = slow.run("forecast", code=1).out
    assert re.search(r"^text .* closed +never, until it is opened +0 +20$", said, re.MULTILINE)

    assert "has passed" in slow.run("forecast", "--at", "2020-01-01T00:00Z", code=2).err
    assert "25:00" in slow.run("forecast", "--at", "25:00", code=2).err


def test_what_was_kept_is_reported_by_objective_with_the_worst(folder: Folder) -> None:
    """One that came in two hours late, and so was published and accepted too late."""
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")
    folder.write("sendonce.toml", text + OBJECTIVES)
    folder.add_template()
    before = f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"
    rows = f"s-1,c-1,{before},shipped,,+12025550101,Ann,1\ns-2,c-2,now,shipped,ann@example.com,,Ann,1\n"
    folder.write("late.csv", f"id,customer,due,template,email,phone,name,parcel\n{rows}")
    folder.run("import", "late.csv")
    folder.run("drain", "--max-time", "60s")
    said = folder.run("slo", "report", code=1).out
    assert re.search(r"^sms +published within 1 s +1 +0 +0\.000% +99\.000% +not kept$", said, re.MULTILINE)
    assert re.search(r"^sms +accepted within 10 min +1 +0 +0\.000% +99\.000% +not kept$", said, re.MULTILINE)
    assert re.search(r"^email +accepted within 15 min +1 +1 +100\.000% +99\.000% +kept$", said, re.MULTILINE)
    assert re.search(r"^sms +no duplicates +\d+ +\d+ +0 +at most 0 +kept$", said, re.MULTILINE)
    assert re.search(r"^  s-1:c-1:sms: 1 h 5[01] min past its window, ACCEPTED; due ", said, re.MULTILINE)
    report = ask(folder, "slo report", "--week", code=1)
    assert report["ok"] is False
    (sms,) = (each for each in report["channels"] if each["channel"] == "sms")
    assert (sms["due"], sms["ok"], sms["worst"][0]["key"]) == (1, False, "s-1:c-1:sms")
    assert {one["objective"] for one in sms["kept"]} == {"published", "accepted", "duplicates", "recovered"}
    assert "exclude each other" in folder.run("slo", "report", "--week", "--month", code=2).err


def test_rules_go_to_a_file_or_to_stdout_and_are_the_same(slow: Folder) -> None:
    made: Any = yaml.safe_load(slow.run("slo", "rules").out)
    slow.run("slo", "rules", "--output", "sendonce.rules.yml")
    assert yaml.safe_load((slow.path / "sendonce.rules.yml").read_text(encoding="utf-8")) == made
    answer = ask(slow, "slo rules")
    assert [rule["alert"] for rule in answer["rules"]] == [
        rule["alert"] for rule in made["groups"][0]["rules"]
    ]
    assert "cannot be written" in slow.run("slo", "rules", "--output", "none/x.yml", code=2).err
    assert "{page}" in slow.run("slo", "rules", "--runbook", "https://wiki.example.com", code=2).err


# What a folder does not come to, on the screen


def account(**changed: Any) -> AccountForecast:
    made = AccountForecast(
        account="text", channel="sms", waiting=0, due=60, per_s=1_500.0, bound="rate", opens_at=0,
        hold_s=None, calls=1.0, drained_at=HOUR_US, started=60, late=0, expired=0, first_late=(),
        needed_per_s=None, needed_lanes=None, bursts=(), minutes=(),
    )  # fmt: skip
    return replace(made, **changed)


def shown(capsys: pytest.CaptureFixture[str], *accounts: AccountForecast, **changed: Any) -> str:
    seen = Forecast(
        now=0, at=0, start=0, until=24 * HOUR_US, accounts=accounts, channels=(), sampled=False, unroutable=0,
        night=0, held="",
    )  # fmt: skip
    slo._show_forecast(Screen(), replace(seen, **changed), minutes=False)
    return capsys.readouterr().out


def test_what_a_forecast_could_not_count_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(
        capsys, account(), held="the store is held", unroutable=1_200, night=30, sampled=True
    ).splitlines()
    assert said[-5:] == [
        "the store is held: nothing leaves until `sendonce db released`",
        "1,200 fall due that no account carries: `sendonce check`",
        "30 are put off by quiet hours",
        "more than is looked at one by one: shares of accounts are of a sample",
        "everything will be in time",
    ]


def test_rates_are_numbers_that_people_write(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, account(late=5, needed_per_s=2_345.6, needed_lanes=70))
    assert re.search(r"^text +0 +60 +1,500 +rate ", said, re.MULTILINE)
    assert "text: 2,346 calls a second would suffice, with 70 lanes; it has 1,500" in said


def test_where_no_rate_would_do_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "text: no rate would make these be in time" in shown(capsys, account(expired=5))
    closed = account(expired=5, bound="closed", per_s=0.0, opens_at=None, drained_at=None)
    assert "no rate" not in shown(capsys, closed)  # the gate is what keeps them


def test_the_first_bursts_are_told_and_the_others_counted(capsys: pytest.CaptureFixture[str]) -> None:
    bursts = tuple(Burst(n * HOUR_US, n * HOUR_US + 90_000_000, 600, 3 * n, n) for n in range(7))
    said = shown(capsys, account(bursts=bursts, late=1))
    assert len(re.findall(r"^text: 600 deliveries from ", said, re.MULTILINE)) == 5
    assert re.search(r" drained .+ after 1 min 30 s; 3 late, 1 expired$", said, re.MULTILINE)
    assert "text: 2 more bursts" in said
