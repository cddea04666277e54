"""What a drill makes of a configuration: what stays, what is exchanged, and how each account is reached."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sendonce.app import make_provider
from sendonce.config import Settings, parse
from sendonce.core.due import allowed_from
from sendonce.core.errors import ConfigError
from sendonce.core.pacing import SECOND, Limit
from sendonce.core.promise import ProviderClass
from sendonce.testing.drill import stage
from sendonce.testing.drill.report import MISSING, Drilled, Report, page
from sendonce.testing.drill.scenario import Result, Step, Totals, Verdict
from sendonce.testing.drill.scenarios import SCENARIOS

DOOR = stage.Door("127.0.0.1", 8025, 2525)
NOON = int(datetime(2026, 12, 1, 12, 0, tzinfo=UTC).timestamp()) * SECOND
MIDNIGHT = int(datetime(2026, 12, 1, 0, 0, tzinfo=UTC).timestamp()) * SECOND

BASE = """
[tenant.default]
zone = "Europe/London"

[channel.email]
account = "mail"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"

[channel.sms]
account = "text"
expiry = "12h"
alert_after = "15m"
uncertain = "hold"

[[route]]
channel = "sms"
category = "payment"
account = "gateway"

[account.mail]
provider = "smtp"
channel = "email"
limits = ["14/s", "5/d"]
lanes = 7
headroom = 0.1
from = "Shop <shop@example.org>"
host = "smtp.provider.example"
username = "shop"
password = "env:SMTP_PASSWORD"

[account.text]
provider = "twilio"
channel = "sms"
limits = ["1/min"]
lanes = 3
from = "+12025550199"
account_sid = "env:TWILIO_ACCOUNT_SID"
auth_token = "file:twilio-token"

[account.gateway]
provider = "http"
channel = "sms"
limits = ["10/s"]
lanes = 2
from = "+12025550199"
url = "https://gateway.provider.example/messages"
body_json = '{"number": "{{ to }}", "words": "{{ text }}"}'
bearer = "env:GATEWAY_TOKEN"
key_header = "X-Key"
key_window = "12h"
throttle_scope = "rate"

[account.spare]
provider = "smtp"
channel = "email"
limits = ["1/s"]
lanes = 1
from = "shop@example.org"
host = "spare.provider.example"

[recipients]
allow = ["ann@example.org"]

[intake]
category = "shipment"

[category.shipment]
no_consent = "allow"

[category.payment]
no_consent = "refuse"
quiet_hours = ["21:00-08:00"]

[worker]
lease = "30s"
"""


def settings(text: str = BASE) -> Settings:
    return parse(text, Path("/nowhere/sendonce.toml"), {})


def redirected(text: str = BASE) -> Settings:
    read = settings(text)
    return stage._redirected(read, dict.fromkeys(read.accounts, DOOR))


def test_a_promise_is_known_without_any_credential() -> None:
    classes = {name: stage.promise_of(each).provider_class for name, each in settings().accounts.items()}
    assert classes == {
        "mail": ProviderClass.NEITHER,
        "text": ProviderClass.NEITHER,
        "gateway": ProviderClass.KEY,
        "spare": ProviderClass.NEITHER,
    }


def test_a_wrong_option_is_an_error_all_the_same() -> None:
    wrong = settings(BASE.replace('key_window = "12h"', 'key_windw = "12h"'))
    with pytest.raises(ConfigError, match="key_windw"):
        stage.promise_of(wrong.accounts["gateway"])


def test_what_the_program_refuses_to_run_is_not_drilled() -> None:
    stage.check(settings())
    slow = settings(BASE + '\n[account.gateway.retry]\ncap = "13h"\n')
    with pytest.raises(ConfigError, match="waits longer than the key lives"):
        stage.check(slow)


def test_no_host_url_or_credential_of_the_configuration_is_left() -> None:
    for name, account in redirected().accounts.items():
        said = repr(dict(account.options))
        assert "provider.example" not in said
        assert "example.com" not in said
        assert "TOKEN" not in said.replace("SENDONCE_DRILL_UNSET", "")
        assert "127.0.0.1" in said, name
        make_provider(account)


def test_nobody_is_asked_what_became_of_messages_in_a_drill() -> None:
    asked = """key_header = "X-Key"
key_window = "12h"
poll = "60/min"
receipt_path = "id"
[account.gateway.question]
url = "https://gateway.provider.example/{{ receipt }}"
kind_path = "state"
kinds = { done = "delivered" }
"""
    text = BASE.replace('key_header = "X-Key"\nkey_window = "12h"\nthrottle_scope = "rate"\n', asked)
    assert settings(text).accounts["gateway"].poll_spacing_s == 1.0
    there = redirected(text).accounts["gateway"]
    make_provider(there)
    assert there.poll_spacing_s is None
    assert "provider.example" not in str(there.options)


def test_class_limits_lanes_and_attempts_stay() -> None:
    before, after = settings(), redirected()
    for name, account in before.accounts.items():
        there = after.accounts[name]
        assert make_provider(there).promise.provider_class is stage.promise_of(account).provider_class
        assert (there.limits.lanes, there.limits.headroom) == (account.limits.lanes, account.limits.headroom)
        assert there.retry.attempts_max == account.retry.attempts_max
    assert make_provider(after.accounts["gateway"]).promise.key_window_s == 12 * 3600
    assert after.routes == before.routes
    assert after.categories["payment"].quiet == before.categories["payment"].quiet
    assert (after.lease_s, before.lease_s) == (stage.LEASE_S, 30.0)


def test_what_would_take_hours_is_made_quicker_and_told() -> None:
    before, after = settings(), redirected()
    assert after.accounts["text"].limits.limits == (Limit(1, SECOND),)
    quota = next(limit for limit in after.accounts["mail"].limits.limits if limit.is_quota)
    assert quota.count * 0.9 >= stage.QUOTA_MIN - 1
    assert after.accounts["gateway"].limits.limits == before.accounts["gateway"].limits.limits
    told = list(stage.changes_of(before, stage.ways_of(before, NOON), NOON))
    assert [line for line in told if "faster limits" in line] == [
        f"account {name}: faster limits than configured, so that the drill ends today"
        for name in ("mail", "text")
    ]
    assert any("lease 5s instead of 30s" in line for line in told)
    assert any(line.startswith("recipients:") for line in told)
    assert any(line.startswith("account gateway: the sandbox's request") for line in told)
    assert not any(line.startswith("account mail: the sandbox's request") for line in told)


def test_a_vendor_keeps_its_protocol() -> None:
    text = BASE.replace(
        'provider = "twilio"\nchannel = "sms"',
        'provider = "resend"\nchannel = "email"\napi_key = "env:RESEND_KEY"',
    )
    text = text.replace('account_sid = "env:TWILIO_ACCOUNT_SID"\nauth_token = "file:twilio-token"\n', "")
    text = text.replace('account = "text"', 'account = "gateway"').replace(
        'from = "+12025550199"\napi_key', 'from = "shop@example.org"\napi_key'
    )
    text = text.replace('lanes = 3\nfrom = "+12025550199"', 'lanes = 3\nfrom = "shop@example.org"')
    text = text.replace('[[route]]\nchannel = "sms"\ncategory = "payment"\naccount = "gateway"\n', "")
    account = redirected(text).accounts["text"]
    assert (account.provider, account.options["base_url"]) == ("resend", "http://127.0.0.1:8025/resend")
    assert make_provider(account).promise.provider_class is ProviderClass.KEY


def test_each_account_is_reached_as_reminders_reach_it_and_customers_are_awake() -> None:
    read = settings()
    for now in (NOON, MIDNIGHT):
        ways = stage.ways_of(read, now)
        assert {name: way.category for name, way in ways.items()} == {
            "mail": "shipment",
            "text": "shipment",
            "gateway": "payment",
        }
        quiet = read.categories["payment"].quiet
        assert allowed_from(quiet, ways["gateway"].zone, now) == now
    assert stage.ways_of(read, MIDNIGHT)["gateway"].zone != "Europe/London"


def test_where_it_is_night_everywhere_the_quiet_hours_are_lifted_and_that_is_told() -> None:
    always = settings(BASE.replace('["21:00-08:00"]', '["00:00-12:00", "12:10-24:00"]'))
    ways = stage.ways_of(always, NOON + 35 * 60 * SECOND)
    told = list(stage.changes_of(always, ways, NOON + 35 * 60 * SECOND))
    assert any(line.startswith("category payment: without quiet hours") for line in told)


def test_every_scenario_says_what_it_is() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(scenario.does and scenario.must for scenario in SCENARIOS)
    text = (Path(__file__).parents[2] / "docs/drill.md").read_text("utf-8")
    assert [name for name in names if f"| {name} |" not in text] == []


@pytest.mark.parametrize(
    ("results", "ok", "line"),
    [
        ([], False, "drill: scenarios=0 passed=0 failed=0 duplicates=0 lost=0"),
        ([(Verdict.PASSED, 0)], True, "drill: scenarios=1 passed=1 failed=0 duplicates=0 lost=0"),
        (
            [(Verdict.PASSED, 0), (Verdict.NOT_CONFIGURED, 0)],
            True,
            "drill: scenarios=1 passed=1 failed=0 duplicates=0 lost=0",
        ),
        (
            [(Verdict.PASSED, 0), (Verdict.FAILED, 2)],
            False,
            "drill: scenarios=2 passed=1 failed=1 duplicates=2 lost=0",
        ),
        ([(Verdict.NOT_CONFIGURED, 0)], False, "drill: scenarios=0 passed=0 failed=0 duplicates=0 lost=0"),
    ],
)
def test_the_last_line(results: list[tuple[Verdict, int]], ok: bool, line: str) -> None:
    totals = Totals([Result(SCENARIOS[0], verdict, duplicates=twice) for verdict, twice in results])
    assert (totals.ok, str(totals)) == (ok, line)


@pytest.mark.parametrize(
    ("account", "called"),
    [
        ("mail", False),  # its bounces come as mail
        ("text", True),  # Twilio signs with the auth token that the account has anyway
        ("gateway", True),  # the sandbox's own API
    ],
)
def test_whose_provider_calls_back(account: str, called: bool) -> None:
    assert stage.calls_back(settings().accounts[account]) is called


@pytest.mark.parametrize(("secrets", "called"), [("[]", False), ('["env:RESEND_SECRET"]', True)])
def test_a_vendor_calls_back_where_the_configuration_has_its_secret(secrets: str, called: bool) -> None:
    own = f'provider = "resend"\napi_key = "env:RESEND_KEY"\nevent_secrets = {secrets}\nchannel = "email"'
    text = BASE.replace('provider = "smtp"\nchannel = "email"', own, 1)
    for smtp in ('host = "smtp.provider.example"', 'username = "shop"', 'password = "env:SMTP_PASSWORD"'):
        text = text.replace(f"{smtp}\n", "", 1)
    account = settings(text).accounts["mail"]
    assert account.provider == "resend"
    assert stage.calls_back(account) is called


def test_the_page_loads_nothing_and_shows_what_failed_unfolded_and_escaped() -> None:
    step = Step("<script>alert(1)</script>", "it holds & stays", "it did not", held=False)
    results = [
        Result(SCENARIOS[0], Verdict.FAILED, (step,), 1.0, duplicates=1),
        Result(SCENARIOS[1], Verdict.PASSED, (), 2.0),
        Result(SCENARIOS[2], Verdict.NOT_CONFIGURED, why="no account of class L"),
    ]
    accounts = [Drilled("mail", "email", "smtp", "N", "a sandbox")]
    report = Report(
        "/nowhere/x.toml", NOON, 3.0, "", accounts, ["spare"], ["shorter"], MISSING, Totals(results)
    )
    text = page(report)
    assert "<!-- " not in text, "every part is filled in"
    assert not {"src=", "href=", "url(", "@import", "<script", "http:", "https:"} & {
        word for word in ("src=", "href=", "url(", "@import", "<script", "http:", "https:") if word in text
    }
    assert "default-src 'none'" in text
    assert text.count("<details") == 3
    assert text.count(" open>") == 1
    assert "&lt;script&gt;" in text
    assert "not configured: no account of class L" in text
    assert str(report.totals) in text
