"""The clock of a database server as a process knows it: bounded by each answer, and never set back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sendonce.store.server_clock import STEP_US, ServerClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND
MS = 1_000


@dataclass
class Boot:
    """A boot clock that a test sets."""

    at: int = 5_000 * SECOND

    def __call__(self) -> int:
        return self.at


@dataclass
class Server:
    """Reads its calendar half-way between question and answer."""

    boot: Boot
    ahead: int = 1_700_000_000 * SECOND
    correction: int = 0

    def asked(self, clock: ServerClock, *, there: int = 0, back: int = 0) -> int:
        asked_at = self.boot.at
        self.boot.at += there
        calendar = self.boot.at + self.ahead
        self.boot.at += back
        return clock.observe(calendar, self.correction, asked_at)

    @property
    def true(self) -> int:
        return self.boot.at + self.ahead


@pytest.fixture
def boot() -> Boot:
    return Boot()


@pytest.fixture
def server(boot: Boot) -> Server:
    return Server(boot)


@pytest.fixture
def clock(boot: Boot) -> ServerClock:
    return ServerClock(boot)


def test_it_goes_on_between_answers(clock: ServerClock, server: Server, boot: Boot) -> None:
    assert server.asked(clock) == 0
    boot.at += 7 * SECOND
    assert clock.now() == clock.steady() == server.true


def test_it_is_late_by_no_more_than_the_way_back_and_never_early(clock: ServerClock, server: Server) -> None:
    server.asked(clock, there=3 * MS, back=40 * MS)
    assert clock.steady() == server.true - 40 * MS
    server.asked(clock, there=MS, back=2 * MS)  # a better answer
    assert clock.steady() == server.true - 2 * MS
    server.asked(clock, there=500 * MS, back=500 * MS)  # a worse one takes nothing away
    assert clock.steady() == server.true - 2 * MS


def test_drift_is_followed(clock: ServerClock, server: Server, boot: Boot) -> None:
    server.asked(clock)
    for drift in (30 * MS, -30 * MS):
        boot.at += HOUR
        server.ahead += drift
        assert server.asked(clock, there=MS, back=MS) == 0
        assert abs(clock.steady() - server.true) <= 2 * MS


def test_a_calendar_set_back_is_found_and_corrected(clock: ServerClock, server: Server, boot: Boot) -> None:
    server.asked(clock)
    boot.at += 10 * SECOND
    before = clock.steady()
    server.ahead -= HOUR
    step = server.asked(clock, there=MS, back=MS)
    assert 0 <= HOUR - step <= MS
    assert clock.steady() == before + 2 * MS  # the answer was not taken in
    server.correction += step
    assert server.asked(clock) == 0
    assert abs(clock.steady() - (before + 2 * MS)) <= MS
    assert abs(clock.now() - server.true) <= MS  # the calendar is the one that was set


def test_others_take_over_the_correction(boot: Boot, server: Server) -> None:
    one, other = ServerClock(boot), ServerClock(boot)
    for clock in (one, other):
        server.asked(clock)
    server.ahead -= HOUR
    server.correction += server.asked(one)
    assert server.asked(other) == server.asked(one) == 0
    assert one.steady() == other.steady()


def test_a_calendar_set_forward_is_let_through(clock: ServerClock, server: Server) -> None:
    server.asked(clock)
    before = clock.steady()
    server.ahead += HOUR
    assert server.asked(clock) == 0
    assert clock.steady() == before + HOUR
    server.ahead -= HOUR  # and put right again: steady goes on from there
    step = server.asked(clock)
    assert step == HOUR
    server.correction += step
    server.asked(clock)
    assert clock.steady() == before + HOUR


def test_a_small_step_back_is_drift(clock: ServerClock, server: Server) -> None:
    server.asked(clock)
    server.ahead -= STEP_US
    assert server.asked(clock) == 0
    assert clock.steady() == server.true


def test_what_the_store_remembers_is_not_gone_behind(clock: ServerClock, server: Server, boot: Boot) -> None:
    """A server that took over, or a restored one, whose calendar is an hour behind."""
    clock.remember(server.true)
    server.ahead -= HOUR
    step = server.asked(clock)
    assert step == HOUR
    server.correction += step
    assert server.asked(clock) == 0
    assert clock.steady() == boot.at + server.ahead + HOUR


def test_what_the_store_remembers_of_long_ago_changes_nothing(clock: ServerClock, server: Server) -> None:
    clock.remember(server.true - HOUR)
    assert server.asked(clock) == 0
    assert clock.steady() == server.true
