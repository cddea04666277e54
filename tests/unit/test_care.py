"""What a database server's own figures say: nothing, or what is wrong and what to do."""

from __future__ import annotations

from sendonce.pipeline.care import Holder, Table, findings

MINUTE = 60_000_000
NOW = 1_000 * MINUTE


def table(name: str = "delivery", **given: int) -> Table:
    usual = {"rows": 100_000, "dead": 2_000, "changed": 300_000, "hot": 297_000, "bytes": 1, "tidied_at": 1}
    return Table(name, analysed_at=1, **{**usual, **given})


def test_a_server_that_keeps_up_needs_nothing() -> None:
    holders = [Holder(7, "psql", NOW - 4 * MINUTE)]
    assert findings([table(), table("agenda", rows=0, dead=9_999, changed=0, hot=0)], holders, now=NOW) == []


def test_a_table_of_dead_rows_is_to_be_tidied_up() -> None:
    (said,) = findings([table("agenda", rows=20_000, dead=20_001)], [], now=NOW)
    assert "agenda has 20,001 dead rows beside 20,000" in said
    assert "VACUUM ANALYZE agenda" in said


def test_changes_that_leave_their_page_are_told_of_deliveries_alone() -> None:
    few = [table(name, changed=10_000, hot=8_999) for name in ("delivery", "ledger")]
    (said,) = findings(few, [], now=NOW)
    assert "only 90% of the changes of delivery" in said
    assert findings([table(changed=9_999, hot=0)], [], now=NOW) == [], "too few to say anything"
    assert findings([table(changed=10_000, hot=9_000)], [], now=NOW) == []


def test_who_holds_the_server_back_comes_first() -> None:
    holders = [Holder(7, "", NOW - 5 * MINUTE), Holder(8, "psql", NOW - MINUTE)]
    first, second = findings([table(rows=0, dead=10_000)], holders, now=NOW)
    assert "process 7 (no name) has had a transaction open for 5 min" in first
    assert "pg_terminate_backend(7)" in first
    assert "dead rows" in second
