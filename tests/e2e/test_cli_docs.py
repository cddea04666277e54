"""`docs/cli.md` and the commands say the same: every command, option, exit code and key, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from sendonce.cli.exits import Exit
from sendonce.cli.main import app
from sendonce.cli.shell import EVERYWHERE
from sendonce.cli.views import delivery_document
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import Standing, State
from sendonce.ports.store import Course, Delivery
from tests.e2e.command_line import ROOT

PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `?(?:sendonce )?(.+?)`?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, with what it is made of."""
    if not hasattr(command, "list_commands"):
        yield " ".join(path), command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def documented(section: str) -> set[str]:
    """What stands in the first column of a section's table."""
    rows = re.findall(r"^\| (`.+?`) \|", SECTIONS[section], re.MULTILINE)
    return {name for row in rows for name in re.findall("`(.+?)`", row)}


def taken(command: Any) -> set[str]:
    """What a command takes besides the options that hold everywhere."""
    names = set[str]()
    for parameter in command.params:
        if parameter.name in EVERYWHERE or parameter.name == "help":
            continue
        argument = type(parameter).__name__ == "TyperArgument"
        names.update([parameter.metavar or parameter.name.upper()] if argument else parameter.opts)
    return names


def test_each_command_has_its_section_and_each_section_its_command() -> None:
    others = {"Everywhere", "Exit codes", "JSON", "Stopping"}
    assert set(SECTIONS) - others == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_documented_and_each_documented_option_exists(name: str) -> None:
    assert documented(name) == taken(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_and_option_says_what_it_is_for(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert [parameter.name for parameter in command.params if not parameter.help] == []


def test_the_options_that_hold_everywhere_are_documented() -> None:
    assert documented("Everywhere") == {f"--{name}" for name in EVERYWHERE}
    for command in COMMANDS.values():
        assert {parameter.name for parameter in command.params} >= set(EVERYWHERE)


def test_the_exit_codes_are_documented() -> None:
    assert documented("Exit codes") == {str(code.value) for code in Exit}


def test_the_keys_of_a_delivery_are_documented() -> None:
    delivery = Delivery(
        id=1,
        tenant="default",
        key="r:c:sms",
        reminder_id=1,
        customer="c",
        channel=Channel.SMS,
        address_tag="",
        category="",
        group="",
        priority=0,
        standing=Standing(State.SCHEDULED),
        course=Course(0, 0, 0),
        ended_at=0,
        seq=1,
        head="",
    )
    paragraph = SECTIONS["JSON"].split("Several answers hold deliveries")[1]
    assert set(re.findall("`(.+?)`", paragraph)) == set(delivery_document(delivery))


MENTION = re.compile(r"(?:^|[`\s|(])sendonce ((?:[a-z][a-z-]*)(?: [^`\n|]*)?)", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def mentions() -> Iterator[tuple[str, str]]:
    """What pages and messages tell a reader to type: in code of a page, in backquotes of a text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = re.findall(r"^```.*?^```$|^ {4}sendonce .*$|`sendonce [^`]+`", text, re.MULTILINE | re.DOTALL)
        yield from ((page.name, found) for block in code for found in MENTION.findall(block))
    for source in SOURCES:
        for found in re.findall(r"`sendonce ([a-z][^`\n]*)`", source.read_text(encoding="utf-8")):
            yield source.name, found


@pytest.mark.parametrize(("where", "typed"), sorted(set(mentions())))
def test_what_a_page_or_a_message_tells_to_type_exists(where: str, typed: str) -> None:
    words = typed.split()
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    if words[0] in groups and len(words) == 1:
        return
    name = " ".join(words[:2]) if words[0] in groups else words[0]
    assert name in COMMANDS
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    refused = {option for parameter in COMMANDS[name].params for option in parameter.secondary_opts}
    known = taken(COMMANDS[name]) | refused | {f"--{option}" for option in EVERYWHERE} | {"--help"}
    assert {option.strip(",.;)'\"") for option in options} - known == set()
