"""Group commit: many units, few transactions.

The first unit that comes starts a commit; those that arrive while it runs wait together for the
next one. So there is no timer and no waiting when idle, and one flush to disk carries everybody when
busy. Each unit stands in a savepoint of its own: one that raises takes back its own writes only.

A commit closes after `HOLD_S`, so that no process keeps the others from the database for long.

Where several processes write at once, locks are taken in one order inside a unit, but two units of a group
may want theirs in another order than those of another process. So only the first unit of a group may wait
for a lock; a later one that meets one is put off (`PutOff`) and begins the next group. What the database
gives up all the same (`RunAgain`: a deadlock, a connection that was lost before the commit) is run again,
and told each time, with its reason: none is to be expected, and who sees many wants to know.

The writer is a port of its own: the simulator runs units inline, in the order that its seed gives.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from sendonce import metrics, telemetry
from sendonce.core.errors import StoreError, StoreUnavailable
from sendonce.ports.store import Tx
from sendonce.telemetry import tell

T = TypeVar("T")

HOLD_S: Final = 0.004
AGAIN_S: Final = 0.01
LOOK_AGAIN_S: Final = 1.0
"""A writer that nobody woke looks by itself: see `ThreadWriter._take`."""
UNITS_MAX: Final = 256
RUNS_MAX: Final = 5
"""How often a group is run, and how often one unit is."""


class TransactionLost(Exception):
    """The database ended the transaction under a unit (a full disk does that): all units of the group
    are undone. Its cause is what they are answered with."""


class RunAgain(TransactionLost):
    """The same, for a reason that another try may not meet; nothing of the group happened. Its cause is
    what the units are answered with when trying has not helped."""


class PutOff(Exception):
    """A unit met what another process is doing: a lock, where it is not the first of its group and may not
    wait, or a row that it was about to make itself. Undone, to be the first of the next group, where it
    finds what the other did. Its cause is the answer when that does not help either."""


class Transactions(Protocol):
    """What the writer needs of a database's only writing connection. May raise `StoreError`."""

    def begin(self) -> None: ...
    def run_unit(self, unit: Callable[[Tx], Any]) -> Any:
        """Run a unit in a savepoint; on an exception its writes are undone and it is raised.

        Raises `TransactionLost` or `RunAgain` where the database gave up the whole transaction with it,
        and `PutOff` where another process was in the way of this unit alone.
        """
        ...

    def commit(self) -> None:
        """Returns when the group is durable, and raises when it is not: never by guess."""
        ...

    def announce(self) -> None:
        """Tell what the units of the group that was just committed announced. Never raises."""
        ...

    def rollback(self) -> None: ...


@dataclass(slots=True)
class _Job:
    unit: Callable[[Tx], Any]
    future: Future[Any]
    put_off: int = 0


class Writer(Protocol):
    def submit(self, unit: Callable[[Tx], T]) -> Future[T]: ...
    def close(self) -> None: ...


class InlineWriter:
    """Runs each unit at once, in the caller's thread, in a commit of its own."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._lock = threading.RLock()

    def submit(self, unit: Callable[[Tx], T]) -> Future[T]:
        job = _Job(unit, Future())
        with self._lock:
            _commit([job], self._transactions, lambda: None)
        return job.future

    def close(self) -> None:
        pass


class ThreadWriter:
    """One thread that owns the connection, and a queue before it.

    `connect` runs on that thread: the connection belongs to it. `queue_max` bounds what may wait;
    past it, `submit` blocks, which is the back-pressure. `wait` for the connection here, and raise what is
    wrong with it; else the first unit is answered with that, and the next one tries again.
    """

    def __init__(
        self, connect: Callable[[], Transactions], *, queue_max: int = 4096, wait: bool = True
    ) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(queue_max)
        self._closed = False
        self._lock = threading.Lock()
        self._connect = connect
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(opened if wait else None,), name="store-writer", daemon=True
        )
        self._thread.start()
        if wait:
            opened.result()

    def submit(self, unit: Callable[[Tx], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(StoreUnavailable("the store is closed"))
                return future
            self._jobs.put(_Job(unit, future))
        return future

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self, opened: Future[None] | None) -> None:
        transactions: Transactions | None = None
        if opened is not None:
            try:
                transactions = self._connect()
            except BaseException as error:
                opened.set_exception(error)
                return
            opened.set_result(None)
        while (job := self._take()) is not None:
            if transactions is None:
                try:
                    transactions = self._connect()
                except BaseException as error:
                    _answer([job], error)
                    continue
            _commit([job], transactions, self._next)

    def _take(self) -> _Job | None:
        """The next job; None at the end.

        A Ctrl-C that strikes while `put` wakes this thread leaves the lock that it waited on in the list of
        those to be woken. The next `put` then wakes that one, and nobody: what is mended in
        github.com/python/cpython/issues/92530 is the case in which the thread had not run yet.
        """
        while True:
            with suppress(queue.Empty):
                return self._jobs.get(timeout=LOOK_AGAIN_S)

    def _next(self) -> _Job | None:
        try:
            job = self._jobs.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._jobs.put(None)  # closing: finish this group, then stop
        return job


def _commit(jobs: list[_Job], transactions: Transactions, more: Callable[[], _Job | None]) -> None:
    """Run a group of units, and then whatever of it must be run again or was put off.

    `jobs` holds the first one; `more` gives further ones while they fit.
    """
    runs = 0
    while jobs:
        try:
            jobs = _run_group(jobs, transactions, more)
            runs = 0
        except RunAgain as error:
            runs += 1
            tell(telemetry.RUN_AGAIN, reason=_reason(error), units=len(jobs), tries=runs)
            if runs >= RUNS_MAX:
                _answer(jobs, error.__cause__ or error)
                return
            more = _nothing_more
            # Whoever stood in the way comes through first, instead of meeting again at the same place.
            time.sleep(runs * AGAIN_S * (0.5 + random.random()))  # noqa: S311 (not a secret)


def _run_group(jobs: list[_Job], transactions: Transactions, more: Callable[[], _Job | None]) -> list[_Job]:
    """Run units in one transaction, then answer all of them; the one that was put off is given back.

    Raises `RunAgain` when nothing happened and nobody was answered: `jobs` then holds all of them.
    """
    answers: list[tuple[_Job, Any]] = []
    failures: list[tuple[_Job, BaseException]] = []
    put_off: list[_Job] = []
    committed = False
    waiting = iter(jobs[1:])
    began = time.monotonic()
    try:
        transactions.begin()
        until = time.monotonic() + HOLD_S
        job: _Job | None = jobs[0]
        while job is not None:
            try:
                answers.append((job, transactions.run_unit(job.unit)))
            except TransactionLost:
                raise
            except PutOff as error:
                job.put_off += 1
                if job.put_off < RUNS_MAX:
                    put_off = [job, *waiting]
                    break
                failures.append((job, error.__cause__ or error))
            except BaseException as error:
                failures.append((job, error))
            job = next(waiting, None)
            if job is None and len(jobs) < UNITS_MAX and time.monotonic() < until:
                job = more()
                if job is not None:
                    jobs.append(job)
        transactions.commit()
    except RunAgain:
        transactions.rollback()
        metrics.STORE_FAILURES.add()
        raise
    except BaseException as error:
        transactions.rollback()
        metrics.STORE_FAILURES.add()
        if isinstance(error, TransactionLost) and error.__cause__ is not None:
            error = error.__cause__
        failed = {id(job) for job, _ in failures}
        _answer([job for job in jobs if id(job) not in failed], error)
        put_off = []
    else:
        committed = True
        metrics.STORE_COMMIT.observe((), time.monotonic() - began)
        metrics.STORE_UNITS.add((), len(answers))
        for job, answer in answers:
            with suppress(InvalidStateError):
                job.future.set_result(answer)
    for job, failure in failures:
        _answer([job], failure)
    if committed:
        transactions.announce()  # after the answers, which wait for nobody's ears
    return put_off


def _reason(error: RunAgain) -> str:
    cause = error.__cause__
    return cause.code if isinstance(cause, StoreError) else type(cause or error).__name__


def _answer(jobs: list[_Job], error: BaseException) -> None:
    for job in jobs:
        with suppress(InvalidStateError):  # nobody waits for it any more: it was cancelled
            job.future.set_exception(error)


def _nothing_more() -> _Job | None:
    return None
