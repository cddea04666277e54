"""Every key of every adapter is documented, with its meaning and its default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sendonce import config
from sendonce.app import PROVIDERS, make_provider
from sendonce.config.binding import keys_of
from sendonce.core.promise import Promise
from sendonce.providers.api import ApiSettings
from sendonce.providers.file import FileSettings
from sendonce.providers.http import HttpSettings, Rule
from sendonce.providers.http_events import HttpEvents
from sendonce.providers.http_question import HttpQuestion
from sendonce.providers.mailgun import MailgunSettings
from sendonce.providers.notify import NotifySettings
from sendonce.providers.postmark import PostmarkSettings
from sendonce.providers.resend import ResendSettings
from sendonce.providers.sendgrid import SendgridSettings
from sendonce.providers.ses import SesSettings
from sendonce.providers.sinch import SinchSettings
from sendonce.providers.smtp import SmtpSettings
from sendonce.providers.twilio import TwilioSettings
from sendonce.providers.vonage import VonageSettings

PAGE = (Path(__file__).parents[2] / "docs/providers.md").read_text(encoding="utf-8")
SECTIONS = {
    "## smtp": SmtpSettings,
    "## twilio": TwilioSettings,
    "## Keys that every vendor's API has": ApiSettings,
    "## resend": ResendSettings,
    "## postmark": PostmarkSettings,
    "## ses": SesSettings,
    "## sinch": SinchSettings,
    "## sendgrid": SendgridSettings,
    "## mailgun": MailgunSettings,
    "## vonage": VonageSettings,
    "## notify": NotifySettings,
    "## http": HttpSettings,
    "### Rules": Rule,
    "### Events by configuration": HttpEvents,
    "### Asking by configuration": HttpQuestion,
    "## console and file": FileSettings,
}
COMMON = {key.name for key in keys_of(ApiSettings)} - {"base_url"}
VENDORS = [
    name for name, kind in SECTIONS.items() if issubclass(kind, ApiSettings) and kind is not ApiSettings
]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_lists_exactly_the_keys_that_are_read(section: str) -> None:
    text = PAGE.split(f"\n{section}\n")[1].split("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    listed = {row[0].strip("`"): row[-1] for row in rows if len(row) == 4}
    read = {key.name: key.meaning for key in keys_of(SECTIONS[section])}
    if section in VENDORS:  # what all of them have stands in a section of its own, but for base_url
        read = {name: meaning for name, meaning in read.items() if name not in COMMON}
    elif SECTIONS[section] is ApiSettings:
        read = {name: meaning for name, meaning in read.items() if name in COMMON}
    assert listed == read
    assert all(listed.values())


EXAMPLES = ["## smtp", *VENDORS, "## http"]
ENVIRON = {
    "SMTP_PASSWORD": "x",
    "SMS_TOKEN": "x",
    "TWILIO_ACCOUNT_SID": "AC" + "0" * 32,
    "TWILIO_AUTH_TOKEN": "x",
    "RESEND_API_KEY": "x",
    "POSTMARK_SERVER_TOKEN": "x",
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "x",
    "SENDGRID_API_KEY": "x",
    "MAILGUN_API_KEY": "x",
    "SINCH_SERVICE_PLAN_ID": "plan1",
    "SINCH_API_TOKEN": "x",
    "VONAGE_API_KEY": "abcd1234",
    "VONAGE_API_SECRET": "x",
    "NOTIFY_API_KEY": "live-26785a09-ab16-4eb0-8407-a37497a57506-3d844edf-8d35-48ac-975b-e847b4f122b0",
}
AROUND = """
[tenant.default]
zone = "Etc/UTC"
[channel.{channel}]
account = "{account}"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"
[intake]
category = "shipment"
[category.shipment]
no_consent = "allow"
"""


def promise_of_example(section: str) -> Promise:
    """What the account promises that the page shows, as a whole configuration makes it."""
    example = re.search(r"```toml\n(.*?)```", PAGE.split(f"\n{section}\n")[1], re.DOTALL)
    assert example is not None
    ((name, account),) = tomllib.loads(example[1])["account"].items()
    text = example[1] + AROUND.format(channel=account["channel"], account=name)
    settings = config.parse(text, Path("/sendonce.toml"), ENVIRON)
    return make_provider(settings.accounts[name]).promise


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_examples_can_be_read_and_the_table_says_their_class(section: str) -> None:
    promise = promise_of_example(section)
    (row,) = [
        row
        for row in rows_of("| adapter | channel | class |")
        if row[0].startswith(f"`{section.removeprefix('## ')}`")
        and (section != "## http" or "with a key" in row[0])
    ]
    assert row[2].split(",")[0] == promise.provider_class
    assert ("echo" in row[2]) >= promise.echo


def test_every_provider_has_a_row() -> None:
    named = {
        word for row in rows_of("| adapter | channel | class |") for word in re.findall(r"`(\w+)`", row[0])
    }
    assert named == set(PROVIDERS)
    limited = {row[0].strip("`") for row in rows_of("| adapter | a 429 closes |")}
    assert limited == {section.removeprefix("## ") for section in VENDORS}
    told = {row[0].strip("`") for row in rows_of("| adapter | how a call is known")}
    assert told == {name for name, adapter in PROVIDERS.items() if adapter.events is not None}


def rows_of(head: str) -> list[list[str]]:
    """The cells of a table, by how its first line begins."""
    table = PAGE[PAGE.index(f"\n{head}") + 1 :].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
