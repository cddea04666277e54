"""Brokers die, and are exchanged, while deliveries go out: each arrives once, counted at the provider's door.

In the short form with few deliveries and few deaths; the long form has those of docs/transports.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.brokers.places import KINDS
from tests.brokers.servers import Nats, Rabbitmq
from tests.brokers.town import LONG, town

KILLS = 20 if LONG else 2
DELIVERIES = 20_000 if LONG else 600
BY_KIND = {"rabbitmq": DELIVERIES, "nats": DELIVERIES, "sqs": DELIVERIES // 5}
"""What stands in for SQS takes a tenth of a second for ten hints, and forgets all of them when it dies."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_is_killed_again_and_again_loses_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    """With nothing to fall back on: what is sent was hinted."""
    with KINDS[kind]() as server, town(tmp_path, [server], rate=200) as it:
        count = BY_KIND[kind]
        it.schedule(count)
        for number in range(KILLS):
            it.work_until((number + 1) * count // (KILLS + 2))
            server.kill()
            server.start()
        it.finish()
        assert set(it.claims()) == {"hint"}


def test_a_broker_that_stays_away_costs_time_and_no_delivery(tmp_path: Path) -> None:
    """The store's own queue takes over; when the broker is back, so are the hints."""
    with Nats() as server, town(tmp_path, [server], rate=200, take_over="1s") as it:
        it.schedule(200)
        it.work_until(200)
        server.kill()
        it.schedule(200)
        it.work_until(400)
        server.start()
        it.wait(lambda: it.told("transport_back") >= 2, "the broker is back for both workers")
        before = it.claims()
        it.schedule(200)
        it.finish()
        made = it.claims()
        assert before["store"] >= 150, before
        assert made["hint"] - before["hint"] >= 150, made


def test_transports_are_exchanged_under_load_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """From one broker to another and back, to the store's own queue, and to a broker again."""
    rate, batch = (400, DELIVERIES // 5) if LONG else (60, 150)
    with Rabbitmq() as first, Nats() as second, town(tmp_path, [first, second], rate=rate) as it:
        for kind, left in (("nats", "rabbitmq"), ("rabbitmq", "nats"), ("store", "rabbitmq"), ("nats", "")):
            it.schedule(batch)
            it.work_until(it.scheduled - batch + 1)
            it.command("transport", "switch", kind, "--reason", "a test")
            if left:
                it.command("transport", "drain", left)
        it.schedule(batch)
        it.finish()
        told = json.loads(it.command("--json", "transport", "list"))
        assert told["in_force"] == "nats"
        made = it.claims()
        assert made["hint"] > batch, made
        assert made["store"] > batch // 5, made
