"""What the console decides by itself: roles, sessions, form tokens, tries, users, links and charts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sendonce.console import charts, forms, session
from sendonce.console.forms import Forged
from sendonce.console.page import Page, environment, link, render, statics
from sendonce.console.roles import SCOPES, Role, role_of
from sendonce.console.routes import ROUTES
from sendonce.console.tries import ALL_BURST, FREE, WAIT_MAX_S, Tries
from sendonce.console.users import Users, hash_password
from sendonce.core.access import Scope
from sendonce.core.errors import ConfigError, InvalidInput

SECRET = b"s" * 32
NOW = 1_800_000_000_000_000
SECOND = 1_000_000
PASSWORD = "four random words it is"
HASH = hash_password(PASSWORD)


# Roles


def test_each_role_may_what_those_before_it_may() -> None:
    before: frozenset[Scope] = frozenset()
    for role in Role:
        assert before < SCOPES[role]
        assert role_of(SCOPES[role]) == role
        before = SCOPES[role]
    assert before == frozenset(Scope)
    assert role_of(frozenset({Scope.SCHEDULE})) == ""


def test_whatever_changes_something_takes_more_than_looking() -> None:
    assert {route.scope for (method, _), route in ROUTES.items() if method == "POST"} == {
        Scope.CANCEL,
        Scope.SCHEDULE,
        Scope.OPERATE,
        Scope.ADMIN,
    }


# Sessions


def ticket() -> session.Ticket:
    return session.Ticket("user", "ann", "m" * 32, "i" * 32, NOW, NOW + 3_600 * SECOND)


def test_a_cookie_is_read_while_its_time_lasts() -> None:
    cookie = session.write(ticket(), SECRET)
    assert session.read(cookie, SECRET, NOW) == ticket()
    assert session.read(cookie, SECRET, NOW + 3_600 * SECOND) is None
    assert session.read(cookie, SECRET, NOW - 1) is None  # of a clock that was put back
    assert session.read(cookie, b"t" * 32, NOW) is None


def test_a_cookie_that_anybody_touched_is_none() -> None:
    cookie = session.write(ticket(), SECRET)
    for place in range(0, len(cookie), 7):
        other = "A" if cookie[place] != "A" else "B"
        assert session.read(cookie[:place] + other + cookie[place + 1 :], SECRET, NOW) is None
    for text in ("", ".", "a.b", "é.é", cookie * 9, cookie + "="):
        assert session.read(text, SECRET, NOW) is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("127.0.0.1:80", True),
        ("[::1]:8080", True),
        ("LOCALHOST:1", True),
        ("localhost.example.com", False),
        ("reminders.example.com", False),
        ("127.0.0.1.example.com:80", False),
        ("", False),
    ],
)
def test_only_this_machine_needs_no_secure_cookie(host: str, local: bool) -> None:
    assert session.is_local(host) is local


# Forms


def test_a_token_is_for_one_session_and_one_path_and_some_hours() -> None:
    given = forms.token("s-1", "/console/cancel", SECRET, NOW)
    assert forms.nonce_of(given, "s-1", "/console/cancel", SECRET, NOW)
    later = NOW + forms.LIFE_US + SECOND
    for wrong in (
        (given, "s-2", "/console/cancel", SECRET, NOW),
        (given, "s-1", "/console/redrive", SECRET, NOW),
        (given, "s-1", "/console/cancel", b"t" * 32, NOW),
        (given, "s-1", "/console/cancel", SECRET, later),
        (given[1:], "s-1", "/console/cancel", SECRET, NOW),
        ("", "s-1", "/console/cancel", SECRET, NOW),
        ("a.b.c.d", "s-1", "/console/cancel", SECRET, NOW),
        ("é.1.é", "s-1", "/console/cancel", SECRET, NOW),
    ):
        with pytest.raises(Forged):
            forms.nonce_of(*wrong)


# Tries


def test_a_name_that_fails_waits_longer_and_longer_but_a_minute_at_most() -> None:
    tries, now, waits = Tries(), 0.0, []
    for _ in range(20):
        waits.append(tries.wait_s("ann", now))
        now += waits[-1] + 1.0
        tries.failed("ann", now)
        now += 0.5
    assert waits[: FREE + 1] == [0.0] * (FREE + 1)
    assert waits[FREE + 1 :] == sorted(waits[FREE + 1 :])
    assert 0 < max(waits) <= WAIT_MAX_S
    assert tries.wait_s("bea", now) == 0.0
    tries.succeeded("ann")
    assert tries.wait_s("ann", now) == 0.0


def test_all_names_together_may_try_so_often() -> None:
    tries = Tries()
    allowed = sum(tries.wait_s(f"name-{number}", 0.0) == 0.0 for number in range(100))
    assert allowed == ALL_BURST
    assert tries.wait_s("one-more", 10.0) == 0.0


# The user file


def users(tmp_path: Path, text: str) -> Users:
    path = tmp_path / "users.toml"
    path.write_text(text, "utf-8")
    return Users(path)


def test_a_user_is_known_by_name_and_password(tmp_path: Path) -> None:
    found = users(tmp_path, f'[user.ann]\nrole = "support"\npassword = "{HASH}"\n')
    ann = found.check("ann", PASSWORD)
    assert ann is not None
    assert (ann.role, ann.tenant) == (Role.SUPPORT, "default")
    for name, password in (("ann", "wrong"), ("bea", PASSWORD), ("", ""), ("ann", "x" * 9_999)):
        assert found.check(name, password) is None


def test_a_user_who_changed_has_another_mark(tmp_path: Path) -> None:
    marks = set()
    for role, tenant in (("support", "default"), ("admin", "default"), ("support", "acme")):
        text = f'[user.ann]\nrole = "{role}"\npassword = "{HASH}"\ntenant = "{tenant}"\n'
        ann = users(tmp_path, text).find("ann")
        assert ann is not None
        marks.add(ann.mark)
    assert len(marks) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[user", "is no TOML"),
        ("[users.ann]", "may have"),
        ('[user.ann]\nrole = "support"\n', "sendonce console password"),
        (f'[user.ann]\nrole = "boss"\npassword = "{HASH}"\n', "must be one of viewer"),
        (f'[user.ann]\nroles = "admin"\npassword = "{HASH}"\n', "did you mean role"),
        ('[user.ann]\nrole = "admin"\npassword = "plain words here"\n', "sendonce console password"),
        (f'[user."a b"]\nrole = "admin"\npassword = "{HASH}"\n', "is no name"),
        ("[user.ann]\nrole = 1\n", "must have texts"),
    ],
)
def test_a_user_file_that_is_wrong_says_what(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        users(tmp_path, text)


def test_a_user_file_that_is_not_there_lets_nobody_in(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Users(tmp_path / "none.toml")


@pytest.mark.parametrize("password", ["", "short", "x" * 201])
def test_a_password_that_is_too_short_or_too_long_is_refused(password: str) -> None:
    with pytest.raises(InvalidInput, match="12 to 200"):
        hash_password(password)


# Pages


def test_a_link_escapes_what_it_names() -> None:
    assert link("story", of='a/b:c"<>&=é') == "/console/story?of=a%2Fb%3Ac%22%3C%3E%26%3D%C3%A9"
    assert link("dead", cause="", account="mail") == "/console/dead?account=mail"


def test_nothing_in_a_chart_is_taken_for_markup() -> None:
    label = '"><script>alert(1)</script>'
    for drawn in (
        charts.meter(1, 2, label),
        charts.shares([("good", 1)], label),
        charts.stacks([[("good", 3)], []], label),
    ):
        assert "<script" not in drawn
        assert "&lt;script" in drawn
        assert " style=" not in drawn


def test_a_chart_of_nothing_is_drawn_too() -> None:
    assert "<svg" in charts.stacks([], "none")
    assert 'width="0.0"' in charts.meter(0, 0, "none")
    assert 'width="100.0"' in charts.meter(9, 3, "more than all of it")


def test_every_template_is_one_that_compiles_and_holds_no_script_or_style() -> None:
    names = environment().list_templates()
    assert len(names) > 15
    for name in names:
        source = environment().loader.get_source(environment(), name)[0]  # type: ignore[union-attr]
        environment().get_template(name)
        assert "style=" not in source, name
        assert "<style" not in source, name
        assert " onclick" not in source, name
        assert "http://" not in source, name
        assert "https://" not in source, name
        assert "| safe" not in source, name


def test_the_script_is_the_one_that_was_taken_in() -> None:
    # The published file of htmx 2.0.11, unchanged.
    script = statics()["htmx.min.js"]
    assert 'version:"2.0.11"' in script.content.decode()
    assert script.integrity.startswith("sha384-")


def test_a_time_is_told_in_the_readers_zone_with_utc_beside() -> None:
    made = environment().from_string("{{ at | at }}").render(at=NOW, now=NOW, zone="Europe/Berlin")
    assert made == (
        '<time datetime="2027-01-15T08:00:00Z" title="2027-01-15 08:00:00 UTC">15 Jan 09:00:00</time>'
    )
    assert "–" in environment().from_string("{{ 0 | at }}").render(now=NOW, zone="UTC")


def test_the_door_says_nothing_of_who_is_known() -> None:
    shown = render(Page("sign_in.html"), token="t", onward="", problem="", users=True, name='"><b>')
    assert "<b>" not in shown
