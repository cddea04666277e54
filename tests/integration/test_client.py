"""`sendonce.Client`: what a program schedules, takes back and asks, on a real store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import sendonce
from sendonce import Asked, Client, Result, SendonceError
from sendonce.core.errors import ConfigError, InvalidInput, NotFound, StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.pipeline.intake import Verdict
from sendonce.pipeline.templates import add_sources
from sendonce.render import TemplateSource

CONFIG = """
[tenant.default]
zone = "Europe/Berlin"

[intake]
category = "shipment"

[channel.email]
account = "mail"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"

[channel.sms]
account = "text"
expiry = "12h"
alert_after = "15m"
uncertain = "hold"

[account.mail]
provider = "console"
channel = "email"
limits = ["10/s"]
lanes = 1
from = "us@example.com"

[account.text]
provider = "console"
channel = "sms"
limits = ["10/s"]
lanes = 1

[category.shipment]
no_consent = "allow"

[plan.loan]
steps = ["D-3 09:00 email", "D+2 10:00 sms"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sendonce.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def client(config: Path) -> Iterator[Client]:
    with Client(config, environ={}) as made:
        add_template(made)
        yield made


def add_template(client: Client) -> None:
    sources = {
        "email": TemplateSource("email", subject="Hello", text="Hello {{ name }}"),
        "sms": TemplateSource("sms", text="Hello {{ name }}"),
    }
    add_sources(client._app.store, "hello", sources, actor="api:test")


def reminder(id_: str = "r-1", **fields: object) -> dict[str, object]:
    given = {
        "reminder": id_,
        "customer": "c-1",
        "due": "in 2h",
        "template": "hello",
        "email": "ann@example.com",
        "data": {"name": "Ann"},
    }
    return {**given, **fields}


def test_each_reminder_gets_its_own_answer_in_its_place(client: Client) -> None:
    good, bad = reminder("r-1"), reminder("r-2", email="nobody")
    results = client.schedule([good, bad, good, Asked(**reminder("r-3"))])  # type: ignore[arg-type]
    assert [(result.index, result.reminder, result.verdict, result.ok) for result in results] == [
        (0, "r-1", Verdict.ACCEPTED, True),
        (1, "r-2", Verdict.INVALID, False),
        (2, "r-1", Verdict.UNCHANGED, True),
        (3, "r-3", Verdict.ACCEPTED, True),
    ]
    assert results[0].keys == ("r-1:c-1:email",)
    assert (results[1].field, "nobody" in results[1].why) == ("email", True)
    assert "Europe/Berlin" in results[0].notes[0]


def test_places_hold_over_more_than_one_unit(client: Client) -> None:
    many = [reminder(f"r-{number}", **({} if number % 7 else {"due": ""})) for number in range(250)]
    results = client.schedule(iter(many))
    assert [result.index for result in results] == list(range(250))
    assert {result.index for result in results if not result.ok} == set(range(0, 250, 7))


def test_a_plan_gives_a_result_for_each_step(client: Client) -> None:
    far = datetime.now(tz=UTC).date() + timedelta(days=100)
    given = reminder("loan-1", due=None, plan="loan", date=far, phone="+12025550123")
    results = client.schedule([given, reminder("r-1")])
    assert [(result.index, result.reminder) for result in results] == [
        (0, "loan-1/D-3"),
        (0, "loan-1/D+2"),
        (1, "r-1"),
    ]


def test_other_content_conflicts_or_revises_as_asked(client: Client) -> None:
    due = datetime(2030, 1, 2, 9, 0, tzinfo=UTC)
    client.schedule([reminder(due=due)])
    changed = reminder(due=due, data={"name": "Eve"})
    (conflict,) = client.schedule([changed])
    assert (conflict.verdict, conflict.fields) == (Verdict.CONFLICTING, ("data.name",))
    (revised,) = client.schedule([changed], update=True)
    assert (revised.verdict, revised.ok) == (Verdict.REVISED, True)


def test_times_may_be_datetimes(client: Client) -> None:
    due = datetime(2030, 1, 2, 9, 0, tzinfo=UTC)
    (exact,) = client.schedule([reminder("r-1", due=due)])
    (local,) = client.schedule([reminder("r-2", due=datetime(2030, 1, 2, 9, 0), timezone="America/New_York")])  # noqa: DTZ001
    assert exact.ok
    assert local.ok
    stories = [client.status(name)[0] for name in ("r-1", "r-2")]
    hours = [(story.delivery.course.due_at - int(due.timestamp() * 1e6)) / 3.6e9 for story in stories]
    assert hours == [0, 5]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"subject": "Hello"}, "known are category, channels"),
        ({"emial": "ann@example.com"}, "did you mean email"),
        ({"data": "Ann"}, "data is str and must be a mapping"),
        ({"channels": [1]}, "channels is list and must be a list of names"),
        ({"priority": True}, "priority is bool and must be a whole number"),
        ({"customer": 73}, "customer is int and must be text"),
        ({"channels": "email, sms"}, "no phone"),
    ],
)
def test_a_wrong_field_is_named(client: Client, fields: dict[str, object], said: str) -> None:
    (result,) = client.schedule([{**reminder(), **fields}])
    assert result.verdict is Verdict.INVALID
    assert said in result.why


def test_cancel_answers_truly_and_a_preview_changes_nothing(client: Client) -> None:
    client.schedule([reminder("r-1", group="g"), reminder("r-2", group="g")])
    assert client.cancel(group="g", reason="paid", preview=True).changed == 2
    assert client.cancel(delivery="r-1:c-1:email", reason="paid").changed == 1
    done = client.cancel(group="g", reason="paid")
    assert (done.found, done.changed) == (2, 1)
    assert {story.delivery.standing.state for story in client.status("r-1")} == {State.CANCELLED}


def test_names_that_nothing_has_and_names_that_are_not_one(client: Client) -> None:
    with pytest.raises(NotFound, match="check the name"):
        client.cancel(customer="nobody", reason="paid")
    with pytest.raises(InvalidInput, match="exactly one"):
        client.cancel(reason="paid")
    with pytest.raises(InvalidInput, match="exactly one"):
        client.cancel(reason="paid", customer="c-1", group="g")
    with pytest.raises(NotFound):
        client.status("nobody")


def test_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.schedule([reminder(f"r-{number % 10}")]), range(80)))
    verdicts = [result.verdict for answer in answers for result in answer]
    assert verdicts.count(Verdict.ACCEPTED) == 10
    assert verdicts.count(Verdict.UNCHANGED) == 70


def test_the_url_of_a_store_takes_the_place_of_the_configured_one(tmp_path: Path, config: Path) -> None:
    other = tmp_path / "other.db"
    environ = {"SENDONCE_CONFIG": str(config)}
    with Client(f"sqlite:///{other}", environ=environ) as client:
        add_template(client)
        assert client.schedule([reminder()])[0].ok
    assert other.is_file()
    assert not (tmp_path / "sendonce.db").exists()


def test_what_cannot_be_opened_says_so(tmp_path: Path, config: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration"):
        Client(tmp_path / "none.toml", environ={})
    environ = {"SENDONCE_CONFIG": str(config)}
    with (
        Client("sqlite:////none/x.db", environ=environ) as client,
        pytest.raises(StoreUnavailable, match="folder does not exist"),
    ):
        client.schedule([reminder()])
    assert issubclass(StoreUnavailable, SendonceError)


def test_the_package_loads_nothing_until_it_is_asked_to() -> None:
    program = "import sys, sendonce; print(sorted(n for n in sys.modules if n.startswith('sendonce')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sendonce']"
    assert sendonce.__version__
    assert Result.__module__ == "sendonce.pipeline.hand_in"
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = sendonce.Clinet


def test_a_reminder_without_an_id_is_one_that_is_wrong(client: Client) -> None:
    (result,) = client.schedule([{"due": "now", "template": "pay", "email": "ann@example.com"}])
    assert (result.verdict, result.field) == (Verdict.INVALID, "reminder")
