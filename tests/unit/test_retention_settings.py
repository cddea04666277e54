"""`[retention]`: what may be written, and what it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from sendonce import config
from sendonce.core.retention import DAY_S, Keep

BASE = config.template_text()


def _keep(text: str) -> Keep:
    environ = {"SMTP_PASSWORD": "x", "TWILIO_ACCOUNT_SID": "AC0", "TWILIO_AUTH_TOKEN": "x"}
    return config.parse(f"{BASE}\n{text}", Path("/x/sendonce.toml"), environ).keep


def test_nothing_is_removed_that_nobody_asked_to_remove() -> None:
    assert _keep("") == Keep()
    assert not _keep("").anything
    assert not _keep('[retention]\npasses = "30d"').anything


def test_each_has_its_time() -> None:
    keep = _keep('[retention]\ncontent = "90d"\ndeliveries = "1095d"\nimports = "365d"\npasses = "7d"')
    assert keep == Keep(90 * DAY_S, 1095 * DAY_S, 365 * DAY_S, 7 * DAY_S)
    assert _keep('[retention]\ncontent = "90d"\ndeliveries = "90d"').anything


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('content = "90d"\ndeliveries = "30d"', r"deliveries = 30d is shorter than content = 90d"),
        ('content = "1h"', r"content = 1h must be at least 1d"),
        ('deliveries = "6d"', r"deliveries = 6d must be at least 7d"),
        ("content = 90", "content"),
        ('contents = "90d"', "did you mean content"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(text: str, says: str) -> None:
    with pytest.raises(config.ConfigErrors, match=says):
        _keep(f"[retention]\n{text}")
