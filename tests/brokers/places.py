"""Transports over the servers of these tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sendonce.ports.queue import Transport
from sendonce.ports.secret import Secret
from sendonce.queues.nats import NatsSettings, NatsTransport
from sendonce.queues.rabbitmq import RabbitmqSettings, RabbitmqTransport
from sendonce.queues.sqs import SqsSettings, SqsTransport
from tests.brokers.servers import Nats, Rabbitmq, Server, Sqs

KINDS: Final[Mapping[str, Callable[[], Server]]] = {"rabbitmq": Rabbitmq, "nats": Nats, "sqs": Sqs}


def open_transport(server: Server, *, prefix: str = "sendonce", redeliver_s: float = 60.0) -> Transport:
    """A transport over that server, with a prefix of its own."""
    match server:
        case Rabbitmq():
            return RabbitmqTransport(RabbitmqSettings(url=Secret(server.url), prefix=prefix))
        case Nats():
            return NatsTransport(NatsSettings(url=Secret(server.url), prefix=prefix, redeliver_s=redeliver_s))
        case _:
            return SqsTransport(
                SqsSettings(
                    region="eu-west-1",
                    access_key_id="testing",
                    secret_access_key=Secret("testing"),
                    url=server.url,
                    prefix=prefix,
                    allow_plain_http=True,
                    redeliver_s=redeliver_s,
                )
            )
