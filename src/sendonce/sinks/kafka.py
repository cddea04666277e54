"""The feed on Kafka: a topic for each tenant, the delivery key as the key of each record.

    topic    PREFIX.TENANT, which is there already: partitions, replicas and retention are its owner's affair
    key      the delivery key, by the partitioner of the Java clients
    header   `sendonce-id`: the event's id

- The producer is idempotent and asks for all replicas: what it sends again by itself arrives once, in order.
- A page counts when each of its records was confirmed. Else the producer is given up with all that it still
  holds, and the page is given again: so a record may stand there twice, with the same id.
- Rights in Kafka are given by topic, so tenants share none.

Sources: CONFIGURATION.md of librdkafka (enable.idempotence, message.timeout.ms, partitioner);
KIP-679 (an idempotent producer needs no right of its own since Kafka 3.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sendonce.config import KafkaSettings
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.ports.sink import Record, SinkUnavailable

CHECK_S: Final = 10.0
GRACE_S: Final = 1.0
"""By so much a page is waited for longer than the client waits for each of its records."""
TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

_MISSING: Final = "is not there: create it, with the partitions and the retention you need"
_WRONG: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: _MISSING,
    KafkaError._UNKNOWN_TOPIC: _MISSING,
    KafkaError.TOPIC_EXCEPTION: "is no name of a topic: write another `topic`",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "is not ours to write: allow the user Describe and Write on it",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "needs IdempotentWrite on clusters before Kafka 3.0: allow it",
    KafkaError.SASL_AUTHENTICATION_FAILED: "cannot be asked for: the login failed, see username and password",
    KafkaError._AUTHENTICATION: "cannot be asked for: the login failed, see username, password and mechanism",
    KafkaError._SSL: "cannot be asked for: TLS failed, see security and ca_file",
}
"""What a person must mend, as a sentence about the topic."""


class KafkaSink:
    """`ports.sink.Sink` on a Kafka cluster."""

    name = "kafka"

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._producer: Producer | None = None
        self._last: KafkaError | None = None

    def check(self, tenant: str) -> str:
        topic = self._topic(tenant)
        try:
            found = (
                self._open().list_topics(topic, timeout=min(CHECK_S, self.settings.timeout_s)).topics[topic]
            )
        except KafkaException as error:
            raise self._failed(topic, _error_of(error)) from None
        if found.error is not None:
            raise self._failed(topic, found.error)
        return f"topic {topic}, {len(found.partitions)} partitions"

    def publish(self, tenant: str, records: Sequence[Record]) -> None:
        topic = self._topic(tenant)
        failures: list[KafkaError] = []

        def reported(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = self._open()
        try:
            for each in records:
                producer.produce(
                    topic,
                    key=each.key.encode(),
                    value=each.body,
                    headers=[("sendonce-id", each.id.encode())],
                    on_delivery=reported,
                )
            left = producer.flush(self.settings.timeout_s + GRACE_S)
        except KafkaException as error:
            self._give_up()
            raise self._unconfirmed(topic, _error_of(error)) from None
        if left or failures:
            self._give_up()
            raise self._unconfirmed(topic, failures[0] if failures else None)

    def close(self) -> None:
        self._give_up()

    def _open(self) -> Producer:
        if self._producer is None:
            self._last = None
            try:
                self._producer = Producer(self._configuration())
            except KafkaException as error:
                raise ConfigError(f"[kafka] {_error_of(error).str()}: correct it") from None
        return self._producer

    def _configuration(self) -> dict[str, object]:
        settings = self.settings
        tls = settings.security == "tls"
        protocol = (
            f"SASL_{'SSL' if tls else 'PLAINTEXT'}" if settings.username else "SSL" if tls else "PLAINTEXT"
        )
        made: dict[str, object] = {
            "bootstrap.servers": settings.servers,
            "client.id": "sendonce",
            "security.protocol": protocol,
            "enable.idempotence": True,
            "message.timeout.ms": round(settings.timeout_s * 1_000),
            "partitioner": "murmur2_random",
            "error_cb": self._noted,
            "log_level": 2,  # a line for each try to connect, several a second; errors come to `error_cb`
        }
        if settings.username:
            made["sasl.mechanisms"] = settings.mechanism.upper()
            made["sasl.username"] = settings.username
            made["sasl.password"] = settings.password.reveal()
        if settings.ca_file is not None:
            made["ssl.ca.location"] = str(settings.ca_file)
        return made

    def _noted(self, error: KafkaError) -> None:
        """What went wrong on the way: a call only knows that it had no answer."""
        if self._last is None or error.code() in _WRONG:
            self._last = error

    def _give_up(self) -> None:
        """So that nothing of a page that is given again leaves after it."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def _topic(self, tenant: str) -> str:
        topic = f"{self.settings.topic}.{tenant}"
        if not TOPIC.fullmatch(topic):
            raise InvalidInput(
                f"tenant {tenant!r:.80} makes no topic: at most 249 letters, digits, '.', '_' and '-'",
                field="tenant",
            )
        return topic

    def _failed(self, topic: str, error: KafkaError) -> ConfigError | SinkUnavailable:
        told = self._last if self._last is not None and self._last.code() in _WRONG else error
        why = _WRONG.get(told.code())
        if why is not None:
            return ConfigError(f"[kafka] topic {topic!r} {why}")
        return SinkUnavailable(f"Kafka at {self.settings.servers} does not answer ({told.name()})")

    def _unconfirmed(self, topic: str, error: KafkaError | None) -> SinkUnavailable:
        told = self._last or error
        why = _WRONG.get(told.code()) if told is not None else None
        name = told.name() if told is not None else "time-out"
        return SinkUnavailable(
            f"Kafka did not confirm: topic {topic!r} {why}" if why else f"Kafka did not confirm ({name})"
        )


def _error_of(error: KafkaException) -> KafkaError:
    told: KafkaError = error.args[0]
    return told
