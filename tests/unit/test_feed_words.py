"""Which entries of the ledger an application is told, against the table that makes them."""

from __future__ import annotations

import re

import pytest

from sendonce.core.feed import DISPOSED, REOPENING, UNTOLD, Kind, kind_of
from sendonce.core.lifecycle import TABLE, Event
from sendonce.store.statements import raw_statements


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: f"{rule.event} to {rule.to}")
def test_every_move_into_an_end_or_out_of_one_is_told(rule: object) -> None:
    for each in (one for one in TABLE if one is rule):
        if each.to in DISPOSED:
            assert kind_of(each.event, each.to) is Kind.DISPOSITION
        elif each.to is not None and each.sources & DISPOSED:
            assert kind_of(each.event, each.to) is Kind.REOPENED
            assert each.event in REOPENING
        elif each.to is not None:
            assert kind_of(each.event, each.to) is None


@pytest.mark.parametrize("event", [Event.DUPLICATE_OBSERVED, Event.LATE_OUTCOME])
def test_a_note_beside_an_end_is_not_told(event: Event) -> None:
    assert all(kind_of(event, state) is None for state in DISPOSED)


def test_what_the_statement_leaves_out_is_what_is_never_told() -> None:
    listed = re.search(r"NOT IN \(([^)]*)\)", raw_statements()["view_feed"])
    assert listed is not None
    assert set(re.findall(r"'(\w+)'", listed[1])) == UNTOLD
