"""Group commit: many units, few transactions.

The first unit that comes starts a commit; those that arrive while it runs wait together for the
next one. So there is no timer and no waiting when idle, and one flush to disk carries everybody when
busy. Each unit stands in a savepoint of its own: one that raises takes back its own writes only.

A commit closes after `HOLD_S`, so that no process keeps the others from the database for long.

The writer is a port of its own: the simulator runs units inline, in the order that its seed gives.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from sendonce.core.errors import StoreUnavailable
from sendonce.ports.store import Tx

T = TypeVar("T")

HOLD_S: Final = 0.004
UNITS_MAX: Final = 256


class TransactionLost(Exception):
    """The database ended the transaction under a unit (a full disk does that): all units of the group
    are undone. Its cause is what they are answered with."""


class Transactions(Protocol):
    """What the writer needs of a database's only writing connection. May raise `StoreError`."""

    def begin(self) -> None: ...
    def run_unit(self, unit: Callable[[Tx], Any]) -> Any:
        """Run a unit in a savepoint; on an exception its writes are undone and it is raised.

        Raises `TransactionLost` where the database gave up the whole transaction with it.
        """
        ...

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


@dataclass(slots=True)
class _Job:
    unit: Callable[[Tx], Any]
    future: Future[Any]


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
    past it, `submit` blocks, which is the back-pressure.
    """

    def __init__(self, connect: Callable[[], Transactions], *, queue_max: int = 4096) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(queue_max)
        self._closed = False
        self._lock = threading.Lock()
        opened: Future[Transactions] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(connect, opened), name="store-writer", daemon=True
        )
        self._thread.start()
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

    def _work(self, connect: Callable[[], Transactions], opened: Future[Transactions]) -> None:
        try:
            transactions = connect()
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(transactions)
        while (job := self._jobs.get()) is not None:
            _commit([job], transactions, self._next)

    def _next(self) -> _Job | None:
        try:
            job = self._jobs.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._jobs.put(None)  # closing: finish this group, then stop
        return job


def _commit(jobs: list[_Job], transactions: Transactions, more: Callable[[], _Job | None]) -> None:
    """Run a group of units in one transaction, then answer all of them.

    `jobs` holds the first one; `more` gives further ones while they fit.
    """
    answers: list[tuple[_Job, Any]] = []
    failures: list[tuple[_Job, BaseException]] = []
    try:
        transactions.begin()
        until = time.monotonic() + HOLD_S
        job: _Job | None = jobs[0]
        while job is not None:
            try:
                answers.append((job, transactions.run_unit(job.unit)))
            except TransactionLost:
                raise
            except BaseException as error:
                failures.append((job, error))
            job = more() if len(jobs) < UNITS_MAX and time.monotonic() < until else None
            if job is not None:
                jobs.append(job)
        transactions.commit()
    except BaseException as error:
        transactions.rollback()
        if isinstance(error, TransactionLost) and error.__cause__ is not None:
            error = error.__cause__
        answered = {id(job) for job, _ in failures}
        for job in jobs:
            if id(job) not in answered:
                job.future.set_exception(error)
    else:
        for job, answer in answers:
            job.future.set_result(answer)
    for job, failure in failures:
        job.future.set_exception(failure)
