"""Group commit: who shares a transaction, who falls with it, and who does not.

The database is a stand-in that keeps a log, and fails where a test says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.ports.store import Tx
from sendonce.store import writer as module
from sendonce.store.writer import (
    RUNS_MAX,
    UNITS_MAX,
    InlineWriter,
    PutOff,
    RunAgain,
    ThreadWriter,
    TransactionLost,
    Writer,
)

TX = cast(Tx, object())


@dataclass(slots=True)
class Log:
    """`Transactions` that write down what was asked. `fail`: step -> what it raises, once."""

    lines: list[str] = field(default_factory=list)
    fail: dict[str, BaseException] = field(default_factory=dict)
    threads: set[int] = field(default_factory=set)
    at_announcing: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._step("begin")

    def run_unit(self, unit: Callable[[Tx], Any]) -> Any:
        self._step("unit")
        return unit(TX)

    def commit(self) -> None:
        self._step("commit")

    def announce(self) -> None:
        self.at_announcing()

    def rollback(self) -> None:
        self._step("rollback")

    def _step(self, name: str) -> None:
        self.threads.add(threading.get_ident())
        self.lines.append(name)
        if name in self.fail:
            raise self.fail.pop(name)


@dataclass(slots=True)
class Held:
    """A writer whose thread is held inside a first unit, so that what comes next waits together."""

    writer: ThreadWriter
    log: Log
    go: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> Future[None]:
        entered = threading.Event()

        def unit(tx: Tx) -> None:
            entered.set()
            assert self.go.wait(30)

        future = self.writer.submit(unit)
        assert entered.wait(30)
        return future


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Groups are never closed for time here, so that who waits together commits together."""
    monkeypatch.setattr(module, "HOLD_S", 60.0)
    log = Log()
    return Held(ThreadWriter(lambda: log), log)


def raising(error: BaseException) -> Callable[[Tx], None]:
    def unit(tx: Tx) -> None:
        raise error

    return unit


def test_units_that_wait_share_one_commit(held: Held) -> None:
    first = held.hold()
    futures = [held.writer.submit(lambda tx, n=n: n) for n in range(5)]  # type: ignore[misc]
    assert not any(future.done() for future in futures)
    held.go.set()
    assert [future.result(30) for future in futures] == list(range(5))
    assert first.result(30) is None
    held.writer.close()
    assert held.log.lines == ["begin", *["unit"] * 6, "commit"]
    assert len(held.log.threads) == 1
    assert threading.get_ident() not in held.log.threads


def test_news_follows_each_commit_and_nobody_waits_for_it(held: Held) -> None:
    answered: list[bool] = []
    first = held.hold()
    together: list[Future[Any]] = [
        held.writer.submit(lambda tx: "x"),
        held.writer.submit(raising(ValueError("its own"))),
    ]
    held.log.at_announcing = lambda: answered.append(all(future.done() for future in (first, *together)))
    held.go.set()
    held.writer.close()
    assert answered == [True]
    assert held.log.lines == ["begin", "unit", "unit", "unit", "commit"]


@pytest.mark.parametrize("step", ["begin", "unit", "commit"])
def test_without_a_commit_there_is_no_news(step: str) -> None:
    log = Log(fail={step: TransactionLost()})
    announced: list[str] = []
    log.at_announcing = lambda: announced.append("told")
    writer = InlineWriter(log)
    assert writer.submit(lambda tx: None).exception() is not None
    assert announced == []
    assert writer.submit(lambda tx: None).exception() is None
    assert announced == ["told"]


def test_a_group_is_bounded(held: Held) -> None:
    held.hold()
    futures = [held.writer.submit(lambda tx: None) for _ in range(3 * UNITS_MAX)]
    held.go.set()
    for future in futures:
        future.result(30)
    held.writer.close()
    sizes = [group.count("unit") for group in _groups(held.log.lines)]
    assert sum(sizes) == 3 * UNITS_MAX + 1
    assert max(sizes) <= UNITS_MAX


def test_a_group_does_not_keep_the_database_for_long(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes want it too: once its time is over, what still waits gets the next commit."""
    monkeypatch.setattr(module, "HOLD_S", 0.0)
    held.go.set()
    for future in [held.writer.submit(lambda tx: None) for _ in range(3)]:
        future.result(30)
    held.writer.close()
    assert held.log.lines == ["begin", "unit", "commit"] * 3


def test_a_unit_that_raises_falls_alone(held: Held) -> None:
    held.hold()
    error = ValueError("mine")
    before = held.writer.submit(lambda tx: "before")
    bad = held.writer.submit(raising(error))
    worse = held.writer.submit(raising(StoreUnavailable("ask again")))
    after = held.writer.submit(lambda tx: "after")
    held.go.set()
    assert before.result(30) == "before"
    assert bad.exception(30) is error
    assert isinstance(worse.exception(30), StoreUnavailable)
    assert after.result(30) == "after"
    held.writer.close()
    assert "rollback" not in held.log.lines


def test_a_commit_that_fails_fails_its_whole_group_and_no_other(held: Held) -> None:
    first = held.hold()
    together: list[Future[Any]] = [held.writer.submit(lambda tx: "x") for _ in range(3)]
    own = ValueError("mine")
    bad = held.writer.submit(raising(own))
    error = StoreUnavailable("disk full")

    def arm(tx: Tx) -> None:
        held.log.fail["commit"] = error

    armed = held.writer.submit(arm)
    held.go.set()
    assert first.exception(30) is error
    assert [future.exception(30) for future in (*together, armed)] == [error] * 4
    assert bad.exception(30) is own
    assert held.writer.submit(lambda tx: "well again").result(30) == "well again"
    held.writer.close()


def test_a_transaction_that_the_database_gave_up_falls_as_a_whole(held: Held) -> None:
    """Then nothing of the group can be kept: whoever was answered "done" would have been lied to."""
    held.hold()
    before = held.writer.submit(lambda tx: "before")
    reason = StoreUnavailable("the disk is full")

    def lost(tx: Tx) -> None:
        raise TransactionLost from reason

    bad = held.writer.submit(lost)
    held.go.set()
    assert before.exception(30) is reason
    assert bad.exception(30) is reason
    assert held.writer.submit(lambda tx: "well again").result(30) == "well again"
    held.writer.close()
    assert held.log.lines.count("rollback") == 1


def test_a_database_that_cannot_begin_fails_the_unit_and_runs_nothing() -> None:
    log = Log(fail={"begin": StoreUnavailable("locked")})
    writer = InlineWriter(log)
    ran: list[int] = []
    future = writer.submit(lambda tx: ran.append(1))
    assert isinstance(future.exception(), StoreUnavailable)
    assert ran == []
    assert log.lines == ["begin", "rollback"]
    assert writer.submit(lambda tx: "well again").result() == "well again"


def test_inline_units_run_at_once_each_in_a_commit_of_its_own() -> None:
    log = Log()
    writer: Writer = InlineWriter(log)
    assert writer.submit(lambda tx: 1).done()
    assert writer.submit(lambda tx: 2).result() == 2
    assert log.lines == ["begin", "unit", "commit"] * 2
    assert log.threads == {threading.get_ident()}


def test_closing_finishes_what_was_handed_in_and_takes_nothing_more(held: Held) -> None:
    held.hold()
    futures = [held.writer.submit(lambda tx: "done") for _ in range(20)]
    closing = threading.Thread(target=held.writer.close)
    closing.start()
    held.go.set()
    closing.join(30)
    assert [future.result(30) for future in futures] == ["done"] * 20
    late = held.writer.submit(lambda tx: "late")
    assert isinstance(late.exception(), StoreUnavailable)
    assert "closed" in str(late.exception())
    held.writer.close()


@pytest.mark.parametrize("error", [None, ValueError("its own fault"), StoreUnavailable("the disk is full")])
def test_who_does_not_wait_any_more_stops_nobody(held: Held, error: Exception | None) -> None:
    """A task that was cancelled cancels its future; the writer has others to answer."""
    first = held.hold()
    if isinstance(error, StoreUnavailable):
        held.log.fail["commit"] = error
    gone = held.writer.submit(raising(error) if isinstance(error, ValueError) else counting([], "gone"))
    assert gone.cancel()
    held.go.set()
    assert isinstance(first.exception(30), StoreUnavailable | None)
    assert held.writer.submit(counting([], "next")).result(30) == 1
    held.writer.close()


def test_a_full_queue_holds_back_whoever_hands_in() -> None:
    writer = ThreadWriter(Log, queue_max=2)
    held = Held(writer, Log())
    held.hold()
    waiting = [writer.submit(lambda tx: 1), writer.submit(lambda tx: 2)]
    third: list[Future[int]] = []
    handing_in = threading.Thread(target=lambda: third.append(writer.submit(lambda tx: 3)))
    handing_in.start()
    handing_in.join(0.05)
    assert handing_in.is_alive()
    held.go.set()
    handing_in.join(30)
    assert [future.result(30) for future in (*waiting, *third)] == [1, 2, 3]
    writer.close()


def test_a_database_that_cannot_be_opened_is_told_to_whoever_opens() -> None:
    def connect() -> Log:
        raise StoreUnavailable("no such folder")

    with pytest.raises(StoreUnavailable, match="no such folder"):
        ThreadWriter(connect)


def test_a_database_that_is_opened_by_its_first_unit_is_tried_again_by_the_next() -> None:
    tries: list[int] = []

    def connect() -> Log:
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailable("no free connection")
        return Log()

    writer = ThreadWriter(connect, wait=False)
    with pytest.raises(StoreUnavailable, match="no free connection"):
        writer.submit(lambda tx: 1).result(30)
    assert [writer.submit(lambda tx, n=number: n).result(30) for number in (2, 3)] == [2, 3]  # type: ignore[misc]
    assert len(tries) == 2
    writer.close()


def test_a_database_that_nobody_used_is_never_opened() -> None:
    tries: list[int] = []
    ThreadWriter(lambda: tries.append(1) or Log(), wait=False).close()  # type: ignore[func-returns-value]
    assert tries == []


def _groups(lines: list[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for line in lines:
        if line == "begin":
            groups.append([])
        groups[-1].append(line)
    return groups


# What the database gives up, and what would have to wait


def counting(calls: list[str], name: str, *errors: BaseException) -> Callable[[Tx], int]:
    """Raises each of these on its first runs; then says how often it ran."""
    left = list(errors)

    def unit(tx: Tx) -> int:
        calls.append(name)
        if left:
            raise left.pop(0)
        return calls.count(name)

    return unit


def again(cause: Exception) -> RunAgain:
    error = RunAgain()
    error.__cause__ = cause
    return error


def test_a_group_that_the_database_gave_up_is_run_again_from_the_start(held: Held) -> None:
    first = held.hold()
    calls: list[str] = []
    a = held.writer.submit(counting(calls, "a"))
    b = held.writer.submit(counting(calls, "b", again(StoreUnavailable("deadlock"))))
    held.go.set()
    assert (first.result(30), a.result(30), b.result(30)) == (None, 2, 2)
    assert calls == ["a", "b", "a", "b"]
    assert held.log.lines.count("rollback") == 1
    assert held.log.lines[-1] == "commit"
    held.writer.close()


def test_each_time_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(module, "tell", lambda event, **fields: told.append((event.name, fields)))
    first = again(StoreUnavailable("waited for each other", code="store_deadlock"))
    second = again(StoreUnavailable("the line broke", code="store_unreachable"))
    assert InlineWriter(Log()).submit(counting([], "a", first, second)).result() == 3
    assert told == [
        ("run_again", {"reason": "store_deadlock", "units": 1, "tries": 1}),
        ("run_again", {"reason": "store_unreachable", "units": 1, "tries": 2}),
    ]


def test_a_unit_that_failed_by_itself_is_run_again_with_its_group() -> None:
    """What it decided on is another transaction's business by then."""
    log = Log(fail={"commit": again(StoreUnavailable("serialization failure"))})
    calls: list[str] = []
    future = InlineWriter(log).submit(counting(calls, "a", ValueError("the first time")))
    assert future.result() == 2


def test_running_again_has_an_end_and_its_reason_is_the_answer() -> None:
    log, calls = Log(), list[str]()
    errors = [again(StoreUnavailable(f"deadlock {number}")) for number in range(RUNS_MAX)]
    future = InlineWriter(log).submit(counting(calls, "a", *errors))
    with pytest.raises(StoreUnavailable, match=f"deadlock {RUNS_MAX - 1}"):
        future.result()
    assert len(calls) == RUNS_MAX
    assert log.lines.count("rollback") == RUNS_MAX


def test_who_would_have_to_wait_is_put_off_and_holds_up_nobody(held: Held) -> None:
    first = held.hold()
    calls: list[str] = []
    a = held.writer.submit(counting(calls, "a"))
    b = held.writer.submit(counting(calls, "b", PutOff()))
    c = held.writer.submit(counting(calls, "c"))
    held.go.set()
    assert [future.result(30) for future in (first, a, b, c)] == [None, 1, 2, 1]
    assert calls == ["a", "b", "b", "c"]
    assert [line for line in held.log.lines if line != "unit"] == ["begin", "commit", "begin", "commit"]
    held.writer.close()


def test_being_put_off_has_an_end_and_takes_nobody_along(held: Held) -> None:
    first = held.hold()
    error = PutOff()
    error.__cause__ = StoreUnavailable("the key is there already")
    calls: list[str] = []
    a = held.writer.submit(counting(calls, "a", *[error] * RUNS_MAX))
    b = held.writer.submit(counting(calls, "b"))
    held.go.set()
    with pytest.raises(StoreUnavailable, match="there already"):
        a.result(30)
    assert (first.result(30), b.result(30)) == (None, 1)
    assert calls.count("a") == RUNS_MAX
    held.writer.close()


def test_who_was_put_off_falls_with_nobody_elses_commit(held: Held) -> None:
    first = held.hold()
    held.log.fail["commit"] = StoreUnavailable("the disk is full")
    b = held.writer.submit(counting([], "b", PutOff()))
    held.go.set()
    with pytest.raises(StoreUnavailable, match="full"):
        first.result(30)
    with pytest.raises(StoreUnavailable, match="full"):
        b.result(30)
    held.writer.close()


class BrokenOff(deque[Any]):
    """Those to be woken. A Ctrl-C strikes when the first one was woken, and not struck off yet."""

    struck = False

    def remove(self, value: Any) -> None:
        if not self.struck:
            self.struck = True
            raise KeyboardInterrupt
        super().remove(value)


def test_a_writer_that_a_ctrl_c_let_sleep_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next wake goes to a lock that nobody waits on any more. An import hung at its end for that."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.05)
    log = Log()
    writer = ThreadWriter(lambda: log)
    woken = writer._jobs.not_empty
    until(lambda: len(woken._waiters) == 1)  # type: ignore[attr-defined]
    with writer._jobs.mutex:
        woken._waiters = BrokenOff(woken._waiters)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        writer.submit(lambda tx: None)
    until(lambda: log.lines[-1:] == ["commit"] and len(woken._waiters) > 1)  # type: ignore[attr-defined]
    assert writer.submit(lambda tx: 7).result(timeout=10) == 7
    writer.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.001)
