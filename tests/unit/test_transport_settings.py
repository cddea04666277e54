"""Transports in the configuration: each key is documented, each mistake named, no client needed in vain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sendonce.app import TRANSPORTS, make_transport
from sendonce.config import BrokerSettings, ConfigErrors, Place, document, parse, template_text
from sendonce.config.reading import BROKERS
from sendonce.core.errors import ConfigError
from sendonce.queues.nats import NatsSettings
from sendonce.queues.rabbitmq import RabbitmqSettings
from sendonce.queues.sqs import SqsSettings
from sendonce.queues.versions import check_version

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/transports.md").read_text(encoding="utf-8")
SETTINGS = {"rabbitmq": RabbitmqSettings, "nats": NatsSettings, "sqs": SqsSettings}
ENVIRON = {
    "SMTP_PASSWORD": "x",
    "TWILIO_ACCOUNT_SID": f"AC{'0' * 32}",
    "TWILIO_AUTH_TOKEN": "x",
    "R": "amqp://u:hidden@localhost/",
    "N": "nats://localhost",
    "H": "http://localhost",
}


SQS = (
    '[transport]\nkind = "sqs"\nregion = "eu-west-1"\naccess_key_id = "AKIA1234"\nsecret_access_key = "env:R"'
)


def read(text: str) -> tuple[BrokerSettings, ...]:
    settings = parse(f"{template_text()}\n{text}", ROOT / "sendonce.toml", ENVIRON)
    return settings.transport.brokers


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        make_all(text)
    return str(error.value)


def make_all(text: str) -> None:
    for broker in read(text):
        make_transport(broker)


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_page_has_every_key_as_it_is(kind: str) -> None:
    section = PAGE.split(f"\n## {kind}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{key.key}` | {key.type} | {key.default} | {key.meaning} |"
        for key in document(SETTINGS[kind], "transport")
    ]


def test_a_broker_and_its_standby_are_read() -> None:
    brokers = read(
        '[transport]\nkind = "rabbitmq"\nurl = "env:R"\n[transport.standby]\nkind = "nats"\nurl = "env:N"\n'
    )
    assert [make_transport(broker).kind for broker in brokers] == ["rabbitmq", "nats"]
    assert read("") == ()
    assert tuple(sorted(TRANSPORTS)) == BROKERS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[transport]\nurl = "env:R"', "[transport] kind is missing"),
        ('[transport]\nkind = "rabbit"', "is no broker: did you mean rabbitmq?"),
        ('[transport]\nkind = "kafka"', "is no broker: known are nats, rabbitmq, sqs"),
        ('[transport]\nkind = "rabbitmq"', "[transport] url is missing"),
        ('[transport]\nkind = "rabbitmq"\nurl = "amqp://u:hidden@h/"', "must not stand in this file"),
        ('[transport]\nkind = "rabbitmq"\nurl = "env:N"', "must begin with amqps://"),
        ('[transport]\nkind = "nats"\nurl = "env:H"', "must begin with tls://"),
        ('[transport]\nkind = "nats"\nurl = "env:N"\nprefix = "a.b"', "letters, digits"),
        ('[transport]\nkind = "nats"\nurl = "env:N"\nredelivr = "5s"', "did you mean redeliver?"),
        (SQS.replace("eu-west-1", "Ireland"), "must be a region"),
        (f'{SQS}\nurl = "http://localhost"', "must be https://"),
        ('[transport]\nkind = "nats"\nurl = "env:N"\n[transport.standby]\nkind = "nats"\nurl = "env:N"',
         "is that of [transport] too"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(text: str, said: str) -> None:
    message = refused(text)
    assert said in message
    assert "hidden" not in message


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sendonce.queues.nats", None)
    broker = BrokerSettings("nats", {}, Place(ROOT / "sendonce.toml", "transport", {}))
    with pytest.raises(ConfigError, match=r"needs the extra `nats` .*pip install 'sendonce\[nats\]'"):
        make_transport(broker)


def test_who_names_no_broker_needs_no_client_of_one() -> None:
    program = (
        "import sys\nfor name in ('aio_pika', 'aiormq', 'nats'): sys.modules[name] = None\n"
        "import sendonce, sendonce.app, sendonce.cli.main, sendonce.queues.sqs"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("told", ["3.9.27", "2.11", "", "unknown", "v4"])
def test_a_server_that_is_too_old_or_tells_no_version_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="RabbitMQ"):
        check_version("RabbitMQ", told, (3, 10))


@pytest.mark.parametrize("told", ["3.10.8", "3.11", "4.0.1", "10.0"])
def test_a_server_that_is_new_enough_is_not(told: str) -> None:
    check_version("RabbitMQ", told, (3, 10))


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigErrors) as error:
        read('[transport]\nkind = "x"\n[transport.standby]\nkind = "y"')
    assert len(error.value.problems) == 2
