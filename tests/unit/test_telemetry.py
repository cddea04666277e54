"""Events: nothing untold, nothing personal told, nothing paid for what is not told."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from sendonce import telemetry
from sendonce.core.outcome import Reason
from sendonce.telemetry import EVENTS, FIELDS, Event, configure, fault, only_known, silence, tell, tells

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "configuration.md"
NAMES = {level: name for name, level in telemetry.LEVELS.items()}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    silence()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def told(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def json_log(level: str = "debug", process: str = "") -> io.StringIO:
    stream = io.StringIO()
    configure(level, "json", process=process, stream=stream)
    return stream


def test_an_event_is_told_with_its_fields_in_json() -> None:
    stream = json_log(process="worker-2")
    tell(telemetry.REAPED, delivery="a:b:sms", account="text", epoch=4, state="QUEUED", why="lease_lost")
    (line,) = told(stream)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "event": "reaped",
        "level": "warning",
        "delivery": "a:b:sms",
        "account": "text",
        "epoch": 4,
        "state": "QUEUED",
        "why": "lease_lost",
        "process": "worker-2",
    }


def test_an_event_is_told_in_one_line_of_text() -> None:
    stream = io.StringIO()
    configure("info", "text", stream=stream)
    tell(telemetry.GATE_CLOSED, account="mail", why="429\n\x1b[2Jforged", wait_s=1.5)
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    for part in ("warning", "gate_closed", "account=mail", "wait_s=1.5"):
        assert part in stream.getvalue()


def test_stderr_is_where_it_goes_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    tell(telemetry.GATE_OPENED, account="mail")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "gate_opened"


@pytest.mark.parametrize("level", telemetry.LEVELS)
def test_what_is_below_the_level_is_not_told(level: str) -> None:
    stream = json_log(level)
    for event in EVENTS.values():
        tell(event)
    loud = [event for event in EVENTS.values() if event.level >= telemetry.LEVELS[level]]
    assert [line["event"] for line in told(stream)] == [event.name for event in loud]
    assert [line["level"] for line in told(stream)] == [NAMES[event.level] for event in loud]
    assert [event for event in EVENTS.values() if tells(event)] == loud


def test_what_is_not_told_costs_no_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    json_log("warning")
    made: list[str] = []
    monkeypatch.setattr(structlog, "get_logger", lambda: made.append("logger"))
    tell(telemetry.OUTCOME, delivery="a:b:sms")
    assert made == []
    tell(telemetry.REAPED, delivery="a:b:sms")
    assert made == ["logger"]


def test_a_library_is_quiet_until_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    tell(telemetry.PROVEN_ALARM, delivery="a:b:sms")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
    assert not tells(telemetry.PROVEN_ALARM)


@pytest.mark.parametrize(("level", "form"), [("loud", "json"), ("info", "xml")])
def test_an_unknown_level_or_format_is_refused(level: str, form: str) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        configure(level, form)


def test_telling_never_raises() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    configure("debug", "json", stream=Full())
    tell(telemetry.REAPED, delivery="a:b:sms")
    closed = json_log()
    closed.close()
    tell(telemetry.REAPED, delivery="a:b:sms")


# No personal data


def test_a_field_that_the_event_does_not_list_is_dropped_and_named() -> None:
    stream = json_log()
    tell(telemetry.RECONCILED, account="mail", address="ann@example.com", body="Dear Ann", took_s=0.1)
    (line,) = told(stream)
    assert line["dropped"] == ["address", "body"]
    assert (line["account"], line["took_s"]) == ("mail", 0.1)
    assert "Ann" not in stream.getvalue()
    assert "ann" not in stream.getvalue()


def test_an_event_outside_the_catalogue_tells_nothing_but_that() -> None:
    stream = json_log()
    tell(Event("made_up", "", telemetry.ERROR, ("delivery",)), delivery="secret")
    (line,) = told(stream)
    assert line["event"] == "unknown_event"
    assert "secret" not in stream.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("429", "429"),
        (3, 3),
        (0.5, 0.5),
        (True, True),
        (None, None),
        (Reason.BLOCKED, "blocked"),
        ("loan-77/D+2:customer-73:sms", "loan-77/D+2:customer-73:sms"),
        ("loan-77/2026-12:customer-73:sms", "loan-77/2026-12:customer-73:sms"),
        ("no mailbox <ann.o'hara+x@example.com> here", "no mailbox <<address>> here"),
        ("loan:ann@example.com:email", "loan:<address>:email"),
        ("to +49 151 123-456 78 failed", "to <number> failed"),
        ("sms:+12025550123", "sms:<number>"),
        ("a\r\nb\u2028c\x1b[0m\u202e", "a??b?c?[0m?"),
        ("x" * 300, "x" * 200),
        ({"to": "ann@example.com"}, "<dict>"),
        (["ann@example.com"], "<list>"),
        (b"ann@example.com", "<bytes>"),
        (ValueError("ann@example.com"), "<ValueError>"),
    ],
)
def test_a_value_is_a_short_clean_line_or_the_name_of_its_type(value: object, shown: object) -> None:
    line = only_known(None, "", {"event": "gate_opened", "account": value})
    assert line["account"] == shown


@given(
    st.sampled_from(sorted(EVENTS)),
    st.dictionaries(
        st.sampled_from([*sorted(FIELDS), "to", "body", "exc_info", "stack_info"]),
        st.text() | st.binary() | st.builds(Path, st.just("ann@example.com")),
        max_size=6,
    ),
)
def test_only_listed_fields_and_single_lines_pass(event: str, fields: dict[str, object]) -> None:
    line = only_known(None, "", {"event": event, **fields})
    assert line.keys() <= {"event", "level", "dropped", *EVENTS[event].fields}
    for value in line.values():
        assert isinstance(value, str | list)
        assert len(str(value).splitlines()) <= 1
        assert "ann@" not in str(value)


@given(
    st.text(" abc:'<", max_size=8),
    st.emails() | st.from_regex(r"\+[1-9][0-9]{8,13}", fullmatch=True),
    st.text(" abc:'>", max_size=8),
)
def test_no_address_or_number_passes(before: str, address: str, after: str) -> None:
    line = only_known(None, "", {"event": "gate_opened", "account": f"{before}{address}{after}"})
    assert address not in line["account"]


def test_an_exception_is_told_by_type_and_place_only() -> None:
    def raises() -> None:
        raise KeyError("ann@example.com")

    try:
        raises()
    except KeyError as error:
        found = fault(error)
    assert found["error"] == "KeyError"
    file, _, line = found["at"].partition(":")
    assert file == "test_telemetry.py"
    assert int(line) == raises.__code__.co_firstlineno + 1
    assert fault(ValueError("never raised")) == {"error": "ValueError", "at": ""}


def test_what_libraries_log_is_told_without_its_text() -> None:
    stream = json_log("info")
    logging.getLogger("aiosmtplib").warning("refused ann@example.com")
    logging.getLogger("aiosmtplib").info("not told")
    try:
        raise RuntimeError("ann@example.com")
    except RuntimeError:
        logging.getLogger("asyncio").exception("of ann@example.com")
    warned, raised = told(stream)
    assert (warned["event"], warned["library"], warned["error"]) == ("library_warned", "aiosmtplib", "")
    assert str(warned["at"]).startswith("test_telemetry.py:")
    assert (raised["library"], raised["error"]) == ("asyncio", "RuntimeError")
    assert "ann" not in stream.getvalue()


# The catalogue


def test_each_event_has_a_meaning_and_each_field_means_one_thing() -> None:
    assert all(event.meaning.endswith(".") for event in EVENTS.values())
    assert all(event.level in NAMES for event in EVENTS.values())
    used = {field for event in EVENTS.values() for field in event.fields}
    assert used == set(FIELDS)
    assert list(FIELDS) == sorted(FIELDS)
    assert not used & {"event", "level", "timestamp", "process", "dropped"}


def test_each_constant_is_named_as_its_event() -> None:
    constants = {name: value for name, value in vars(telemetry).items() if isinstance(value, Event)}
    assert {name.lower() for name in constants} == set(EVENTS)
    assert len(constants) == len(EVENTS)


def test_each_event_and_field_is_documented() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for event in EVENTS.values():
        fields = ", ".join(f"`{field}`" for field in event.fields)
        row = f"| `{event.name}` | {NAMES[event.level]} | {event.meaning} | {fields} |"
        assert row in page, f"write into docs/configuration.md: {row}"
    for name, meaning in FIELDS.items():
        row = f"| `{name}` | {meaning} |"
        assert row in page, f"write into docs/configuration.md: {row}"


def test_only_events_and_fields_of_the_catalogue_are_told() -> None:
    """Reads every `tell(EVENT, field=...)` of the source: a dropped field would only be seen in a log."""
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")}
    calls = [(path, call, module) for path, module in modules.items() for call in _tells(module)]
    assert calls, "the source tells nothing"
    wrong = [f"{path}:{call.lineno}: {why}" for path, call, module in calls for why in _wrong(call, module)]
    assert wrong == []


def _tells(module: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and node.args and _last_name(node.func) == "tell":
            yield node


def _wrong(call: ast.Call, module: ast.Module) -> Iterator[str]:
    names = list(_event_names(call.args[0], module))
    if not names:
        yield f"{ast.unparse(call)} tells an event that cannot be read from the source"
    for name in names:
        event = vars(telemetry).get(name)
        if not isinstance(event, Event):
            yield f"{name} is no event"
            continue
        for keyword in call.keywords:
            # `**fault(error)` is the only way to give fields that are not written out.
            for field in [keyword.arg] if keyword.arg else ["error", "at"]:
                if field not in event.fields:
                    yield f"{field} is no field of {event.name}"


def _event_names(chosen: ast.expr, module: ast.Module) -> Iterator[str]:
    """The events that an expression may stand for: one, a choice of two, or a variable that holds either."""
    match chosen:
        case ast.IfExp(body=one, orelse=other):
            yield from _event_names(one, module)
            yield from _event_names(other, module)
        case ast.Name(id=variable) if variable.islower():
            for node in ast.walk(module):
                if isinstance(node, ast.Assign) and [_last_name(each) for each in node.targets] == [variable]:
                    yield from _event_names(node.value, module)
        case _:
            yield _last_name(chosen)


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def test_an_enumeration_is_shown_as_its_word() -> None:
    class Word(StrEnum):
        ONE = "one"

    assert only_known(None, "", {"event": "gate_opened", "account": Word.ONE})["account"] == "one"


def test_every_event_is_told_somewhere_and_every_field_is_of_an_event() -> None:
    """A catalogue that promises what nobody says is worse than none."""
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "telemetry.py"
    )
    names = [name for name, value in vars(telemetry).items() if isinstance(value, telemetry.Event)]
    told_by_telemetry = {"LIBRARY_WARNED"}
    untold = [n for n in names if n not in told_by_telemetry and f"telemetry.{n}" not in source]
    assert untold == []
    assert {field for event in EVENTS.values() for field in event.fields} == set(FIELDS)
