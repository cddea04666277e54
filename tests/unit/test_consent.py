"""Whether an address may be written to: tables of records, and that a "no" is never lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.consent import Kind, NoRecord, Preference, refusal

IN, OUT, STOP = Kind.OPT_IN, Kind.OPT_OUT, Kind.SUPPRESSED


def record(kind: Kind, at: int, category: str = "*", source: str = "") -> Preference:
    return Preference(kind, category, at, source or kind.value)


@pytest.mark.parametrize(
    ("records", "category", "why"),
    [
        ([], "pay", None),
        ([record(IN, 1)], "pay", None),
        ([record(OUT, 1)], "pay", "opted_out:opt_out"),
        ([record(OUT, 1), record(IN, 2)], "pay", None),
        ([record(IN, 2), record(OUT, 1)], "pay", None),
        ([record(IN, 1), record(OUT, 2)], "pay", "opted_out:opt_out"),
        ([record(IN, 5), record(OUT, 5)], "pay", "opted_out:opt_out"),
        ([record(OUT, 5), record(IN, 5)], "pay", "opted_out:opt_out"),
        ([record(OUT, 1, "news")], "pay", None),
        ([record(OUT, 1, "news")], "news", "opted_out:opt_out"),
        ([record(OUT, 1, "news"), record(IN, 2, "pay")], "news", "opted_out:opt_out"),
        ([record(OUT, 3), record(IN, 2, "pay")], "pay", "opted_out:opt_out"),
        ([record(OUT, 1), record(IN, 2, "pay")], "pay", None),
        ([record(OUT, 1), record(IN, 2, "pay")], "news", "opted_out:opt_out"),
        ([record(OUT, 1, "pay"), record(IN, 2)], "pay", "opted_out:opt_out"),
        ([record(OUT, 1, "pay"), record(IN, 2)], "news", None),
        ([record(OUT, 1, "pay"), record(IN, 2), record(IN, 3, "pay")], "pay", None),
        ([record(IN, 1, "pay"), record(OUT, 2), record(IN, 3)], "pay", None),
        ([record(STOP, 1, source="bounce"), record(IN, 9)], "pay", "suppressed:bounce"),
        ([record(IN, 9), record(STOP, 1, "pay", "complaint")], "pay", "suppressed:complaint"),
        ([record(STOP, 1, "pay", "complaint")], "news", None),
        ([record(OUT, 1, source="stop-word"), record(OUT, 2, source="page")], "pay", "opted_out:page"),
    ],
)
def test_the_newest_of_its_scope_decides_and_a_suppression_always_holds(
    records: list[Preference], category: str, why: str | None
) -> None:
    assert refusal(records, category, NoRecord.ALLOW) == why
    assert refusal(reversed(records), category, NoRecord.ALLOW) == why


def test_what_no_record_means_is_configured() -> None:
    assert refusal([], "pay", NoRecord.REFUSE) == "no_consent"
    assert refusal([record(OUT, 1, "news")], "pay", NoRecord.REFUSE) == "no_consent"
    assert refusal([record(IN, 1)], "pay", NoRecord.REFUSE) is None


records = st.lists(
    st.builds(record, st.sampled_from(Kind), st.integers(0, 5), st.sampled_from(["*", "pay", "news"]))
)


@given(records=records, no_record=st.sampled_from(NoRecord))
def test_a_later_no_always_refuses(records: list[Preference], no_record: NoRecord) -> None:
    last = max((one.at for one in records), default=0)
    assert refusal([*records, record(OUT, last)], "pay", no_record) is not None
    assert refusal([*records, record(STOP, 0)], "pay", no_record) is not None


@given(records=records, data=st.data())
def test_the_order_of_records_does_not_matter(records: list[Preference], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(records))

    def said(given: list[Preference]) -> str | None:
        why = refusal(given, "pay", NoRecord.REFUSE)
        return why and why.partition(":")[0]

    assert said(shuffled) == said(records)
