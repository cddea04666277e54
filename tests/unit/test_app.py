"""What the whole configuration must fit together, beyond what one table can say."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from sendonce import config, telemetry
from sendonce.app import App
from sendonce.client import Client
from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError
from sendonce.ports.store import StoredTemplate

BASE = """
[store]
url = "sqlite:///x.db"
[tenant.default]
zone = "Etc/UTC"
[channel.sms]
account = "text"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"
[intake]
category = "x"
[category.x]
no_consent = "allow"
[account.text]
provider = "http"
channel = "sms"
from = "+12025550199"
url = "https://sms.example.com/send"
body_json = '{{"to": "{{{{ to }}}}", "text": "{{{{ text }}}}"}}'
key_header = "Idempotency-Key"
limits = ["10/s"]
{account}
"""


def opened(tmp_path: Path, account: str) -> App:
    return App(config.parse(BASE.format(account=account), tmp_path / "sendonce.toml", {}))


def test_a_retry_must_come_while_the_key_lives(tmp_path: Path) -> None:
    """A vendor that honours keys for fifteen minutes, and the usual longest wait of fifteen minutes."""
    with pytest.raises(ConfigError) as error:
        opened(tmp_path, 'lanes = 5\nkey_window = "15m"')
    assert "[account.text]" in str(error.value)
    assert "retry.cap = 15m" in str(error.value)
    assert "write a shorter retry.cap" in str(error.value)
    opened(tmp_path, 'lanes = 5\nkey_window = "15m"\n[account.text.retry]\ncap = "5m"').close()


def test_there_is_a_connection_for_each_lane(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"connections_max = 4 is below lanes = 5"):
        opened(tmp_path, 'lanes = 5\nconnections_max = 4\nkey_window = "24h"')
    opened(tmp_path, 'lanes = 5\nconnections_max = 5\nkey_window = "24h"').close()


def test_an_unknown_provider_is_named_with_the_known_ones(tmp_path: Path) -> None:
    text = BASE.format(account='lanes = 5\nkey_window = "24h"').replace('"http"', '"htpp"')
    with pytest.raises(ConfigError, match=r"'htpp' is not known: did you mean http\?"):
        App(config.parse(text, tmp_path / "sendonce.toml", {}))


def test_an_account_carries_what_its_provider_carries(tmp_path: Path) -> None:
    text = BASE.format(account='lanes = 5\nkey_window = "24h"').replace('"http"', '"resend"')
    with pytest.raises(
        ConfigError, match=r"channel = sms is not what provider = 'resend' carries: write email"
    ):
        App(config.parse(text, tmp_path / "sendonce.toml", {}))


QUESTION = """receipt_path = "id"
[account.text.question]
url = "{url}"
kind_path = "state"
kinds = {{ done = "delivered" }}
"""


def test_only_who_can_be_asked_is_polled(tmp_path: Path) -> None:
    http = 'lanes = 5\nkey_window = "24h"\n'
    for account, polled in (
        (http + QUESTION, []),
        (f'{http}poll = "60/min"\npoll_for = "2d"\n{QUESTION}', ["text"]),
    ):
        with opened(tmp_path, account.format(url="https://a.example/m/{{ receipt }}")) as app:
            assert list(app.polls()) == polled


@pytest.mark.parametrize(
    ("account", "says"),
    [
        (
            "",
            r"poll is set, and nothing says how to ask: write \[account\.text\.question\]",
        ),
        (QUESTION.format(url="https://a.example/m"), r"url .* must be https://host/path, with {{ receipt }}"),
        (QUESTION.format(url="https://{{ receipt }}.example/m"), "url .* must be https://host/path"),
        (QUESTION.format(url="http://a.example/{{ receipt }}"), "question.url is http://: use https://"),
        (
            QUESTION.format(url="https://a.example/{{ receipt }}").removeprefix('receipt_path = "id"\n'),
            "receipt_path must go with question",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(account: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(tmp_path, f'lanes = 5\nkey_window = "24h"\npoll = "60/min"\n{account}')


def test_a_provider_that_tells_nobody_afterwards_is_not_polled(tmp_path: Path) -> None:
    account = 'lanes = 5\npoll = "60/min"\npath = "sent"'
    of_http = re.compile(r'^(url = "http|body_json|key_header).*\n', re.MULTILINE)
    text = of_http.sub("", BASE.format(account=account)).replace('"http"', '"file"')
    says = r"poll is set, and provider = 'file' cannot be asked .*http, notify, postmark, sinch"
    with pytest.raises(ConfigError, match=says):
        App(config.parse(text, tmp_path / "sendonce.toml", {}))


def test_what_will_be_late_is_said_and_shown_before_it_happens(tmp_path: Path) -> None:
    """One call a minute; of twenty that fall due in an hour, the first ten or so are in their window."""
    late = 'lanes = 1\nkey_window = "24h"\n[channel.sms.objectives]\naccepted_within = "10m"'
    text = BASE.format(account=late).replace('["10/s"]', '["1/min"]')
    stream = io.StringIO()
    telemetry.configure("warning", "json", stream=stream)
    try:
        with App(config.parse(text, tmp_path / "sendonce.toml", {})) as app:
            app.foresee()
            assert stream.getvalue() == ""
            template = StoredTemplate("default", "t", 1, Channel.SMS, "", "Hello", "", "t1", 0)
            app.store.write(lambda tx: tx.templates.put([template])).result()
            results = Client.of(app).schedule(asked(number) for number in range(20))
            assert all(result.verdict == "accepted" for result in results)
            app.foresee()
            missed = shown_missed(app)
    finally:
        telemetry.silence()
    (line,) = map(json.loads, stream.getvalue().splitlines())
    told = [line[name] for name in ("event", "level", "channel", "account")]
    assert told == ["forecast_late", "warning", "sms", "text"]
    assert line["count"] == missed == pytest.approx(9, abs=1)
    assert line["in_s"] == pytest.approx(3_600, abs=60)
    assert 1 / 60 < line["needed_per_s"] < 0.1  # told as a number, though it is below one a second


def asked(number: int) -> dict[str, object]:
    return {
        "reminder": f"r-{number}",
        "customer": "c-1",
        "due": "in 1h",
        "timezone": "Etc/UTC",
        "template": "t",
        "phone": "+12025550123",
    }


def shown_missed(app: App) -> float:
    """What Prometheus is shown of the forecast."""
    assert app.exposition is not None
    app.exposition.look()
    text = app.exposition.text().decode()
    (shown,) = re.findall(r"^sendonce_forecast_missed_deliveries\{.+\} (\S+)$", text, re.MULTILINE)
    return float(shown)


def test_the_store_is_the_one_that_the_url_names(tmp_path: Path, postgres_url: str) -> None:
    text = BASE.format(account='lanes = 5\nkey_window = "24h"').replace("sqlite:///x.db", postgres_url)
    app = App(config.parse(text, tmp_path / "sendonce.toml", {}))
    assert type(app.store).__name__ == "PostgresStore"
    assert [gate.account for gate in app.store.read(lambda tx: tx.gates.all())] == ["text"]
    app.close()
    assert not (tmp_path / "x.db").exists()


def test_a_store_on_postgresql_without_its_extra_says_what_to_install(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sendonce.store.postgres", None)  # as when psycopg is not there
    monkeypatch.delattr("sendonce.store.postgres")
    text = BASE.format(account='lanes = 5\nkey_window = "24h"').replace("sqlite:///x.db", postgres_url)
    with pytest.raises(ConfigError, match=r"pip install 'sendonce\[postgres\]'"):
        _ = App(config.parse(text, tmp_path / "sendonce.toml", {})).store


def test_only_who_works_puts_its_limits_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks from another machine, with an older file, changes nothing for the workers."""
    told: list[dict[str, object]] = []
    monkeypatch.setattr(
        "sendonce.app.tell", lambda event, **fields: told.append({"event": event.name, **fields})
    )
    keyed = 'key_window = "24h"'

    def lanes(app: App) -> int:
        return next(gate.limits.lanes for gate in app.store.read(lambda tx: tx.gates.all()))

    with opened(tmp_path, f"lanes = 5\n{keyed}") as first, opened(tmp_path, f"lanes = 7\n{keyed}") as second:
        first.worker()
        assert lanes(second) == 5
        second.worker()
        assert lanes(first) == 7
        second.worker()  # nothing new
        first.scheduler()
        assert lanes(first) == 7
    with opened(tmp_path, f"lanes = 3\n{keyed}") as looking:
        assert lanes(looking) == 7
    changed = {"event": "limits_changed", "account": "text", "source": "configuration"}
    # The first one's were in force already: who opens an empty store makes the gates.
    assert told == [{**changed, "limits": "10/1s; 7 lanes; headroom 0", "lanes": 7}]
