"""A Kafka of one's own, for tests: the mock cluster inside librdkafka, brokers that speak the protocol, in
this process. It has no logins, no TLS and no rights, and makes each topic that it is asked for."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

TOPIC = "sendonce.events.default"


class Cluster:
    """Two brokers. They are gone when nobody holds the client that has them."""

    def __init__(self) -> None:
        self._home = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 2, "log_level": 0}
        )
        brokers = self._home.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def records(self) -> list[tuple[str, str, int]]:
        """All that there are, as (key, id, partition), in the order of each partition."""
        reader = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "test",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        partitions = set(reader.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions)
        reader.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
        found: list[tuple[str, str, int]] = []
        while partitions:
            message = reader.poll(10)
            assert message is not None
            partition = message.partition()
            assert partition is not None
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                partitions.remove(partition)
                continue
            (header,) = message.headers() or []
            key = message.key()
            assert isinstance(key, bytes)
            assert isinstance(header[1], bytes)
            found.append((key.decode(), header[1].decode(), partition))
        reader.close()
        return found

    def wait_for(self, count: int) -> list[tuple[str, str, int]]:
        """As `records`, once there are so many."""
        until = time.monotonic() + 60
        while len(found := self.records()) < count:
            assert time.monotonic() < until, found
            time.sleep(0.1)
        return found
