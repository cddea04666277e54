"""The sink on Kafka, against the mock cluster inside librdkafka. What that has not (logins, TLS, rights,
missing topics) is tried by what the client says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from sendonce.app import App
from sendonce.config import KafkaSettings, parse, template_text
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.pipeline.feed import Feed
from sendonce.pipeline.hand_on import HandOn
from sendonce.ports.secret import Secret
from sendonce.ports.sink import Record, SinkUnavailable
from sendonce.sinks.kafka import KafkaSink
from tests.integration.world import TENANT, World
from tests.kafka_cluster import TOPIC, Cluster


def settings(servers: str, **changes: object) -> KafkaSettings:
    given: dict[str, object] = {
        "servers": servers,
        "topic": "sendonce.events",
        "security": "none",
        "username": "",
        "password": Secret(""),
        "mechanism": "scram-sha-512",
        "ca_file": None,
        "timeout_s": 20.0,
    }
    return KafkaSettings(**{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def records(*numbers: int) -> list[Record]:
    return [Record(f"r:c-{number % 3}:sms", f"id-{number}", b"{}") for number in numbers]


def test_a_page_is_there_when_it_returns_each_key_in_one_partition_and_in_order(cluster: Cluster) -> None:
    sink = KafkaSink(settings(cluster.servers))
    assert sink.check("default") == f"topic {TOPIC}, 4 partitions"
    sink.publish("default", records(*range(29)))
    sink.close()
    sink.publish("default", records(29))
    sink.close()
    found = cluster.records()
    assert len({(key, partition) for key, _, partition in found}) == 3
    for number in range(3):
        ids = [id_ for key, id_, _ in found if key == f"r:c-{number}:sms"]
        assert ids == [f"id-{each}" for each in range(number, 30, 3)]


def test_the_feed_arrives_and_a_cluster_that_was_away_loses_nothing(cluster: Cluster) -> None:
    world = World("K")
    away = KafkaSink(settings("127.0.0.1:1", timeout_s=0.1))
    key = world.accepted("r-1")
    hand = HandOn(world.store, Feed(world.store), away, tenant=TENANT, process="p-1")
    with pytest.raises(SinkUnavailable, match=r"Kafka did not confirm"):
        hand.step()
    away.close()
    hand.resign()
    back = KafkaSink(settings(cluster.servers))
    hand = HandOn(world.store, Feed(world.store), back, tenant=TENANT, process="p-2")
    hand.step()
    back.close()
    ((found, id_, _),) = cluster.records()
    assert (found, id_) == (key, f"{key}/{len(world.lines(key))}")


def test_a_cluster_that_nobody_finds_is_named() -> None:
    sink = KafkaSink(settings("127.0.0.1:1", timeout_s=0.2))
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1 does not answer"):
        sink.check("default")
    sink.close()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "is not there: create it"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "allow the user Describe and Write on it"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "the login failed, see username and password"),
        (KafkaError._SSL, "see security and ca_file"),
    ],
)
def test_what_a_person_must_mend_is_said_with_the_topic(code: int, says: str) -> None:
    sink = KafkaSink(settings("127.0.0.1:1"))
    assert says in str(sink._failed(TOPIC, KafkaError(code)))
    assert isinstance(sink._failed(TOPIC, KafkaError(code)), ConfigError)
    # A call that has no answer only timed out; why, the client said beside it.
    sink._noted(KafkaError(KafkaError._TRANSPORT))
    sink._noted(KafkaError(code))
    sink._noted(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert says in str(sink._failed(TOPIC, KafkaError(KafkaError._TRANSPORT)))
    assert says in str(sink._unconfirmed(TOPIC, KafkaError(KafkaError._MSG_TIMED_OUT)))


@pytest.mark.parametrize("tenant", ["a b", "a/b", "ä", "x" * 250])
def test_a_tenant_that_makes_no_topic_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidInput, match="makes no topic"):
        KafkaSink(settings("127.0.0.1:1")).publish(tenant, [])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("PLAINTEXT", None, None)),
        ({"security": "tls", "ca_file": Path("ca.pem")}, ("SSL", None, "ca.pem")),
        ({"security": "tls", "username": "u", "password": Secret("p")}, ("SASL_SSL", "SCRAM-SHA-512", None)),
        ({"username": "u", "password": Secret("p"), "mechanism": "plain"}, ("SASL_PLAINTEXT", "PLAIN", None)),
    ],
)
def test_what_is_configured_is_what_the_client_gets(
    changes: dict[str, object], expected: tuple[str, str | None, str | None]
) -> None:
    made = KafkaSink(settings("h:9092", **changes))._configuration()
    got = (made["security.protocol"], made.get("sasl.mechanisms"), made.get("ssl.ca.location"))
    assert got == expected
    assert (made["enable.idempotence"], made["message.timeout.ms"]) == (True, 20_000)


def test_an_authority_that_cannot_be_read_is_a_mistake_in_the_configuration() -> None:
    sink = KafkaSink(settings("127.0.0.1:1", security="tls", ca_file=Path("/nowhere/ca.pem")))
    with pytest.raises(ConfigError, match=r"\[kafka\] .*ssl.ca.location"):
        sink.check("default")


def test_who_configures_no_cluster_has_none(tmp_path: Path) -> None:
    environ = {"SMTP_PASSWORD": "x", "TWILIO_ACCOUNT_SID": f"AC{'0' * 32}", "TWILIO_AUTH_TOKEN": "x"}
    with App(parse(template_text(), tmp_path / "sendonce.toml", environ)) as app:
        assert app.kafka() is None
    text = f'{template_text()}\n[kafka]\nservers = "127.0.0.1:9092"\nsecurity = "none"\n'
    with App(parse(text, tmp_path / "sendonce.toml", environ)) as app:
        assert isinstance(app.kafka(), KafkaSink)
