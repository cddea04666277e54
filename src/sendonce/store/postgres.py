"""The store for many machines: a schema of a PostgreSQL database.

Each process has a writing connection on a thread of its own, a second one for what is written beside the
rest (a worker's outcomes), and a few reading ones. Transactions are READ COMMITTED and short; what is decided
on is locked by the statement that reads it. Every transaction brings its own settings along (timeouts, search
path), so that a pooler may give it any connection.

**A commit whose answer is lost** is asked about, never guessed. Each writing connection has a row in
`writer` with the number of its last commit, and the commit itself raises it from n - 1 to n. When the
connection breaks under it, the next one tries to raise the row from n - 1 to n + 1. Either that waits for the
old transaction and finds n: it happened. Or it succeeds: it did not happen, and cannot happen any more, since
a commit that is still on its way would look for n - 1. No number of a transaction or a server could say this:
they may be given again after a crash or on another server. Where nothing can be asked, the answer is
`CommitUnknown`.

What else differs from SQLite: the clock is the server's (`server_clock`); other processes write at the same
time, so a unit may be run again, or be put off to the next commit (`writer`).
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import RawCursor, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from sendonce.core.errors import CommitUnknown, ConfigError, StoreUnavailable
from sendonce.ports.clock import Clock
from sendonce.ports.store import Tx
from sendonce.store import deliveries, events, reminders
from sendonce.store.listeners import Listener
from sendonce.store.origin import anchor, new_secret, secret_of
from sendonce.store.postgres_batches import Batch, Gives, batch_of
from sendonce.store.postgres_errors import AGAIN, FORGOTTEN, is_lost, ours, translated
from sendonce.store.postgres_lineage import COLUMNS, Lineage
from sendonce.store.postgres_news import News, announce, channel_of
from sendonce.store.postgres_schema import prepare_schema
from sendonce.store.server_clock import ServerClock
from sendonce.store.session import Parameters, Tuple
from sendonce.store.statements import by_place, expand
from sendonce.store.transaction import SqlTx
from sendonce.store.writer import InlineWriter, PutOff, RunAgain, ThreadWriter, Writer

T = TypeVar("T")

CONNECT_S: Final = 10
LOCK_S: Final = 5.0
"""How long a unit waits for another process's transaction, which is over in milliseconds."""
LATER_LOCK_S: Final = 0.01
"""The same for a unit that is not the first of its group: see `writer.PutOff`."""
STATEMENT_S: Final = 15.0
IDLE_S: Final = 10.0
READ_S: Final = 300.0
ASK_S: Final = 15.0
"""How long to ask about a commit whose answer was lost: a restart of the server takes less."""
AWAY_S: Final = 0.05
"""A server that was just not reached is not tried for each unit that waits: a try may take `CONNECT_S`."""
MUTE_S: Final = 5.0
"""News is not told for so long after it could not be: each try may hold up the next commit a little."""
READERS_MAX: Final = 4
PLANNER: Final[Mapping[str, str]] = {
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"),
}
"""Of transactions that write: row by row along an index, whatever is known of the tables, and planned once.

A new store has no statistics. What was planned for it read, locked and sorted all that was due to publish
fifty, and did so until the tables were analysed.
"""
DAY_US: Final = 86_400_000_000
FORGET_DAYS: Final = 30
"""For so long a writer's row is kept after its last commit."""


def _since(column: str) -> str:
    """An instant of the server as ours: microseconds, 0 for never."""
    return f"coalesce((extract(epoch FROM {column}) * 1000000)::bigint, 0)"


def _given(sequence: str) -> str:
    """The highest number that a sequence gave; 0: none yet."""
    return f"(SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence})"


def _writers(table: str) -> str:
    """Whoever added to a table holds this lock until its commit can be seen (PostgreSQL manual, 13.3.1)."""
    return (
        "(SELECT virtualtransaction AS who FROM pg_locks WHERE locktype = 'relation' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        f"AND relation = '{table}'::regclass AND mode = 'RowExclusiveLock') AS writing"
    )


_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_COLUMNS: Final = {
    "delivery": deliveries.COLUMNS,
    "reminder": reminders.COLUMNS,
    "event": events.COLUMNS,
    "look_of_state": deliveries.LOOK_OF_STATE,
    "last_entry": "(SELECT last_value FROM ledger_id_seq)",
    "ledger_given": _given("ledger_id_seq"),
    "ledger_writers": _writers("ledger"),
    "facet_given": _given("facet_number_seq"),
    "facet_writers": _writers("facet"),
    "audit_given": _given("audit_id_seq"),
    "audit_writers": _writers("audit"),
    "server_tables": (
        "(SELECT relname AS name, n_live_tup AS alive, n_dead_tup AS dead, n_tup_upd AS changed, "
        "n_tup_hot_upd AS hot, pg_total_relation_size(relid) AS bytes, "
        f"{_since('greatest(last_vacuum, last_autovacuum)')} AS tidied_at, "
        f"{_since('greatest(last_analyze, last_autoanalyze)')} AS analysed_at "
        "FROM pg_stat_user_tables WHERE schemaname = current_schema()) AS care"
    ),
    # Only what this user may see; whoever may read all statistics (pg_read_all_stats) sees everybody.
    "server_holders": (
        f"(SELECT pid, application_name AS program, {_since('xact_start')} AS since FROM pg_stat_activity "
        "WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend') AS care"
    ),
}
# Sideways: each row is locked when it is its turn, and no more than are asked for. And only an index of the
# agenda can lead to them, whatever the planner believes about the sizes of the tables.
_EACH: Final = f"LATERAL (SELECT {deliveries.COLUMNS} FROM delivery WHERE id = delivery_id FOR UPDATE"
_WRITING: Final = {
    **_COLUMNS,
    "for_update": "FOR UPDATE",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "lock_each": f"{_EACH}) AS delivery",
    "skip_each": f"{_EACH} SKIP LOCKED) AS delivery",
    "waiting_unlocked": (
        "AND delivery_id IN (SELECT delivery_id FROM agenda WHERE via = :account AND look < 0 AND at <= :now "
        "FOR UPDATE SKIP LOCKED)"
    ),
}
_READING: Final = {
    **_COLUMNS,
    "for_update": "",
    "skip_locked": "",
    "lock_each": "delivery",
    "skip_each": "delivery",
    "waiting_unlocked": "",
}

Connection = psycopg.Connection[tuple[Any, ...]]


def open_store(url: str, clock: Clock, *, inline: bool = False, server_clock: bool = True) -> PostgresStore:
    """Open the store behind `postgresql://user@host/database`, or create it in a database that exists.

    `?schema=NAME` names another schema than "sendonce"; all else is libpq's. `clock`: its boot clock measures
    time between two answers of the server; without `server_clock` both clocks are this one, for tests that
    hold time still. `inline`: units run in the caller's thread. Raises `StoreMismatch`, `StoreUnavailable`
    and `ConfigError`.
    """
    return PostgresStore(Target(url), clock, inline=inline, server_clock=server_clock)


class Target:
    """A store URL, taken apart. `where` says it to people, without user and password."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        self.schema = dict(options).get("schema", "sendonce")
        if not _SCHEMA.fullmatch(self.schema):
            raise ConfigError(
                f"schema {self.schema!r} of the store URL must be lower-case letters, digits and _, "
                "63 at most, and begin with a letter: write ?schema=sendonce"
            )
        rest = urlencode([(name, value) for name, value in options if name != "schema"])
        self.dsn = urlunsplit(parts._replace(query=rest))
        try:
            known = conninfo_to_dict(self.dsn)
        except psycopg.Error:
            # What libpq says of it may quote the password.
            raise ConfigError(
                "the PostgreSQL store URL cannot be read: write postgresql://user@host:5432/database, and "
                "percent-encode what is special in user and password"
            ) from None
        host = str(known.get("host") or "this machine")
        self.where = f"PostgreSQL database {unquote(str(known.get('dbname') or 'of the user'))} at {host}"

    def connect(self, *, prepare: bool) -> Connection:
        connection = self._connect(prepare=prepare)
        connection.prepared_max = 500
        _name_apart(connection)
        # A pooler may pass on what others listen to; without this it would be kept for ever.
        connection.add_notify_handler(lambda news: None)
        # One type for each kind of value, so that a statement is prepared once.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(str, StrDumper)
        return connection

    def listen(self) -> Connection:
        """A connection that keeps what it is told until somebody asks."""
        return self._connect(prepare=False)

    def _connect(self, *, prepare: bool) -> Connection:
        return psycopg.connect(
            self.dsn,
            autocommit=True,  # transactions are begun and ended by name, in one round trip with other things
            cursor_factory=RawCursor,
            prepare_threshold=5 if prepare else None,
            **{**_CONNECTION, **conninfo_to_dict(self.dsn)},
        )

    def table(self, name: str) -> str:
        """A table's full name, for a statement that runs before the search path is set."""
        return f'"{self.schema}".{name}'

    def settings(
        self, *, lock_s: float, statement_s: float, idle_s: float, planner: Mapping[str, str] | None = None
    ) -> str:
        """What each transaction brings along, as columns of a SELECT."""
        values = {
            "search_path": self.schema,
            "lock_timeout": _ms(lock_s),
            "statement_timeout": _ms(statement_s),
            "idle_in_transaction_session_timeout": _ms(idle_s),
            **(planner or {}),
        }
        return ", ".join(f"set_config('{name}', '{value}', true)" for name, value in values.items())


_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_S,
    "application_name": "sendonce",
    "target_session_attrs": "read-write",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""What the URL may overrule."""


class StoreClock(Protocol):
    """The clock that units see."""

    def observe(self, calendar: int, correction: int, asked_at: int) -> int: ...
    def now(self) -> int: ...
    def steady(self) -> int: ...


class GivenClock:
    """A clock of this process instead of the server's, anchored as on SQLite."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset = 0

    def observe(self, calendar: int, correction: int, asked_at: int) -> int:
        return 0

    def now(self) -> int:
        return self._clock.now()

    def steady(self) -> int:
        return self._clock.boot() + self.offset


class PostgresStore:
    """`ports.store.Store` on one schema of a PostgreSQL database."""

    one_writer: Final = False

    def __init__(self, target: Target, clock: Clock, *, inline: bool, server_clock: bool) -> None:
        self._clock: StoreClock = ServerClock(clock.boot) if server_clock else GivenClock(clock)
        self._readers = _Readers(target, self._clock)
        self._writing = _Writing(target, self._clock, clock.boot)
        self._inline = inline
        self._writer: Writer
        if inline:
            self._writing.open()
            self._writer = InlineWriter(self._writing)
        else:
            self._writer = ThreadWriter(self._writing.open)
        # Its connection is made when somebody first writes on it: most processes never do.
        self._writing_beside = _Writing(target, self._clock, clock.boot)
        self._beside: Writer | None = None
        self._beside_lock = threading.Lock()
        self._news = News(target.listen, channel_of(target.schema))
        self.secret = self.write(secret_of).result()
        if isinstance(self._clock, GivenClock):
            self._clock.offset = self.write(lambda tx: anchor(tx, clock)).result()

    def write(self, unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        if not beside or self._inline:
            return self._writer.submit(unit)
        with self._beside_lock:
            if self._beside is None:
                self._beside = ThreadWriter(self._writing_beside.open, wait=False)
            return self._beside.submit(unit)

    def read(self, query: Callable[[Tx], T]) -> T:
        if self._inline and self._writing.in_unit:
            return self._writing.read(query)  # inside a unit of this thread: it sees the unit's writes
        return self._readers.read(query)

    def listen(self, hear: Callable[[str], None]) -> Listener:
        return self._news.listen(hear)

    def steady(self) -> int:
        return self._clock.steady()

    @property
    def closed(self) -> bool:
        return self._writing.closed

    def close(self) -> None:
        self._news.close()
        with self._beside_lock:
            if self._beside is not None:
                self._beside.close()
                self._writing_beside.close()
        self._writer.close()
        self._writing.close()
        self._readers.close()


class PostgresSession:
    """`Session` on a connection. Remembers whether a unit wrote, and what the database refused."""

    def __init__(self, connection: Connection, statements: Mapping[str, _Statement]) -> None:
        self._cursor = connection.cursor()
        self._statements = statements
        self.wrote = False
        self.fault: psycopg.Error | None = None

    def rows(self, name: str, parameters: Parameters) -> list[Tuple]:
        self._execute(name, parameters)
        return list(self._cursor.fetchall())

    def run(self, name: str, parameters: Parameters) -> int:
        self._execute(name, parameters)
        return self._cursor.rowcount

    def rows_each(self, name: str, parameters: Sequence[Parameters]) -> list[list[Tuple]]:
        batch = self._batch(name, parameters)
        if batch is None:
            return [list(self._cursor.fetchall()) for _ in self._execute_each(name, parameters)]
        self._execute_batch(name, batch, parameters)
        rows = self._cursor.fetchall()
        if batch.gives is Gives.MADE:
            return [[row] for row in rows]
        found: list[list[Tuple]] = [[] for _ in parameters]
        for row in rows:
            found[row[0] - 1].append(row[1:])
        return found

    def run_each(self, name: str, parameters: Sequence[Parameters]) -> list[int]:
        batch = self._batch(name, parameters)
        if batch is None or batch.gives is not Gives.CHANGED:
            return [self._cursor.rowcount for _ in self._execute_each(name, parameters)]
        self._execute_batch(name, batch, parameters)
        counts = [0] * len(parameters)
        for (nth,) in self._cursor.fetchall():
            counts[nth - 1] = 1
        return counts

    def many(self, name: str, parameters: Iterable[Parameters]) -> None:
        sets = list(parameters)
        batch = self._batch(name, sets)
        if batch is None:
            self.run_each(name, sets)
        else:
            self._execute_batch(name, batch, sets)

    def mappings(self, name: str, parameters: Parameters) -> list[Mapping[str, int | str]]:
        self._execute(name, parameters)
        names = [column.name for column in self._cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in self._cursor.fetchall()]

    def _execute(self, name: str, parameters: Parameters) -> None:
        statement = self._statements[name]
        self.wrote |= statement.writes
        try:
            self._cursor.execute(statement.text, statement.placed(parameters))
        except psycopg.Error as error:
            self.fault = error
            raise

    def _batch(self, name: str, parameters: Sequence[Parameters]) -> Batch | None:
        """The one statement that does for all sets what the named one does for each; None where there is none
        or where it would do something else."""
        if len(parameters) < 2:
            return None
        batch = self._statements[name].batch
        return None if batch is None or batch.repeats(parameters) else batch

    def _execute_batch(self, name: str, batch: Batch, parameters: Sequence[Parameters]) -> None:
        statement = self._statements[name]
        self.wrote |= statement.writes
        if not statement.batch_text:
            statement.batch_text = batch.typed(parameters[0]).encode()
        try:
            self._cursor.execute(statement.batch_text, batch.arrays(parameters))
        except psycopg.Error as error:
            self.fault = error
            raise

    def _execute_each(self, name: str, parameters: Sequence[Parameters]) -> Iterable[None]:
        """Run for each set of parameters in one round trip; yields with the cursor on each answer in turn."""
        if not parameters:
            return
        if len(parameters) == 1:
            self._execute(name, parameters[0])
            yield
            return
        statement = self._statements[name]
        self.wrote |= statement.writes
        try:
            self._cursor.executemany(
                statement.text, [statement.placed(one) for one in parameters], returning=True
            )
        except psycopg.Error as error:
            self.fault = error
            raise
        yield
        while self._cursor.nextset():
            yield


class _Statement:
    """A named statement, bound by place."""

    def __init__(self, text: str) -> None:
        text = _without_comments(text)
        numbered, self.placed = by_place(text, "$")
        self.text = numbered.encode()
        self.batch = batch_of(text)
        self.batch_text = b""  # made when its parameters have first been seen
        self.writes = not text.startswith("SELECT")


def _name_apart(connection: Connection) -> None:
    """Let the names of its prepared statements be no other connection's.

    psycopg counts them from 0 on each connection. A pooler that gives us the connection of another client
    would then find another statement under a name of ours, and run it. So each counts from a number of its
    own, and at worst a name is not there, which is an error (`FORGOTTEN`) and no harm.
    """
    prepared = getattr(connection, "_prepared", None)
    if prepared is not None and hasattr(prepared, "_prepared_idx"):
        prepared._prepared_idx = secrets.randbits(60)
    else:  # another psycopg than the ones we know: do without
        connection.prepare_threshold = None


@cache
def _statements(*, reading: bool) -> Mapping[str, _Statement]:
    tokens = _READING if reading else _WRITING
    return {name: _Statement(text) for name, text in expand(tokens).items()}


class _Writing:
    """A writing connection, as the writer's `Transactions`. It comes back by itself."""

    def __init__(self, target: Target, clock: StoreClock, boot: Callable[[], int]) -> None:
        self._target = target
        self._clock = clock
        self._boot = boot
        self._prepare = True
        self._statements = _statements(reading=False)
        self._lineage = Lineage(target.schema)
        self._id = ""
        self._written_at = (
            0.0  # when our row in `writer` was last written, on this machine's clock; 0: not yet
        )
        self._number = 0  # of the last commit that is known to have happened
        self._unknown: int | None = None  # a commit that nobody could be asked about yet
        self._answer: tuple[Any, ...] = ()  # what the open transaction was begun with
        self._backend: tuple[Any, ...] | None = (
            None  # who at the server runs the open transaction, and since when
        )
        self._away_until = 0.0
        self._announced: dict[str, None] = {}
        self._channel = channel_of(target.schema)
        self._mute_until = 0.0
        self._units = 0
        self.in_unit = False
        settings = target.settings(
            lock_s=LOCK_S,
            statement_s=STATEMENT_S,
            idle_s=IDLE_S,
            planner=PLANNER,
        )
        self._settings = f"SELECT {settings}, {durable()}"
        self._begin = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; "
            f"{self._settings}, {self._lineage.columns}, pg_backend_pid(), now()::text, {_time(target)}"
        )
        self._connection: Connection
        self._session: PostgresSession

    def open(self) -> _Writing:
        """Connect for the first time; makes the schema where it is missing."""
        with translated(self._target.where):
            self._connect()
            try:
                prepare_schema(self._connection, self._target.schema, self._target.where)
                self._lineage.check(self._simple, self._target.where)
                self._register()
            except BaseException:
                self._connection.close()
                raise
        return self

    # Transactions

    def begin(self) -> None:
        self._announced = {}
        connected = not self._connection.closed
        if not connected and time.monotonic() < self._away_until:
            raise StoreUnavailable(f"{self._target.where} could not be reached a moment ago")
        with translated(self._target.where):
            try:
                self._begin_once()
            except psycopg.Error as error:
                if not self._is_lost(error):
                    raise
                if not connected:
                    self._away_until = time.monotonic() + AWAY_S
                    raise
                self._begin_once()  # the connection was lost while nobody used it

    def run_unit(self, unit: Callable[[Tx], T]) -> T:
        first = self._units == 0
        self._units += 1
        self._session.fault = None
        self.in_unit = True
        try:
            if not first:
                self._simple(_NEXT_UNIT)
            tx = self._tx()
            answer = unit(tx)
            if self._session.fault is not None:
                raise self._session.fault  # the unit went on after it, but the transaction does not
            self._announced |= tx.announced
            return answer
        except BaseException as error:
            self._undo(error, first=first)
            if isinstance(error, psycopg.Error):
                raise ours(error, self._target.where) from error
            raise
        finally:
            self.in_unit = False

    def commit(self) -> None:
        if not self._session.wrote:
            with translated(self._target.where):
                self._simple(_NOTHING_WRITTEN)
            return
        number = self._number + 1
        try:
            self._simple(self._commit_text(number))
        except psycopg.Error as error:
            if self._is_lost(error):
                self._find_out(number, error)
                return
            if isinstance(error, errors.DivisionByZero):
                with translated(self._target.where):
                    self.rollback()
                    self._miss()
                    self._register()
                raise RunAgain from ours(error, self._target.where)
            self._raise_fate(error)
            raise ours(error, self._target.where) from error
        self._committed(number)

    def announce(self) -> None:
        if not self._announced or time.monotonic() < self._mute_until:
            return
        try:
            announce(self._connection, self._channel, self._announced)
        except psycopg.Error as error:
            self._is_lost(error)
            self._mute_until = time.monotonic() + MUTE_S

    def rollback(self) -> None:
        if not self._connection.closed and self._status() is not TransactionStatus.IDLE:
            try:
                self._simple("ROLLBACK")
            except psycopg.Error:
                self._connection.close()  # one that cannot do this is lost, and so is the transaction

    def read(self, query: Callable[[Tx], T]) -> T:
        """Inside a unit that is running."""
        return query(self._tx())

    def close(self) -> None:
        """Idempotent."""
        if self.closed:
            return
        with suppress(psycopg.Error):
            self._simple(f"BEGIN; {self._settings}; DELETE FROM writer WHERE id = '{self._id}'; COMMIT")
        self._connection.close()

    @property
    def closed(self) -> bool:
        return not hasattr(self, "_connection") or self._connection.closed

    # The connection

    def _connect(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        self._connection = self._target.connect(prepare=self._prepare)
        self._session = PostgresSession(self._connection, self._statements)
        if self._backend is not None:
            self._end_backend(*self._backend)

    def _begin_once(self) -> None:
        if self._connection.closed:
            self._connect()
        if self._unknown is not None:
            self._ask(self._unknown)
            self._unknown = None
        while True:
            if step := self._observe(f"{self._begin}; SAVEPOINT unit"):
                self._simple("ROLLBACK")
                self._correct(step)
            elif self._lineage.is_as_before(self._answer[-4 - COLUMNS : -4], self._simple):
                break
            else:
                self._lineage.settle(self._tx())
                self._simple("COMMIT")
        self._units = 0
        self._session.wrote = False

    def _end_backend(self, pid: int, since: str) -> None:
        """End what a lost connection left behind: until the server notices by itself, it holds our locks.

        By process and start of the transaction: a pooler may have given the process to somebody else.
        """
        with suppress(errors.InsufficientPrivilege):
            self._simple(
                f"SELECT pg_terminate_backend(pid, {round(CONNECT_S * 1000)}) FROM pg_stat_activity "
                f"WHERE pid = {pid} AND xact_start = '{since}'"
            )
        self._backend = None

    def _register(self) -> None:
        """A row of one's own in `writer`, and what the store remembers of its clock.

        The store's secret is the first one that anybody brought: each process would make one of its own.
        """
        self._id, self._number, self._written_at = secrets.token_hex(8), 0, 0.0
        seen = self._simple(
            f"BEGIN; {self._settings}; DELETE FROM writer WHERE at < {_SERVER_NOW} - {FORGET_DAYS * DAY_US}; "
            f"INSERT INTO writer (id, number, at) VALUES ('{self._id}', 0, {_SERVER_NOW}); "
            f"INSERT INTO meta (name, value) VALUES ('secret', '{new_secret()}'), ('epoch', '1') "
            "ON CONFLICT (name) DO NOTHING; COMMIT; "
            f"SELECT coalesce((SELECT value::bigint FROM {self._target.table('meta')} "
            "WHERE name = 'steady_seen'), 0)"
        )
        if isinstance(self._clock, ServerClock):
            self._clock.remember(int(seen[0]))
        self._written_at = time.monotonic()
        self._begin_once()
        self.rollback()

    # The clock

    def _observe(self, text: str) -> int:
        """Ask the time along with `text`; by how much the correction must grow, 0 nearly always."""
        asked_at = self._boot()
        row = self._answer = self._simple(text)
        self._backend = row[-4:-2] or None
        return self._clock.observe(int(row[-2]), int(row[-1]), asked_at)

    def _correct(self, step: int) -> None:
        """The server's calendar was set back: lengthen the correction, once for all processes."""
        self._simple(
            f"{self._begin}; INSERT INTO meta (name, value) VALUES ('steady_correction', '0') "
            "ON CONFLICT (name) DO UPDATE SET value = meta.value"  # locks it
        )
        still = self._observe(f"SELECT {_time(self._target)}")
        if still:
            self._simple(f"UPDATE meta SET value = value::bigint + {still} WHERE name = 'steady_correction'")
        self._simple("COMMIT")

    # When things go wrong

    def _undo(self, error: BaseException, *, first: bool) -> None:
        """Take back a unit's writes. Raises what the writer must know; returns where only the unit fell."""
        fault = self._session.fault or (error if isinstance(error, psycopg.Error) else None)
        if fault is not None:
            self._raise_fate(fault)
        try:
            self._simple("ROLLBACK TO SAVEPOINT unit")
        except psycopg.Error as lost:
            self._connection.close()
            raise RunAgain from ours(lost, self._target.where)
        if isinstance(fault, errors.UniqueViolation) or (
            isinstance(fault, errors.LockNotAvailable) and not first
        ):
            raise PutOff from ours(fault, self._target.where)

    def _raise_fate(self, fault: psycopg.Error) -> None:
        """Raise where the whole transaction is lost with it."""
        if isinstance(fault, FORGOTTEN):
            self._prepare = False
            self._connection.close()
        if isinstance(fault, errors.ReadOnlySqlTransaction):
            self._connection.close()  # it leads to a server that writes no more: look for the one that does
        if self._is_lost(fault) or isinstance(fault, AGAIN):
            raise RunAgain from ours(fault, self._target.where)

    def _find_out(self, number: int, error: psycopg.Error) -> None:
        """The connection broke under a commit. Returns where it happened, raises where it did not."""
        until = time.monotonic() + ASK_S
        while True:
            try:
                self._connect()
                happened = self._ask(number)
                break
            except psycopg.Error as away:
                if time.monotonic() > until:
                    self._unknown = number
                    raise CommitUnknown(
                        f"{self._target.where} was lost while it committed and cannot be asked about it "
                        f"({ours(away, self._target.where)}): all of what was handed in happened, or none"
                    ) from away
                time.sleep(0.05)
        if not happened:
            raise RunAgain from ours(error, self._target.where)

    def _ask(self, number: int) -> bool:
        """Whether commit `number` happened; where it did not, it cannot happen any more.

        The row is written in either case: where a standby has to have a commit before it is answered, this
        one waits for that, and what it found was before it.
        """
        rows = self._simple(
            f"BEGIN; {self._settings}; WITH asked AS (UPDATE writer SET number = "
            f"CASE number WHEN {number - 1} THEN {number + 1} ELSE number END "
            f"WHERE id = '{self._id}' RETURNING number) "
            "SELECT coalesce((SELECT number FROM asked), -1); COMMIT"
        )
        found = int(rows[0])
        if found < 0:  # on a server that took over without it; the commit is not there either
            self._miss()
            self._register()
            return False
        self._lineage.lost |= found < number - 1
        if found == number:
            self._committed(number)
        self._number = found
        return found == number

    def _committed(self, number: int) -> None:
        self._number, self._written_at = number, time.monotonic()
        self._lineage.committed(self._clock.now())

    def _miss(self) -> None:
        """Our row in `writer` is not as our last commit left it: that commit is lost; or the row was tidied
        up, since nothing was written for so long."""
        if self._written_at and time.monotonic() - self._written_at < FORGET_DAYS / 2 * 86_400:
            self._lineage.lost = True

    def _commit_text(self, number: int) -> str:
        """Raises the number, or fails the transaction: by a division by zero, nothing else is as short."""
        return (
            f"WITH mark AS (UPDATE writer SET number = {number}, at = {_SERVER_NOW} "
            f"WHERE id = '{self._id}' AND number = {number - 1} RETURNING 1) "
            "SELECT 1 / count(*) FROM mark; COMMIT"
        )

    def _simple(self, text: str) -> tuple[Any, ...]:
        """Statements without parameters, in one round trip; the last row that they gave."""
        cursor = self._connection.execute(text.encode(), prepare=False)
        row: tuple[Any, ...] = ()
        while True:
            if cursor.description is not None:
                row = cursor.fetchone() or row
            if not cursor.nextset():
                return row

    def _is_lost(self, error: psycopg.Error) -> bool:
        return is_lost(self._connection, error)

    def _status(self) -> TransactionStatus:
        return TransactionStatus(self._connection.pgconn.transaction_status)

    def _tx(self) -> SqlTx:
        lineage = self._lineage
        return SqlTx(
            self._session,
            now=self._clock.now(),
            steady=self._clock.steady(),
            standing=(lineage.held, lineage.epoch),
        )


class _Readers:
    """A few reading connections, shared by the threads of a process. They come back by themselves."""

    def __init__(self, target: Target, clock: StoreClock) -> None:
        self._target = target
        self._clock = clock
        self._prepare = True
        self._statements = _statements(reading=True)
        self._free: list[Connection] = []
        self._closed = False
        self._places = threading.BoundedSemaphore(READERS_MAX)
        self._here = threading.local()
        settings = target.settings(lock_s=LOCK_S, statement_s=READ_S, idle_s=READ_S)
        self._begin = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT {settings}".encode()

    def read(self, query: Callable[[Tx], T]) -> T:
        outer: SqlTx | None = getattr(self._here, "tx", None)
        if outer is not None:  # a query inside a query sees what that one sees
            return query(outer)
        with self._places, translated(self._target.where):
            while True:
                kept = bool(self._free)
                connection = self._take()
                try:
                    return self._read_on(connection, query)
                except psycopg.Error as error:
                    lost = is_lost(connection, error)
                    if isinstance(error, FORGOTTEN) and self._prepare:
                        self._prepare = False
                        self._close_free()
                        connection.close()
                    elif not (kept and lost):
                        raise
                finally:
                    self._give_back(connection)

    def close(self) -> None:
        """What is being read on is closed by who reads."""
        self._closed = True
        self._close_free()

    def _close_free(self) -> None:
        while self._free:
            self._free.pop().close()

    def _read_on(self, connection: Connection, query: Callable[[Tx], T]) -> T:
        connection.execute(self._begin, prepare=False)
        session = PostgresSession(connection, self._statements)
        self._here.tx = SqlTx(session, now=self._clock.now(), steady=self._clock.steady())
        try:
            return query(self._here.tx)
        finally:
            self._here.tx = None
            if not connection.closed:
                connection.execute(b"COMMIT", prepare=False)  # a rollback would forget what was prepared

    def _take(self) -> Connection:
        try:
            return self._free.pop()
        except IndexError:
            return self._target.connect(prepare=self._prepare)

    def _give_back(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
        elif not connection.closed:
            self._free.append(connection)


_NEXT_UNIT: Final = (
    f"RELEASE SAVEPOINT unit; SET LOCAL lock_timeout = '{round(LATER_LOCK_S * 1000)}ms'; SAVEPOINT unit"
)
_NOTHING_WRITTEN: Final = "SET LOCAL synchronous_commit = off; COMMIT"
"""Locks were taken at most: there is nothing to wait for. A rollback would forget what was prepared."""
_SERVER_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def _time(target: Target) -> str:
    """The server's calendar and the correction of the steady clock, as columns of a SELECT."""
    correction = f"SELECT value::bigint FROM {target.table('meta')} WHERE name = 'steady_correction'"
    return f"{_SERVER_NOW}, coalesce(({correction}), 0)"


def durable() -> str:
    """A commit that was answered survives a crash, whatever the server's configuration says."""
    name = "synchronous_commit"
    return (
        f"set_config('{name}', CASE current_setting('{name}') WHEN 'off' THEN 'on' "
        f"ELSE current_setting('{name}') END, true)"
    )


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).lstrip()
