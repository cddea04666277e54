"""The configuration: what is read, what is refused and with which words, and that all of it is documented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce import telemetry
from sendonce.config import (
    AccountSettings,
    ConfigErrors,
    Place,
    Problems,
    Settings,
    StoreKind,
    bind,
    did_you_mean,
    document,
    documented_keys,
    documented_variables,
    find,
    load,
    parse,
    parse_store_url,
    template_text,
)
from sendonce.config.reading import CONFIG_VARIABLE
from sendonce.config.tables import LOG_FORMATS, LOG_LEVELS, TABLES
from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.due import QuietHours
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.objective import Objectives
from sendonce.core.pacing import Limit
from sendonce.core.policy import OnQuiet, UncertainPolicy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import account_for
from sendonce.ports.secret import Secret
from sendonce.providers.smtp import SmtpSettings
from sendonce.providers.twilio import TwilioSettings

FILE = Path("/etc/sendonce/sendonce.toml")
DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"

SMALL = """
[tenant.default]
zone = "Europe/Berlin"
[intake]
category = "payment"
[channel.sms]
account = "text"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"
[account.text]
provider = "twilio"
channel = "sms"
limits = ["10/s"]
lanes = 4
[category.payment]
no_consent = "allow"
"""


def read(text: str, **environ: str) -> Settings:
    return parse(text, FILE, environ)


def wrong(text: str, **environ: str) -> list[str]:
    """The problems of a text, without the file's name that each begins with."""
    with pytest.raises(ConfigErrors) as caught:
        parse(text, FILE, environ)
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return [line.removeprefix(f"{FILE}: ") for line in caught.value.problems]


def changed(old: str, new: str) -> str:
    assert SMALL.count(old) == 1, old
    return SMALL.replace(old, new)


# What is read


def test_the_least_file_gives_the_documented_defaults() -> None:
    settings = read(SMALL)
    assert settings.store_url.path == "/etc/sendonce/sendonce.db"
    assert (settings.phone_region, settings.late_ok_s) == (None, 86_400.0)
    assert (settings.lease_s, settings.pass_every_s, settings.grace_s) == (30.0, 1.0, 60.0)
    assert (settings.pass_rows_max, settings.pass_time_max_s) == (50_000, 60.0)
    assert (settings.log_level, settings.log_format) == ("info", "text")
    assert settings.accounts["text"].retry == RetryPolicy()
    assert settings.accounts["text"].limits.headroom == 0.0
    assert settings.accounts["text"].limits.jitter_us == 10_000
    assert settings.recipients.allows("anybody@example.com")
    assert settings.plans == {}


def test_a_full_file_is_read_into_typed_values() -> None:
    settings = read(
        """
        [store]
        url = "sqlite:////var/lib/reminders.db"
        [tenant.default]
        zone = "europe/berlin"
        [tenant."acme & co"]
        zone = "America/New_York"
        [intake]
        category = "payment"
        phone_region = "DE"
        late_ok = "2h"
        [channel.email]
        account = "mail"
        expiry = "24h"
        alert_after = "15m"
        uncertain = "hold"
        catch_up = "600/min"
        [account.mail]
        provider = "smtp"
        channel = "email"
        limits = ["14/s", "50000/d"]
        lanes = 10
        headroom = 0.1
        jitter = "20ms"
        from = "Shop <shop@example.com>"
        reply_to = "help@example.com"
        host = "smtp.example.com"
        port = 587
        [account.mail.tls]
        verify = true
        [account.mail.retry]
        attempts_max = 3
        throttles_max = 7
        base = "1s"
        cap = "10m"
        floor = "500ms"
        [account.bulk]
        provider = "smtp"
        channel = "email"
        limits = ["1/s"]
        lanes = 1
        from = "bulk@example.com"
        [category.payment]
        no_consent = "allow"
        quiet_hours = ["21:00-08:00", "00:00-24:00 sun"]
        on_quiet = "expire"
        uncertain = "assume_sent"
        expiry = "36h"
        [category.news]
        no_consent = "refuse"
        [[route]]
        channel = "email"
        tenant = "acme & co"
        category = "news"
        account = "bulk"
        [recipients]
        allow = ["*@Example.com", "+49*"]
        redirect.email = "me@example.com"
        [plan.loan]
        steps = ["D-3 09:00 email", "D 10:00 email"]
        [worker]
        lease = "1m"
        [scheduler]
        interval = "1s"
        pass_rows_max = 10
        pass_time_max = "15m"
        grace = "2m"
        [log]
        level = "debug"
        format = "json"
        """
    )
    assert (settings.store_url.kind, settings.store_url.path) == (StoreKind.SQLITE, "/var/lib/reminders.db")
    assert settings.zones == {"default": "Europe/Berlin", "acme & co": "America/New_York"}
    assert (settings.default_category, settings.phone_region, settings.late_ok_s) == ("payment", "DE", 7200.0)
    channel = settings.channels[Channel.EMAIL]
    assert (channel.expiry_s, channel.alert_after_s, channel.uncertain) == (
        86_400.0,
        900.0,
        UncertainPolicy.HOLD,
    )
    assert channel.catch_up_us == 100_000
    mail = settings.accounts["mail"]
    assert (mail.name, mail.channel, mail.provider) == ("mail", Channel.EMAIL, "smtp")
    assert mail.limits.limits == (Limit(14, 1_000_000), Limit(50_000, 86_400_000_000))
    assert (mail.limits.lanes, mail.limits.headroom, mail.limits.jitter_us) == (10, 0.1, 20_000)
    assert (mail.sender, mail.reply_to) == ("Shop <shop@example.com>", "help@example.com")
    assert mail.retry == RetryPolicy(3, 7, 1.0, 600.0, 0.5)
    assert mail.options == {"host": "smtp.example.com", "port": 587, "tls": {"verify": True}}
    payment = settings.categories["payment"]
    assert payment.no_record is NoRecord.ALLOW
    assert payment.quiet == (QuietHours(1260, 480), QuietHours(0, 1440, frozenset({6})))
    assert payment.on_quiet is OnQuiet.EXPIRE
    assert (payment.uncertain, payment.expiry_s) == (UncertainPolicy.ASSUME_SENT, 129_600.0)
    assert account_for(settings.routes, Channel.EMAIL, "acme & co", "news") == "bulk"
    assert account_for(settings.routes, Channel.EMAIL, "acme & co", "payment") == "mail"
    assert settings.recipients.allows("a@example.com")
    assert settings.recipients.allows("+4915112345678")
    assert not settings.recipients.allows("a@example.org")
    assert settings.recipients.redirect == {Channel.EMAIL: "me@example.com"}
    assert [step.label for step in settings.plans["loan"].steps] == ["D-3", "D"]
    assert (settings.lease_s, settings.pass_every_s, settings.pass_rows_max) == (60.0, 1.0, 10)
    assert (settings.pass_time_max_s, settings.grace_s) == (900.0, 120.0)
    assert (settings.log_level, settings.log_format) == ("debug", "json")


def test_settings_become_the_policy_of_the_stages() -> None:
    settings = read(SMALL)
    promise = Promise(ProviderClass.NEITHER, timeout_s=20.0)
    policy = settings.policy({"text": promise})
    assert policy.accounts["text"].promise is promise
    assert policy.accounts["text"].limits == settings.accounts["text"].limits
    assert policy.zone("nobody") == "Europe/Berlin"
    for each in fields(policy):
        if each.name not in ("accounts", "hints"):
            assert getattr(policy, each.name) == getattr(settings, each.name), each.name


def test_settings_cannot_be_changed() -> None:
    settings = read(SMALL + "[account.text.extra]\nlist = [1]\n")
    with pytest.raises(FrozenInstanceError):
        settings.lease_s = 1.0  # type: ignore[misc]
    for mapping in (
        settings.zones,
        settings.channels,
        settings.accounts,
        settings.categories,
        settings.plans,
    ):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
    extra = settings.accounts["text"].options["extra"]
    assert isinstance(extra, Mapping)
    with pytest.raises(TypeError):
        extra["x"] = 1  # type: ignore[index]
    assert extra["list"] == (1,)


def test_a_route_for_everything_replaces_the_account_of_a_channel() -> None:
    settings = read(changed('account = "text"\n', "") + '[[route]]\nchannel = "sms"\naccount = "text"\n')
    assert account_for(settings.routes, Channel.SMS, "any", "payment") == "text"


TWIN = SMALL.partition("[account.text]")[2].partition("\n[")[0]


def test_accounts_share_a_channel_by_weight() -> None:
    text = changed('account = "text"\n', "accounts = { text = 9, twin = 1 }\n")
    settings = read(f"{text}\n[account.twin]{TWIN}\nsenders = ['+12025550100']\n")
    (route,) = [route for route in settings.routes if route.channel is Channel.SMS]
    assert [(share.account, share.weight) for share in route.shares] == [("text", 9), ("twin", 1)]
    assert settings.accounts["twin"].senders == ("+12025550100",)
    sms = read(SMALL).channels[Channel.SMS]
    assert sms.move_after_s == sms.alert_after_s / 2


@pytest.mark.parametrize(
    ("accounts", "says"),
    [
        ('account = "text"\naccounts = { text = 1 }', "accounts stands beside account: keep one"),
        ("accounts = {}", "accounts = {} is empty"),
        ("accounts = { text = 9, twin = 1 }", "'twin' has no table"),
        ("accounts = { text = 0 }", "accounts"),
    ],
)
def test_accounts_that_share_are_checked(accounts: str, says: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        read(changed('account = "text"\n', accounts + "\n"))
    assert says in str(raised.value)


# What is refused, and with which words


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            'zone = "Europe/Berlin"\n',
            "[tenant.default] zone is missing: write the zone your customers live in",
        ),
        (
            'account = "text"\n',
            "[channel.sms] account is missing: write the account that carries this channel",
        ),
        (
            'expiry = "24h"\n',
            "[channel.sms] expiry is missing: write how long after its due time a reminder is ",
        ),
        (
            'alert_after = "15m"\n',
            "[channel.sms] alert_after is missing: write how late a due reminder may be ",
        ),
        ('uncertain = "hold"\n', '[channel.sms] uncertain is missing: write uncertain = "hold"'),
        ('provider = "twilio"\n', "[account.text] provider is missing: write which adapter speaks to it"),
        (
            'channel = "sms"\n',
            '[account.text] channel is missing: write channel = "email" or channel = "sms"',
        ),
        ('limits = ["10/s"]\n', "[account.text] limits is missing: write what the provider allows"),
        ("lanes = 4\n", "[account.text] lanes is missing: write how many calls may be open at once"),
        ('no_consent = "allow"\n', '[category.payment] no_consent is missing: write no_consent = "allow"'),
        ('category = "payment"\n', "[intake] category is missing: write the category of rows that name none"),
    ],
)
def test_what_cannot_be_guessed_has_no_default(line: str, says: str) -> None:
    (problem,) = wrong(changed(line, ""))
    assert problem.startswith(says)


def test_a_missing_limit_says_where_the_number_comes_from() -> None:
    (limits,) = wrong(changed('limits = ["10/s"]\n', ""))
    assert "account page" in limits
    assert "There is no default" in limits


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        # durations
        ('"24h"', "24", '[channel.sms] expiry = 24 has no unit: write "24s" if seconds are meant'),
        (
            '"24h"',
            '"24"',
            "[channel.sms] expiry = '24' has no unit: write 24s for seconds, or use ms, m, h or d",
        ),
        ('"24h"', '"1 day"', "[channel.sms] expiry = '1 day' is no duration"),
        ('"24h"', "true", "[channel.sms] expiry = true must be a duration with its unit"),
        ('"24h"', '"0s"', "[channel.sms] expiry = 0s must be at least 1s"),
        ('"15m"', '"24h"', "[channel.sms] alert_after = 1d must be shorter than expiry = 1d"),
        ('"15m"', '"15m"\ncatch_up = "fast"', "[channel.sms] catch_up = 'fast' is no rate"),
        ('"15m"', '"15m"\ncatch_up = "10 parts/s"', "[channel.sms] catch_up counts parts"),
        ('expiry = "24h"', 'expiry = "24h"\nexpiry_s = 3', "[channel.sms] expiry is written twice"),
        ('expiry = "24h"', 'expiry_s = "24h"', "[channel.sms] expiry_s = '24h' must be a number of seconds"),
        ('expiry = "24h"', "expiry_s = -1", "[channel.sms] expiry_s = -1 must be at least 0"),
        # limits and lanes
        ('["10/s"]', "[]", "[account.text] limits = [] is empty: write what the provider allows"),
        ('["10/s"]', '"10/s"', "[account.text] limits = '10/s' must be a list: write it in brackets, [...]"),
        ('["10/s"]', '["10"]', "[account.text] limits entry 1 '10' is no rate"),
        ('["10/s"]', '["10/s", "x", 3]', "[account.text] limits entry 2 'x' is no rate"),
        ('["10/s"]', '["0/s"]', "[account.text] limits entry 1 '0/s' must count from 1"),
        (
            '["10/s"]',
            '["10/s", "9/1s"]',
            "[account.text] limits = 9 per 1s is the second limit for that time",
        ),
        (
            '["10/s"]',
            '["1/d"]\nheadroom = 0.5',
            "[account.text] limits = 1 per 1d leaves nothing beside headroom = 0.5: lower the headroom",
        ),
        ("lanes = 4", 'lanes = "4"', "[account.text] lanes = '4' must be a whole number, without quotes"),
        ("lanes = 4", "lanes = true", "[account.text] lanes = true must be a whole number"),
        ("lanes = 4", "lanes = 4.0", "[account.text] lanes = 4.0 must be a whole number"),
        ("lanes = 4", "lanes = 0", "[account.text] lanes = 0 must be at least 1"),
        (
            "lanes = 4",
            "lanes = 4\nheadroom = 1",
            "[account.text] headroom = 1 must be a share from 0 to below 1",
        ),
        ("lanes = 4", "lanes = 4\nheadroom = nan", "[account.text] headroom = nan must be a number"),
        ("lanes = 4", 'lanes = 4\njitter = "2s"', "[account.text] jitter = 2s must be at most 1s"),
        # choices and names
        (
            '"hold"',
            '"hodl"',
            "[channel.sms] uncertain = 'hodl' must be one of hold, resend, assume_sent: did you mean",
        ),
        ('"hold"', "1", "[channel.sms] uncertain = 1 must be one of hold, resend, assume_sent"),
        (
            '"Europe/Berlin"',
            '"Berlin"',
            "[tenant.default] zone = 'Berlin' is no zone of the IANA database: did you",
        ),
        ('"twilio"', '"twi lio"', "[account.text] provider = 'twi lio' must be a name"),
        ('"twilio"', '""', "[account.text] provider must be one line of printable text"),
        ('"twilio"', "7", "[account.text] provider = 7 must be text: put it into quotes"),
        (
            'category = "payment"',
            'category = "pay"',
            "[intake] category = 'pay' has no table: write [category.pay]",
        ),
        ("lanes = 4", 'lanes = 4\nfrom = "a\\nb"', "[account.text] from must be one line of printable text"),
        # unknown
        ("lanes = 4", "lanse = 4", "[account.text] lanes is missing, but lanse is there: rename it to lanes"),
        (
            'expiry = "24h"',
            'expires = "24h"',
            "[channel.sms] expiry is missing, but expires is there: rename it",
        ),
        (
            'limits = ["10/s"]',
            'limits = ["10/s"]\npoll = "10 parts/s"',
            "[account.text] poll counts parts, and a question has none: write it as in 60/min",
        ),
        (
            'limits = ["10/s"]',
            'limits = ["10/s"]\npoll_for = "8d"',
            "[account.text] poll_for = 8d must be at most 7d",
        ),
        (
            'uncertain = "hold"',
            'uncertain = "hold"\nalter = 1',
            "[channel.sms] alter is unknown: did you mean alert",
        ),
        ("[channel.sms]", "[channel.mms]\n[channel.sms]", "[channel.mms] is no channel: did you mean sms?"),
        ("[tenant.default]", "[stoer]\n[tenant.default]", "[stoer] is unknown: did you mean store?"),
        (
            "[tenant.default]",
            "[xyzzy]\n[tenant.default]",
            "[xyzzy] is unknown: known are account, api, audit",
        ),
        (
            "\n[tenant.default]",
            "lanes = 4\n[tenant.default]",
            "lanes stands outside of any table: move it under [acc",
        ),
        ("\n[tenant.default]", "xyz = 4\n[tenant.default]", "xyz stands outside of any table: remove it"),
        ("[tenant.default]", "log = 1\n[tenant.default]", "[log] must be a table: write [log] once"),
        (
            "[tenant.default]",
            "plan = 1\n[tenant.default]",
            "[plan] must be written [plan.NAME], once for each",
        ),
        (
            "[tenant.default]",
            "[plan]\nx = 1\n[tenant.default]",
            "[plan] x needs a name above it: move it under",
        ),
        ("[tenant.default]", "[route]\n[tenant.default]", "[route] must be written [[route]], once for each"),
    ],
)
def test_a_wrong_value_is_told_with_its_place_rule_and_fix(old: str, new: str, says: str) -> None:
    problems = wrong(changed(old, new))
    assert problems[0].startswith(says), problems
    assert len(problems) == 1, problems


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("[worker]\nlease = '1s'", "[worker] lease = 1s must be at least 5s"),
        ("[scheduler]\npass_time_max = '901s'", "[scheduler] pass_time_max = 15m1s must be at most 15m"),
        ("[scheduler]\npass_rows_max = 0", "[scheduler] pass_rows_max = 0 must be at least 1"),
        ("[log]\nlevel = 'loud'", "[log] level = 'loud' must be one of debug, info, warning, error"),
        ("[account.text.retry]\ncap = '1s'", "[account.text.retry] cap = 1s must not be below base (2s) or"),
        (
            "[account.text.retry]\nattempts = 1",
            "[account.text.retry] attempts is unknown: did you mean attempts_max?",
        ),
        ("[account.'a b']", "[account.a b] is refused: 'a b' must be a name"),
        ('[tenant."\\u0007\\n"]\nzone="UTC"', "[tenant.??] is refused: tenant"),
        ("[category.'*']\nno_consent='allow'", "[category.*] is refused: '*' must be a name"),
        ("[recipients]\nallow = []", "[recipients] allow = [] could mean nobody or everybody"),
        ("[recipients]\nredirect.fax = '1'", "[recipients] redirect.fax is no channel"),
        ("[recipients]\nredirect.sms = 'a@b.c'", "[recipients] redirect.sms = 'a@b.c' is no sms address"),
        ("[recipients]\nredirect = 'a@b.c'", "[recipients] redirect = 'a@b.c' must be a table"),
        (
            "[plan.x]\nsteps = ['D 09:00 email']",
            "[plan.x] steps = 'D 09:00 email' names the unknown channel 'email'",
        ),
        ("[plan.x]\nsteps = []", "[plan.x] is refused: plan 'x' has no steps"),
        (
            "[[route]]\nchannel='sms'\ncategory='payment'\naccount='tetx'",
            "[route] account = 'tetx' has no table: write [account.tetx]; did you mean text?",
        ),
        ("[[route]]\nchannel='sms'\ntenant='x'\naccount='text'", "[route] tenant = 'x' has no table"),
        ("[[route]]\nchannel='sms'\ncategory='x'\naccount='text'", "[route] category = 'x' has no table"),
        (
            "[[route]]\nchannel='email'\naccount='text'",
            "[route] channel = 'email' has no table: write [channel.email]",
        ),
        (
            "[[route]]\nchannel='sms'\naccount='text'",
            "[channel.sms] account is never reached, since [route] fits",
        ),
        ("[intake2]", "[intake2] is unknown: did you mean intake?"),
        ("[bounces]\nusername='u'", "[bounces] imap is missing: write the server"),
        ("[bounces]\nimap='h'\nusername='u'", "[bounces] password must be written"),
        ("[bounces]\nimap='h'\npassword='hunter2'", "[bounces] password must not stand in this file"),
        (
            "[bounces]\nimap='h'\nusername='u'\npassword='env:PW'\nsecurity='none'",
            '[bounces] security must be "tls" or "starttls": a password must not travel in clear to h',
        ),
        ("[kafka]\nusername='u'", "[kafka] servers is missing: write where the cluster is"),
        ("[kafka]\nservers='k:9093'\nusername='u'", "[kafka] password must be written: a login needs"),
        ("[kafka]\nservers='k:9093,k2'", "[kafka] servers = 'k:9093,k2' must be HOST:PORT, with commas"),
        ("[kafka]\nservers='k:99999'", "[kafka] servers = 'k:99999' must be HOST:PORT, with commas"),
        ("[kafka]\nservers='k:9093'\ntopic='a b'", "[kafka] topic = 'a b' must be letters, digits"),
        (
            "[kafka]\nservers='localhost:1,k:2'\nusername='u'\npassword='env:PW'\nsecurity='none'",
            '[kafka] security must be "tls": a login must not travel in clear',
        ),
        (
            "[api]\npublic_url='http://us.example.com'",
            "[api] public_url = 'http://us.example.com' must be https",
        ),
        (
            "[api]\npublic_url='https://us.example.com?x=1'",
            "[api] public_url = 'https://us.example.com?x=1' must",
        ),
        (
            "[category.news]\nno_consent='refuse'\nunsubscribe=true",
            "[category.news] unsubscribe = true needs an address that mail providers can call",
        ),
    ],
)
def test_further_tables_are_held_to_their_rules(more: str, says: str) -> None:
    problems = wrong(f"{SMALL}{more}\n", PW="hunter2")
    assert problems[0].startswith(says), problems


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("published_within = '25h'", "published_within = 1d1h must be at most expiry = 1d: what has expired"),
        ("accepted_within = '25h'", "accepted_within = 1d1h must be at most expiry = 1d: what has expired"),
        ("oldest = '25h'", "oldest = 1d1h must be at most expiry = 1d: what has expired"),
        ("accepted_within = 600", "accepted_within = 600 has no unit: write"),
        ("accepted_within = '500ms'", "accepted_within = 500ms must be at least 1s"),
        ("received_within = '0s'", "received_within = 0s must be at least 1s"),
        ("recovered_within = '59s'", "recovered_within = 59s must be at least 1m"),
        ("kept = 99.5", "kept = 99.5 must be a share from 0 to below 1"),
        ("kept = -0.1", "kept = -0.1 must be a share from 0 to below 1"),
        ("duplicates = -1", "duplicates = -1 must be at least 0"),
        ("duplicates = 0.5", "duplicates = 0.5 must be a whole number"),
        ("acepted_within = '5m'", "acepted_within is unknown: did you mean accepted_within"),
    ],
)
def test_an_objective_that_cannot_be_meant_is_refused(line: str, says: str) -> None:
    (problem,) = wrong(f"{SMALL}[channel.sms.objectives]\n{line}\n")
    assert problem.startswith(f"[channel.sms.objectives] {says}"), problem


def test_objectives_are_refused_all_at_once_and_must_be_a_table() -> None:
    late = "accepted_within = '25h'\npublished_within = '26h'\noldest = '27h'"
    assert len(wrong(f"{SMALL}[channel.sms.objectives]\n{late}\n")) == 3
    (problem,) = wrong(changed('uncertain = "hold"', 'uncertain = "hold"\nobjectives = 1'))
    assert problem.startswith("[channel.sms.objectives] must be a table")


def test_objectives_are_read_and_what_is_not_said_follows_from_the_alert() -> None:
    assert read(SMALL).channels[Channel.SMS].objectives == Objectives(accepted_s=900.0, oldest_s=900.0)
    soon = changed('alert_after = "15m"', 'alert_after = "30s"')
    assert read(soon).channels[Channel.SMS].objectives.published_s == 30.0
    said = """[channel.sms.objectives]
    published_within = "2m"
    accepted_within = "24h"
    received_within = "3d"
    kept = 0.999
    oldest = "24h"
    duplicates = 3
    recovered_within = "7d"
    """
    assert read(f"{SMALL}{said}").channels[Channel.SMS].objectives == Objectives(
        published_s=120.0,
        accepted_s=86_400.0,
        oldest_s=86_400.0,
        received_s=259_200.0,
        kept=0.999,
        duplicates=3,
        recovered_s=604_800.0,
    )


def test_a_category_whose_mail_is_subscribed_to_has_a_public_address() -> None:
    more = "[api]\npublic_url='https://us.example.com/mail/'\n"
    settings = read(f"{SMALL}{more}[category.news]\nno_consent='refuse'\nunsubscribe=true\n")
    assert settings.public_url == "https://us.example.com/mail"
    assert settings.categories["news"].unsubscribe
    assert not settings.categories["payment"].unsubscribe


def test_the_mailbox_of_bounces_is_read_like_everything_else() -> None:
    assert read(SMALL).bounces.imap == ""
    more = "[bounces]\nimap='imap.example.com'\nusername='u'\npassword='env:PW'\nevery='5m'\n"
    bounces = read(SMALL + more, PW="hunter2").bounces
    assert (bounces.imap, bounces.security, bounces.folder, bounces.every_s) == (
        "imap.example.com",
        "tls",
        "INBOX",
        300.0,
    )
    assert bounces.password.reveal() == "hunter2"
    assert "hunter2" not in repr(bounces)


def test_a_cluster_for_the_feed_is_read_like_everything_else() -> None:
    assert read(SMALL).kafka.servers == ""
    more = "[kafka]\nservers='k-1:9093, k-2:9093'\nusername='u'\npassword='env:PW'\n"
    kafka = read(SMALL + more, PW="hunter2").kafka
    assert (kafka.servers, kafka.topic, kafka.security, kafka.mechanism, kafka.timeout_s) == (
        "k-1:9093, k-2:9093",
        "sendonce.events",
        "tls",
        "scram-sha-512",
        20.0,
    )
    assert kafka.password.reveal() == "hunter2"
    assert "hunter2" not in repr(kafka)


def test_an_account_carries_one_channel() -> None:
    other = '[account.m]\nprovider="smtp"\nchannel="email"\nlimits=["1/s"]\nlanes=1\nfrom="a@example.com"\n'
    (problem,) = wrong(changed('account = "text"', 'account = "m"') + other)
    assert problem == "[channel.sms] account = 'm' carries email: name an account for sms"


def test_an_email_account_names_its_sender_and_counts_no_parts() -> None:
    account = '[account.m]\nprovider="smtp"\nchannel="email"\nlimits=["1 part/s"]\nlanes=1\n'
    parts, sender = wrong(SMALL + account)
    assert parts.startswith(
        "[account.m] limits = 1 parts per 1s counts SMS parts, but the account is for email"
    )
    assert sender.startswith('[account.m] from is missing: write from = "Name <you@example.com>"')


def test_a_later_route_that_an_earlier_one_covers_is_an_error() -> None:
    route = "[[route]]\nchannel='sms'\ncategory='payment'\naccount='text'\n"
    (problem,) = wrong(SMALL + route + route)
    assert problem == "[route 2] account is never reached, since [route 1] fits first: remove one"


def test_everything_wrong_is_told_at_once() -> None:
    problems = wrong(
        '[channel.email]\naccount = "mali"\nexpiry = 24\nuncertian = "hold"\n'
        '[account.mail]\nprovider = "smtp"\nchannel = "email"\nlimits = ["x", "y"]\nlanes = 0\nheadroom = 7\n'
        "[category.pay]\n[scheduler]\ngraze = '1s'\n"
    )
    text = "\n".join(problems)
    for told in (
        "[tenant.default] zone is missing",
        "[intake] category is missing",
        "[channel.email] expiry = 24 has no unit",
        "[channel.email] alert_after is missing",
        "[channel.email] uncertain is missing, but uncertian is there",
        "[channel.email] account = 'mali' has no table: write [account.mali]; did you mean mail?",
        "entry 1 'x' is no rate",
        "entry 2 'y' is no rate",
        "[account.mail] lanes = 0",
        "[account.mail] headroom = 7",
        "[category.pay] no_consent is missing",
        "[scheduler] graze is unknown: did you mean grace?",
    ):
        assert told in text
    assert len(problems) == 11, problems


def test_a_broken_account_does_not_make_its_route_look_broken() -> None:
    assert wrong(changed("lanes = 4", "lanes = 0")) == ["[account.text] lanes = 0 must be at least 1"]


def test_nothing_but_a_file_of_nothing() -> None:
    text = "\n".join(wrong(""))
    assert "[channel.email] is missing, and so is [channel.sms]: write at least one" in text
    assert "[tenant.default] zone is missing" in text


def test_a_syntax_error_names_its_line() -> None:
    (problem,) = wrong("[store]\nurl = \n")
    assert problem.startswith("is not TOML: ")
    assert "line 2" in problem


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "account",
                        "channel",
                        "email",
                        "sms",
                        "x",
                        "retry",
                        "limits",
                        "lanes",
                        "expiry",
                        "allow",
                        "url",
                        "route",
                        "steps",
                        "recipients",
                        "redirect",
                        "zone",
                        "default",
                        "tenant",
                        "category",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_document_ends_in_anything_but_settings_or_problems(document: object) -> None:
    from sendonce.config.reading import _Reading

    table = (
        document
        if isinstance(document, dict)
        else {"account": document, "route": document, "store": document}
    )
    with pytest.raises(ConfigErrors):
        _Reading(table, FILE, {}).settings(None)


# The file and the environment


def test_the_file_is_looked_for_in_order(tmp_path: Path) -> None:
    for name in ("sendonce.toml", "variable.toml", "given.toml"):
        (tmp_path / name).write_text(SMALL)
    environ = {CONFIG_VARIABLE: "variable.toml"}
    assert find("given.toml", environ, tmp_path) == tmp_path / "given.toml"
    assert find(None, environ, tmp_path) == tmp_path / "variable.toml"
    assert find(None, {CONFIG_VARIABLE: ""}, tmp_path) == tmp_path / "sendonce.toml"
    assert load(environ={}, folder=tmp_path).path == tmp_path / "sendonce.toml"


@pytest.mark.parametrize(
    ("given", "environ", "names"),
    [
        ("a.toml", {}, "--config"),
        (None, {CONFIG_VARIABLE: "b.toml"}, CONFIG_VARIABLE),
        (None, {}, "sendonce.toml"),
    ],
)
def test_a_file_that_is_not_there_says_what_to_do(
    given: str | None, environ: dict[str, str], names: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="run `sendonce init`") as caught:
        find(given, environ, tmp_path)
    assert names in str(caught.value)
    assert caught.value.code == "config_missing"


def test_a_byte_order_mark_is_no_error_and_another_encoding_is(tmp_path: Path) -> None:
    path = tmp_path / "sendonce.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load(path, environ={}).default_category == "payment"
    path.write_bytes(SMALL.encode() + b"# \xe4")
    with pytest.raises(ConfigErrors, match="is not UTF-8: save the file as UTF-8"):
        load(path, environ={})


def test_variables_override_the_file() -> None:
    text = SMALL + '[store]\nurl = "sqlite:///file.db"\n[log]\nlevel = "error"\n'
    settings = read(text, SENDONCE_STORE_URL="postgresql://u:pw@db/reminders", SENDONCE_LOG_LEVEL="debug")
    assert settings.store_url.dsn.reveal() == "postgresql://u:pw@db/reminders"
    assert settings.log_level == "debug"
    assert read(text, SENDONCE_STORE_URL="", SENDONCE_LOG_LEVEL="").log_level == "error"


def test_a_wrong_variable_names_itself() -> None:
    assert wrong(SMALL, SENDONCE_LOG_LEVEL="loud", SENDONCE_STORE_URL="mysql://u:hunter2@h/d") == [
        (
            "environment: SENDONCE_STORE_URL = 'mysql://****@h/d' is no store URL: write "
            "sqlite:///sendonce.db, or postgresql://user@host/database"
        ),
        "environment: SENDONCE_LOG_LEVEL = 'loud' must be one of debug, info, warning, error",
    ]


# Secrets


@dataclass(frozen=True, slots=True)
class Login:
    password: Secret
    user: str = ""


def place(folder: Path = FILE.parent, **environ: str) -> Place:
    return Place(folder / "sendonce.toml", "account.mail", environ)


def refusals(cls: type, table: Mapping[str, object], where: Place) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        bind(cls, table, where)
    return [line.partition(": [")[2] for line in caught.value.problems]


def test_a_secret_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter 2 \n")
    by_variable = bind(Login, {"password": "env:MAIL_PASSWORD"}, place(MAIL_PASSWORD="hunter2"))
    by_file = bind(Login, {"password": "file:password"}, place(tmp_path))
    assert by_variable.password.reveal() == "hunter2"
    assert by_file.password.reveal() == "hunter 2 "
    assert "hunter" not in f"{by_variable!r} {by_file!r}"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            "hunter2",
            (
                "account.mail] password must not stand in this file: put the value into an environment "
                'variable or a file of its own, and write "env:ACCOUNT_MAIL_PASSWORD" or "file:PATH" here'
            ),
        ),
        (["hunter2"], "account.mail] password must not stand in this file"),
        ("env:NOWHERE", "account.mail] password names the environment variable NOWHERE, which is not set"),
        ("env:EMPTY", "account.mail] password names the environment variable EMPTY, which is empty"),
        ("env:$hunter2", 'account.mail] password must be "env:" and the name of a variable'),
        ("file:nowhere", "account.mail] password names the file /etc/sendonce/nowhere, which cannot be read"),
        ("file:/etc", "account.mail] password names the file /etc, which cannot be read"),
    ],
)
def test_a_secret_that_cannot_be_had_names_itself_and_is_never_shown(value: object, says: str) -> None:
    (refusal,) = refusals(Login, {"password": value}, place(EMPTY=""))
    assert refusal.startswith(says)
    assert "hunter2" not in refusal


@pytest.mark.parametrize(
    ("content", "says"), [(b"\n", "is empty"), (b"\xff", "is not UTF-8"), (b"x" * 70_000, "is too large")]
)
def test_a_secret_file_must_hold_a_credential(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(content)
    (refusal,) = refusals(Login, {"password": "file:password"}, place(tmp_path))
    assert says in refusal


def test_a_credential_in_the_wrong_place_is_not_shown() -> None:
    @dataclass(frozen=True)
    class Odd:
        token_count: int = 0

    assert "hunter2" not in refusals(Odd, {"token_count": "hunter2"}, place())[0]
    settings = read(SMALL + '[account.text.login]\npassword = "hunter2"\n')
    assert "hunter2" not in repr(settings)


def test_a_text_may_come_from_the_environment() -> None:
    assert bind(Login, {"password": "env:P", "user": "env:U"}, place(P="x", U="me")).user == "me"


# The store's address


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("sqlite:///sendonce.db", StoreKind.SQLITE, "/srv/sendonce.db"),
        ("sqlite:///data/a b.db", StoreKind.SQLITE, "/srv/data/a b.db"),
        ("sqlite:////var/a.db", StoreKind.SQLITE, "/var/a.db"),
        ("sqlite:///:memory:", StoreKind.SQLITE, ":memory:"),
        ("postgresql://db/reminders", StoreKind.POSTGRESQL, ""),
        ("postgres://db/reminders", StoreKind.POSTGRESQL, ""),
    ],
)
def test_a_store_url_is_read(text: str, kind: StoreKind, path: str) -> None:
    url = parse_store_url(text, Path("/srv"))
    assert (url.kind, url.path) == (kind, path)


def test_a_store_url_is_shown_without_its_password() -> None:
    url = parse_store_url("postgresql://me:hun@ter/2@db:5432/reminders?sslmode=require", Path("/srv"))
    assert str(url) == "postgresql://****@db:5432/reminders?sslmode=require"
    assert "ter/2" not in repr(url)
    assert "hunter2" not in str(parse_store_url("postgresql://db/x?user=me&password=hunter2", Path("/srv")))


@pytest.mark.parametrize(
    "text",
    [
        "sendonce.db",
        "sqlite:sendonce.db",
        "sqlite://sendonce.db",
        "sqlite:///",
        "sqlite:///a.db?mode=ro",
        "sqlite+x:///a.db",
        "postgresql://",
        "postgresql+psycopg://u:hunter2@db/x",
        "mysql://u:hunter2@db/x",
        "",
    ],
)
def test_what_is_no_store_url_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="sqlite:///") as caught:
        parse_store_url(text, Path("/srv"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://me:hunter2@db/x", "postgresql://db/x?password=hunter2"])
def test_a_password_in_the_store_url_must_not_stand_in_the_file(url: str) -> None:
    (problem,) = wrong(f'{SMALL}[store]\nurl = "{url}"\n')
    assert problem.startswith("[store] url must not hold a password in this file")
    assert "hunter2" not in problem
    assert read(f'{SMALL}[store]\nurl = "env:DB"\n', DB=url).store_url.dsn.reveal() == url


# Binding an adapter's settings


class Tls(StrEnum):
    STARTTLS = "starttls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Auth:
    user: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Adapter:
    host: str = field(metadata={"meaning": "Where it listens.", "missing": 'write host = "smtp.example.com"'})
    port: int = field(default=587, metadata={"min": 1, "max": 65_535})
    from_: str = ""
    timeout_s: float = 30.0
    ratio: float = 0.5
    verify: bool = True
    tls: Tls = Tls.STARTTLS
    method: Literal["POST", "PUT"] = "POST"
    codes: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    ca: Path | None = None
    auth: Auth | None = None
    derived: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.port == 13:
            raise InvalidInput("port 13 is the time of day: write 587", field="port")
        if self.timeout_s == 13:
            raise InvalidInput("must not be 13s", field="timeout_s")
        if self.port == 14:
            raise ValueError("no")


def test_a_table_becomes_a_dataclass() -> None:
    table = {
        "host": "h",
        "port": 25,
        "from": "me",
        "timeout": "1m",
        "ratio": 1,
        "verify": False,
        "tls": "none",
        "method": "PUT",
        "codes": [1, 2],
        "hosts": ("a",),
        "headers": {"A": "b"},
        "secrets": {"k": "env:P"},
        "ca": "ca.pem",
        "auth": {"user": "me", "password": "env:P"},
    }
    assert bind(Adapter, table, place(P="pw")) == Adapter(
        host="h",
        port=25,
        from_="me",
        timeout_s=60.0,
        ratio=1.0,
        verify=False,
        tls=Tls.NONE,
        method="PUT",
        codes=(1, 2),
        hosts=("a",),
        headers={"A": "b"},
        secrets={"k": Secret("pw")},
        ca=FILE.parent / "ca.pem",
        auth=Auth("me", Secret("pw")),
    )
    assert bind(Adapter, {"host": "h"}, place()) == Adapter("h")
    assert bind(Adapter, {"host": "h", "timeout_s": 2.5}, place()).timeout_s == 2.5


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, 'account.mail] host is missing: write host = "smtp.example.com"'),
        ({"hots": "h"}, "account.mail] host is missing, but hots is there: rename it to host"),
        ({"host": "h", "prot": 1}, "account.mail] prot is unknown: did you mean port?"),
        ({"host": "h", "lanse": 1}, "account.mail] lanse is unknown: did you mean lanes?"),
        ({"host": 1}, "account.mail] host = 1 must be text: put it into quotes"),
        ({"host": "a\0b"}, "account.mail] host holds a NUL character: remove it"),
        ({"host": "h", "port": "25"}, "account.mail] port = '25' must be a whole number, without quotes"),
        ({"host": "h", "port": True}, "account.mail] port = true must be a whole number"),
        ({"host": "h", "port": 70_000}, "account.mail] port = 70000 must be at most 65535"),
        ({"host": "h", "port": 13}, "account.mail] port is refused: port 13 is the time of day: write 587"),
        ({"host": "h", "timeout": "13s"}, "account.mail] timeout must not be 13s"),
        ({"host": "h", "port": 14}, "account.mail] is refused: no"),
        (
            {"host": "h", "timeout": 30},
            'account.mail] timeout = 30 has no unit: write "30s" if seconds are meant',
        ),
        ({"host": "h", "verify": 1}, "account.mail] verify = 1 must be true or false, without quotes"),
        ({"host": "h", "tls": "tls"}, "account.mail] tls = 'tls' must be one of starttls, none"),
        ({"host": "h", "method": "GET"}, "account.mail] method = 'GET' must be one of POST, PUT"),
        ({"host": "h", "codes": [1, "2"]}, "account.mail] codes entry 2 = '2' must be a whole number"),
        ({"host": "h", "headers": {"A": 1}}, "account.mail] headers entry A = 1 must be text"),
        ({"host": "h", "headers": []}, "account.mail] headers = [...] must be a table"),
        (
            {"host": "h", "secrets": {"k": "hunter2"}},
            "account.mail] secrets entry k must not stand in this file",
        ),
        ({"host": "h", "auth": {"user": "me"}}, "account.mail.auth] password is missing"),
        (
            {"host": "h", "auth": {"user": "m", "password": "hunter2"}},
            "account.mail.auth] password must not stand",
        ),
        ({"host": "h", "derived": 1}, "account.mail] derived is unknown"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table: Mapping[str, object], says: str) -> None:
    where = Place(FILE, "account.mail", {}, neighbours=("lanes",))
    (refusal,) = refusals(Adapter, table, where)
    assert refusal.startswith(says)
    assert "hunter2" not in refusal


def test_all_that_is_wrong_with_a_table_is_told_at_once() -> None:
    assert len(refusals(Adapter, {"port": "x", "verify": 3, "zzz": 1}, place())) == 4


def test_a_type_that_no_setting_can_have_is_a_mistake_of_the_programmer() -> None:
    @dataclass(frozen=True)
    class Bad:
        when: set[int]

    with pytest.raises(TypeError, match="when"):
        bind(Bad, {}, place())


def test_the_keys_of_the_accounts_are_checked_in_the_same_run() -> None:
    def adapter(account: AccountSettings) -> Adapter:
        return bind(Adapter, account.options, account.place)

    with pytest.raises(ConfigErrors) as caught:
        parse(
            changed("[intake]", "[intake]\nlate = 1") + "[account.text.x]\n", FILE, {}, each_account=adapter
        )
    text = str(caught.value)
    assert "[intake] late is unknown" in text
    assert "[account.text] host is missing" in text
    assert "[account.text] x is unknown" in text


def test_problems_are_collected_and_other_errors_are_not() -> None:
    problems = Problems()
    problems.check()
    for error in (ConfigError("one"), ConfigErrors(["two", "three"]), ConfigError("one")):
        with problems.noted():
            raise error
    with problems.noted(place()):
        raise InvalidInput("four")
    with pytest.raises(InvalidInput), problems.noted():
        raise InvalidInput("let out")
    with pytest.raises(ConfigErrors) as caught:
        problems.check()
    assert caught.value.problems == ("one", "two", "three", f"{FILE}: [account.mail] is refused: four")


def test_did_you_mean() -> None:
    assert did_you_mean("lanse", ["lanes", "limits"]) == "did you mean lanes?"
    assert did_you_mean("zzz", ["lanes", "limits"]) == "known are lanes, limits"


# The template and the documentation


def test_the_template_is_a_configuration() -> None:
    settings = read(template_text())
    assert set(settings.channels) == {Channel.EMAIL, Channel.SMS}
    assert settings.recipients.allow, "a new file writes to nobody but its owner"
    assert not settings.recipients.allows("customer@example.org")


def test_the_template_fits_its_adapters() -> None:
    settings = read(
        template_text(), SMTP_PASSWORD="pw", TWILIO_ACCOUNT_SID=f"AC{'0' * 32}", TWILIO_AUTH_TOKEN="token"
    )
    mail, text = settings.accounts["mail"], settings.accounts["text"]
    assert (mail.provider, text.provider) == ("smtp", "twilio")
    assert bind(SmtpSettings, mail.options, mail.place).password.reveal() == "pw"
    assert bind(TwilioSettings, text.options, text.place).auth_token.reveal() == "token"


def test_the_template_explains_each_setting_that_must_be_written() -> None:
    for key in documented_keys():
        if key.default == "required":
            mark = "# " if key.table in ("route", "transport", "transport.standby") else ""
            assert f"\n{mark}{key.key} = " in template_text(), key


def rows() -> dict[str, list[str]]:
    """The tables of the page, by heading."""
    found: dict[str, list[str]] = {heading: [] for heading in TABLES}
    for key in documented_keys():
        found[key.table].append(f"| `{key.key}` | {key.type} | {key.default} | {key.meaning} |")
    return found


@pytest.mark.parametrize("heading", TABLES)
def test_every_setting_is_documented_as_it_is(heading: str) -> None:
    written = DOCS.read_text(encoding="utf-8").partition(f"### `{heading}`\n")[2].partition("\n#")[0]
    assert written, f"docs/configuration.md has no section for {heading}"
    lines = [line for line in written.splitlines() if line.startswith("| `")]
    expected = rows()[heading]
    assert lines == expected, "write into docs/configuration.md:\n" + "\n".join(expected)
    assert (TABLES[heading].__doc__ or "") in written


def test_every_setting_has_a_meaning_and_every_required_one_says_what_to_write() -> None:
    assert all(key.meaning.endswith(".") for key in documented_keys())
    assert len({(key.table, key.key) for key in documented_keys()}) == len(documented_keys())


def test_every_variable_is_documented() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for variable, overrides in documented_variables().items():
        assert f"| `{variable}` | `{overrides}` |" in page
    assert f"`{CONFIG_VARIABLE}`" in page


def test_an_adapter_documents_itself_the_same_way() -> None:
    shown = document(Adapter, "account.*")
    host = shown[0]
    defaults = {each.key: each.default for each in shown}
    assert defaults["timeout"] == "30s"
    assert defaults["verify"] == "true"
    assert defaults["secrets"] == defaults["auth"] == defaults["codes"] == "not set"
    assert (host.key, host.type, host.default, host.meaning) == (
        "host",
        "text",
        "required",
        "Where it listens.",
    )


def test_the_words_of_the_log_are_those_of_telemetry() -> None:
    assert set(LOG_LEVELS) == set(telemetry.LEVELS)
    assert set(LOG_FORMATS) == set(telemetry.FORMATS)
