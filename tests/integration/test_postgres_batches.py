"""One statement for many rows says the same as many statements for one: the forms, the arrays, the limits."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.store import postgres
from sendonce.store.postgres_batches import Batch, Gives, batch_of
from sendonce.store.session import Parameters
from sendonce.store.statements import expand
from sendonce.testing.postgres_server import PostgresServer

HOT = {
    "delivery_insert": Gives.MADE,
    "delivery_by_id": Gives.FOUND,
    "delivery_move": Gives.CHANGED,
    "ledger_append": Gives.NOTHING,
    "agenda_put": Gives.NOTHING,
    "agenda_change": Gives.CHANGED,
    "agenda_strike": Gives.CHANGED,
    "preference_of": Gives.FOUND,
    "content_put": Gives.NOTHING,
    "content_get": Gives.FOUND,
    "call_open": Gives.NOTHING,
    "call_close": Gives.CHANGED,
    "reminder_find": Gives.FOUND,
    "reminder_insert": Gives.MADE,
}


def made(text: str) -> Batch:
    batch = batch_of(text)
    assert batch is not None
    return batch


@pytest.mark.parametrize(("name", "gives"), HOT.items(), ids=list(HOT))
def test_what_every_delivery_goes_through_is_batched(name: str, gives: Gives) -> None:
    assert made(expand(postgres._WRITING)[name]).gives is gives


def test_the_forms() -> None:
    update = made("UPDATE t SET a = a + :a WHERE id = :id AND b = :b")
    assert update.typed({"a": 1, "id": 2, "b": "x"}) == (
        "UPDATE t SET a = a + given._a FROM unnest($1::text::bigint[], $2::text::bigint[], $3::text::text[]) "
        "WITH ORDINALITY AS given (_a, _id, _b, _nth) WHERE id = given._id AND b = given._b "
        "RETURNING given._nth"
    )
    assert update.about == ("id",)
    insert = made("INSERT INTO t (a, b) VALUES (:a, 'x')\nON CONFLICT (a) DO UPDATE SET b = excluded.b")
    assert insert.typed({"a": 1}) == (
        "INSERT INTO t (a, b) SELECT given._a, 'x' FROM unnest($1::text::bigint[]) "
        "WITH ORDINALITY AS given (_a, _nth) WHERE true ORDER BY given._nth "
        "ON CONFLICT (a) DO UPDATE SET b = excluded.b"
    )
    assert insert.about == ("a",)
    delete = made("DELETE FROM t WHERE a = :a AND b < :b")
    assert delete.about == ("a",)
    assert delete.text.startswith("DELETE FROM t USING ")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t WHERE b = :b LIMIT :limit",
        "SELECT a FROM t",
        "UPDATE t SET a = :a WHERE id = :id RETURNING b",
        "UPDATE t SET a = :a WHERE id IN (SELECT id FROM u WHERE b = :b)",
        "UPDATE t SET a = :a WHERE b < :b",
        "INSERT INTO t (a) SELECT b FROM u WHERE c = :c",
        "INSERT INTO t (a) VALUES (:a) ON CONFLICT (b) DO NOTHING",
        "WITH x AS (SELECT :a) SELECT * FROM x",
    ],
)
def test_what_would_say_something_else_has_no_batch(text: str) -> None:
    assert batch_of(text) is None


def test_two_sets_about_one_row_are_noticed() -> None:
    update = made("UPDATE t SET a = :a WHERE id = :id AND seq = :seq")
    assert not update.repeats([{"id": 1, "seq": 1, "a": 5}, {"id": 2, "seq": 1, "a": 5}])
    assert update.repeats([{"id": 1, "seq": 1, "a": 5}, {"id": 1, "seq": 2, "a": 5}])
    insert = made("INSERT INTO t (a) VALUES (:a)")
    assert not insert.repeats([{"a": 1}, {"a": 1}])


@pytest.fixture(scope="module")
def connection(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.url(), autocommit=True, cursor_factory=psycopg.RawCursor) as made:
        yield made


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))


@given(rows=st.lists(st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1)), min_size=1))
@settings(max_examples=300)
def test_values_arrive_as_they_are(connection: psycopg.Connection, rows: list[tuple[str, int]]) -> None:
    batch = made("SELECT :text AS text, :number AS number")
    parameters: list[Parameters] = [{"text": text, "number": number} for text, number in rows]
    found = connection.execute(batch.typed(parameters[0]).encode(), batch.arrays(parameters)).fetchall()
    assert found == [(nth, text, number) for nth, (text, number) in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    "text", ["NULL", "null", "", " ", "{}", "a,b", '"', "\\", "\\\\", "\n", "1e5", "ä", "'"]
)
def test_values_that_mean_something_in_an_array_arrive_as_they_are(
    connection: psycopg.Connection, text: str
) -> None:
    batch = made("SELECT :text AS text")
    parameters = [{"text": text}, {"text": "x"}]
    found = connection.execute(batch.typed(parameters[0]).encode(), batch.arrays(parameters)).fetchall()
    assert found == [(1, text), (2, "x")]
