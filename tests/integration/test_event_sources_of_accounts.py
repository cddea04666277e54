"""Which accounts have a source of events, and what is said of a key that should verify them and is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sendonce import config
from sendonce.app import App
from sendonce.core.errors import ConfigError
from sendonce.testing.sandbox.callbacks import sendgrid_public_key
from tests.unit.test_provider_docs import AROUND

ACCOUNT = """
[store]
url = "sqlite:///{folder}/s.db"
[account.mail]
provider = "sendgrid"
channel = "email"
limits = ["50/s"]
lanes = 20
from = "Shop <shop@example.org>"
api_key = "env:SENDGRID_API_KEY"
event_public_keys = {keys}
"""


def app_with(folder: Path, keys: list[str]) -> App:
    text = ACCOUNT.format(folder=folder, keys=keys) + AROUND.format(channel="email", account="mail")
    return App(config.parse(text, folder / "sendonce.toml", {"SENDGRID_API_KEY": "x"}))


def test_an_account_without_a_secret_has_no_source_and_one_with_keys_has_one(tmp_path: Path) -> None:
    with app_with(tmp_path, []) as app:
        assert app.event_source("mail") is None
    with app_with(tmp_path, [sendgrid_public_key("one"), sendgrid_public_key("two")]) as app:
        source = app.event_source("mail")
        assert source is not None
        assert app.event_source("mail") is source, "made once"


def test_a_key_that_is_none_is_named_with_its_place(tmp_path: Path) -> None:
    with (
        app_with(tmp_path, ["nonsense"]) as app,
        pytest.raises(ConfigError, match=r"\[account\.mail\] event_public_keys must be"),
    ):
        app.event_source("mail")


def test_an_account_that_is_not_configured_has_none(tmp_path: Path) -> None:
    with app_with(tmp_path, []) as app, pytest.raises(ConfigError, match="not configured"):
        app.event_source("nobody")
