"""`python -m tests.crash.intake`: a process that takes reminders in, at a pace, and takes some of them back.

It stands where an application would: it schedules through `sendonce.Client`, in turns on the store and over
HTTP, asks again after every error and every restart, and cancels a few, before they are due and in the middle
of their calls. What it was told is in its journal.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

from sendonce import telemetry
from sendonce.client import Client
from sendonce.core.errors import NotFound, StoreUnavailable
from sendonce.pipeline.intake import Verdict
from tests.crash.journal import Journal, lines

BATCH_S: Final = 0.5
AGAIN_S: Final = 0.2
CANCELLED: Final = 0.06
"""The share of reminders that are taken back: half of them when they are scheduled, long before they are due,
half about when they go out."""
LATER_S: Final = 4.0
PER_BATCH: Final = {"keyed": 10, "asked": 5, "plain": 5}
"""How many reminders a batch has for each account: half of what the account may send."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Reminders that are scheduled in one call: always the same for the same number and due time."""

    number: int
    due: datetime

    def reminders(self) -> list[dict[str, object]]:
        return list(self._reminders())

    def _reminders(self) -> Iterator[dict[str, object]]:
        for account, count in PER_BATCH.items():
            for place in range(count):
                number = self.number * count + place
                reminder: dict[str, object] = {
                    "reminder": f"{account}-{number}",
                    "customer": f"customer-{number}",
                    "due": self.due + timedelta(seconds=LATER_S if place == 0 else 0.0),
                    "template": "parcel",
                }
                if account == "plain":
                    reminder["email"] = f"customer-{number}@example.com"
                else:
                    reminder["phone"] = f"+1202{2_000_000 + number}"
                if account == "asked":
                    reminder["category"] = "asked"
                yield reminder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.intake")
    parser.add_argument("config", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("api")
    parser.add_argument("key", type=Path)
    asked = parser.parse_args()
    telemetry.configure("info", "json", process=f"intake-{os.getpid()}")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    key = asked.key.read_text("utf-8")
    with Client(asked.config, environ={}) as near, Client(asked.api, key=key) as far:
        Intake((near, far), asked.journal, asked.seed).run(stopping)


class Intake:
    def __init__(self, ways: Sequence[Client], journal: Path, seed: int) -> None:
        self._ways = ways
        self._seed = seed
        self._number, self._unanswered = _left_by_those_before(journal)
        self._journal = Journal(journal)

    def run(self, stopping: threading.Event) -> None:
        if self._unanswered is not None:  # whether it is in, nobody knows: asking again changes nothing
            self._schedule(self._unanswered)
        while not stopping.is_set():
            begun = time.monotonic()
            batch = Batch(self._number, datetime.now(UTC))
            self._number += 1
            self._journal.write(what="schedule", number=batch.number, due=batch.due.isoformat())
            self._schedule(batch)
            self._cancel_some(batch.number)
            stopping.wait(max(0.0, begun + BATCH_S - time.monotonic()))

    def _way(self, number: int) -> Client:
        return self._ways[number % len(self._ways)]

    def _schedule(self, batch: Batch) -> None:
        reminders = batch.reminders()
        while True:
            try:
                results = self._way(batch.number).schedule(reminders)
                break
            except StoreUnavailable:
                time.sleep(AGAIN_S)
        keys = [key for result in results for key in result.keys]
        wrong = [
            f"{result.reminder}: {result.verdict}: {result.why}"
            for result in results
            if result.verdict not in (Verdict.ACCEPTED, Verdict.UNCHANGED)
        ]
        self._journal.write(what="scheduled", number=batch.number, keys=keys, wrong=wrong)

    def _cancel_some(self, number: int) -> None:
        chance = Random(self._seed * 1_000_003 + number)
        for account, count in PER_BATCH.items():
            if chance.random() < CANCELLED * count / 2:
                self._cancel(f"{account}-{number * count}", number)  # due later
            if number >= 1 and chance.random() < CANCELLED * count / 2:
                self._cancel(f"{account}-{number * count - chance.randint(1, count - 1)}", number)  # due now

    def _cancel(self, reminder: str, number: int) -> None:
        while True:
            try:
                done = self._way(number).cancel(reminder=reminder, reason="returned")
                break
            except StoreUnavailable:
                time.sleep(AGAIN_S)
            except NotFound:  # what was answered is never forgotten: the count will say that it is lost
                return
        words = {answer.key: answer.word.value for answer in done.answers}
        self._journal.write(what="cancelled", words=words)


def _left_by_those_before(journal: Path) -> tuple[int, Batch | None]:
    """The number of the next batch, and the batch that was asked for without an answer."""
    last: Batch | None = None
    number = 0
    for line in lines(journal):
        if line["what"] == "schedule":
            number = int(line["number"]) + 1
            last = Batch(int(line["number"]), datetime.fromisoformat(line["due"]))
        elif line["what"] == "scheduled":
            last = None
    return number, last


@dataclass(frozen=True, slots=True)
class Answers:
    """What the journal says of all that was asked.

    scheduled  the delivery keys that were answered as taken in
    cancelled  the word that was answered, by delivery key
    wrong      refusals, a sentence each: there should be none
    """

    scheduled: frozenset[str]
    cancelled: Mapping[str, str]
    wrong: tuple[str, ...]


def answers(journal: Path) -> Answers:
    scheduled: set[str] = set()
    cancelled: dict[str, str] = {}
    wrong: list[str] = []
    for line in lines(journal):
        if line["what"] == "scheduled":
            scheduled.update(line["keys"])
            wrong += line["wrong"]
        elif line["what"] == "cancelled":
            cancelled.update(line["words"])
    return Answers(frozenset(scheduled), cancelled, tuple(wrong))


if __name__ == "__main__":
    main()
