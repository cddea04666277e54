"""The transactional outbox: reminders that are scheduled if, and only if, the caller's transaction commits.

    with connection.transaction():
        connection.execute("INSERT INTO orders ...")
        sendonce.schedule(connection, [{"reminder": "order-4821", "due": "in 2h", ...}])

The store is a schema of the application's own PostgreSQL database. `schedule` calls the SQL function of the
same name there, over the caller's connection and nothing else: it opens nothing, commits nothing, and needs
neither the configuration nor a right on any table. The scheduler takes in what was committed, within a second
or so.

What a reminder must look like is checked before the database is asked, so that a mistake raises here and
leaves the transaction as it was. What only the configuration can tell (template, zone, category, the address
itself) is judged when it is taken in; what fails then is parked, and `sendonce outbox list` shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from inspect import isawaitable
from typing import Any, Final, Literal, Protocol, overload

from sendonce.asking import asked_of_mapping
from sendonce.core.errors import InvalidInput
from sendonce.core.reminder import DEFAULT_TENANT, PRIORITY_MAX, Asked

OnError = Literal["refuse", "park"]
Given = Iterable[Asked | Mapping[str, object]]

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class AsyncConnection(Protocol):
    """What asynchronous connections have in common."""

    def close(self) -> Awaitable[Any]: ...


class Connection(Protocol):
    """What the others have in common."""

    def close(self) -> None: ...


@overload
def schedule(
    connection: AsyncConnection,
    reminders: Given,
    *,
    on_error: OnError = "refuse",
    tenant: str = DEFAULT_TENANT,
    schema: str = "sendonce",
) -> Awaitable[int]: ...


@overload
def schedule(
    connection: Connection,
    reminders: Given,
    *,
    on_error: OnError = "refuse",
    tenant: str = DEFAULT_TENANT,
    schema: str = "sendonce",
) -> int: ...


def schedule(
    connection: Any,
    reminders: Given,
    *,
    on_error: OnError = "refuse",
    tenant: str = DEFAULT_TENANT,
    schema: str = "sendonce",
) -> int | Awaitable[int]:
    """Schedule reminders in the transaction that `connection` is in. How many wait now to be taken in; over
    an asynchronous connection, an awaitable of it.

    connection  of psycopg, asyncpg, SQLAlchemy (a session too) or Django
    reminders   an `Asked` each, or a mapping with its fields, as `Client.schedule` takes them
    on_error    "refuse": one that is wrong refuses all of them, by `InvalidInput`, before the database is
                asked; "park": it is kept aside with what is wrong, and the others are scheduled
    schema      where the store is, if its URL names another one

    Outside a transaction it is one of its own. Again with the same content it changes nothing. What cannot be
    written as JSON is always refused. The database's own errors come as the driver raises them.
    """
    call = _Call.of(_schema(schema), list(reminders), on_error, tenant)
    for offers, ask in _WAYS:
        if offers(connection):
            return ask(connection, call)
    raise InvalidInput(
        f"{type(connection).__qualname__} is no connection of psycopg, asyncpg, SQLAlchemy or Django to a "
        "PostgreSQL database: give the one whose transaction the reminders belong to, or call "
        f"{schema}.schedule(jsonb) over it yourself",
        field="connection",
    )


# What is asked


@dataclass(frozen=True, slots=True)
class _Call:
    """The call of the SQL function. Both parameters are texts: a driver that was taught to write JSON by
    itself would write it twice."""

    schema: str
    reminders: str
    on_error: str

    @classmethod
    def of(cls, schema: str, reminders: list[Any], on_error: str, tenant: str) -> _Call:
        if on_error not in ("refuse", "park"):
            raise InvalidInput(f"on_error {on_error!r:.80} must be 'refuse' or 'park'", field="on_error")
        body = _checked_body if on_error == "refuse" else _body
        return cls(
            schema,
            f"[{','.join(_written(nth, one, body, tenant) for nth, one in enumerate(reminders, start=1))}]",
            on_error,
        )

    def text(self, reminders: str, on_error: str) -> str:
        """The statement, with these as its parameters."""
        return (
            f'SELECT "{self.schema}".schedule(CAST(CAST({reminders} AS text) AS jsonb), '
            f"CAST({on_error} AS text))"
        )

    @property
    def values(self) -> tuple[str, str]:
        return self.reminders, self.on_error


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name):
        raise InvalidInput(
            f"schema {name!r:.80} must be lower-case letters, digits and _, as in the URL of the store",
            field="schema",
        )
    return name


def _written(nth: int, given: object, body: Callable[[object, str], object], tenant: str) -> str:
    try:
        return _json(body(given, tenant))
    except InvalidInput as error:
        raise InvalidInput(
            f"reminder {nth} of those given: {error}", field=error.field, code=error.code
        ) from None


def _json(body: object) -> str:
    try:
        text = _JSON.encode(body)
        text.encode()
    except UnicodeEncodeError:
        why = "it holds half a character (a lone surrogate)"
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)
    else:
        if not _NUL.search(text):
            return text
        why = "it holds the character NUL"
    raise InvalidInput(
        f"it is no plain JSON ({why}): use text, numbers, lists, objects", field="data"
    ) from None


_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _checked_body(given: object, tenant: str) -> object:
    """As JSON will have it. The same rules as the SQL function `intake_fault`, in the words of this
    language."""
    match given:
        case Asked() as asked:
            pass
        case Mapping():
            asked = asked_of_mapping(given, tenant)
        case _:
            raise InvalidInput(
                f"it is {type(given).__name__} and must be a mapping or an Asked", field="reminder"
            )
    if fault := _missing(asked) or _out_of_range(asked):
        field, sentence = fault
        raise InvalidInput(sentence, field=field)
    return _body(asked, tenant)


def _missing(asked: Asked) -> tuple[str, str] | None:
    if not asked.reminder:
        return "reminder", "reminder is empty: give it an id of your own, such as invoice-4821"
    if not asked.template:
        return "template", "template is empty: name one, see `sendonce template list`"
    if not (asked.email or asked.phone):
        return "email", "there is no address: give an email address, a phone number, or both"
    match bool(asked.plan), bool(asked.due), bool(asked.date):
        case True, True, _:
            return "due", "a plan takes a date and makes its own due times: drop due or the plan"
        case True, _, False:
            return "date", "date is empty: a plan counts from it, give one such as 2026-12-01"
        case False, _, True:
            return "date", "date belongs to a plan: name the plan, or write the time into due"
        case False, False, False:
            return "due", "due is empty: give a time such as 2026-12-01T09:00+01:00"
    return None


def _out_of_range(asked: Asked) -> tuple[str, str] | None:
    if not 0 <= asked.priority <= PRIORITY_MAX:
        rule = f"must be a whole number from 0 (the rule) to {PRIORITY_MAX} (first)"
        return "priority", f"priority is {asked.priority} and {rule}"
    if not 0 <= asked.template_version < 10**9:
        rule = "must be a whole number; 0 is the newest"
        return "template_version", f"template_version is {asked.template_version} and {rule}"
    return None


def _body(given: object, tenant: str) -> object:
    """What was given, as JSON can say it; nothing of it is judged."""
    match given:
        case Asked():
            named = ((field.name, getattr(given, field.name)) for field in fields(Asked))
            return {name: value for name, value in named if value not in ("", 0, (), {})}
        case Mapping():
            return {"tenant": tenant, **{name: _plain(value) for name, value in given.items()}}
        case _:
            return given


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime | date) else value


# How it is asked. Nothing of a driver is imported here: what a connection offers says whose it is.


def _over_django(connection: Any, call: _Call) -> int:
    _check_database(connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(call.text("%s", "%s"), call.values)
        return int(cursor.fetchone()[0])


def _over_sqlalchemy(connection: Any, call: _Call) -> int | Awaitable[int]:
    from sqlalchemy import text

    bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
    _check_database(bound.dialect.name)
    statement = text(call.text(":reminders", ":on_error"))
    answer = connection.execute(statement, {"reminders": call.reminders, "on_error": call.on_error})
    return _scalar_later(answer) if isawaitable(answer) else int(answer.scalar_one())


async def _scalar_later(answer: Awaitable[Any]) -> int:
    return int((await answer).scalar_one())


async def _over_asyncpg(connection: Any, call: _Call) -> int:
    return int(await connection.fetchval(call.text("$1", "$2"), *call.values))


def _over_psycopg(connection: Any, call: _Call) -> int | Awaitable[int]:
    # A row as a tuple and a placeholder that it knows, whatever cursors and rows the caller has set up.
    cursor = connection.cursor(row_factory=lambda _: tuple)
    raw = any(base.__name__ == "RawCursorMixin" for base in type(cursor).__mro__)
    marks = ("$1", "$2") if raw else ("%s", "%s")
    if hasattr(connection, "__aenter__"):
        return _psycopg_later(cursor, call.text(*marks), call.values)
    with cursor:
        return int(cursor.execute(call.text(*marks), call.values).fetchone()[0])


async def _psycopg_later(cursor: Any, text: str, values: tuple[str, str]) -> int:
    async with cursor:
        await cursor.execute(text, values)
        return int((await cursor.fetchone())[0])


def _offers(*names: str) -> Callable[[object], bool]:
    return lambda connection: all(hasattr(connection, name) for name in names)


_WAYS: Final[tuple[tuple[Callable[[object], bool], Callable[[Any, _Call], int | Awaitable[int]]], ...]] = (
    (_offers("vendor", "in_atomic_block"), _over_django),
    (_offers("execute", "get_bind"), _over_sqlalchemy),  # a session
    (_offers("execute", "exec_driver_sql"), _over_sqlalchemy),
    (_offers("fetchval", "is_in_transaction"), _over_asyncpg),
    (_offers("cursor", "pgconn"), _over_psycopg),
)


def _check_database(name: str) -> None:
    if name != "postgresql":
        raise InvalidInput(
            f"the connection is one to {name}: the outbox is a schema of a PostgreSQL database; beside "
            "another store, use sendonce.Client, after the commit",
            field="connection",
        )
