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
DELIVERIES = 20_000 if LONG else 900


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_is_killed_again_and_again_loses_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    count = DELIVERIES
    with KINDS[kind]() as server, town(tmp_path, [server]) as it:
        it.schedule(count)
        for number in range(KILLS):
            it.work_until((number + 1) * count // (KILLS + 2))
            server.kill()
            server.start()
        it.finish()
        assert it.claims()["hint"] > count // 10, it.claims()


def test_a_broker_that_stays_away_costs_time_and_no_delivery(tmp_path: Path) -> None:
    """The store's own queue takes over; when the broker is back, so are the hints."""
    with Nats() as server, town(tmp_path, [server], take_over="1s") as it:
        it.schedule(200)
        it.work_until(200)
        server.kill()
        it.schedule(200)
        it.work_until(400)
        server.start()
        it.wait(lambda: it.told("transport_back") > 0, "the broker is back")
        it.schedule(200)
        it.finish()
        made = it.claims()
        assert made["store"] >= 150, made
        assert made["hint"] >= 350, made


def test_transports_are_exchanged_twice_under_load_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """From one broker to another, to the store's own queue, and back."""
    with Rabbitmq() as first, Nats() as second, town(tmp_path, [first, second]) as it:
        it.schedule(DELIVERIES)
        for number, (kind, left) in enumerate(
            (("nats", "rabbitmq"), ("rabbitmq", "nats"), ("store", "rabbitmq"), ("nats", ""))
        ):
            it.work_until((number + 1) * DELIVERIES // 6)
            it.command("transport", "switch", kind, "--reason", "a test")
            if left:
                it.command("transport", "drain", left)
        it.finish()
        told = json.loads(it.command("--json", "transport", "list"))
        assert told["in_force"] == "nats"
        assert it.told("transport_switched") >= 4
        made = it.claims()
        assert made["hint"] > DELIVERIES // 3, made
        assert made["store"] > 0, made
