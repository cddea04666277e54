"""What a customer's answer means: a table of answers, and what must never be taken for a "no" or a "yes"."""

from __future__ import annotations

import pytest

from sendonce.core.opt_out import (
    AGAIN,
    BESIDE,
    HELP,
    NO_BY_COUNTRY,
    NO_BY_PROVIDER,
    NO_EVERYWHERE,
    NO_FCC,
    REQUESTS,
    TEXT_READ_MAX,
    Meaning,
    read,
)


@pytest.mark.parametrize("word", sorted(NO_EVERYWHERE))
@pytest.mark.parametrize("dress", ["{}", " {} ", "{}.", '"{}"', "\u201c{}!\u201d", "{}\r\n", "*{}*"])
def test_a_known_word_alone_is_a_no_however_it_is_dressed(word: str, dress: str) -> None:
    for spelled in (word, word.upper(), word.title()):
        assert read(dress.replace("{}", spelled)).meaning is Meaning.OPTED_OUT


def test_what_the_regulator_lists_is_known_everywhere_and_so_is_what_any_provider_acts_on() -> None:
    assert NO_FCC <= NO_EVERYWHERE
    for words in NO_BY_PROVIDER.values():
        assert words <= NO_EVERYWHERE


@pytest.mark.parametrize(
    "text",
    [
        "\uff33\uff34\uff2f\uff30",  # full width
        "S\u200bTOP",  # with an invisible blank in it
        "s t o p",
        "ARR\u00caT",
        "arre\u0302t",
        "Opt-out",
        "opt_out",
        "Opt me out of this",
        "please stop",
        "STOP please!!",
        "Stop sending me these texts",
        "pls stop texting me, thank you",
        "STOP \U0001f6d1",
        "stop it now",
        "Unsubscribe me from all messages please",
        "don't text me again",
        "Don\u2019t contact me",
        "dont message me",
        "do not send me these reminders",
        "Remove me from your list",
        "take me off the list",
        "no more texts",
        "leave me alone",
        "STOP STOP STOP",
        "do not send me any more reminders",
    ],
)
def test_plain_requests_are_a_no(text: str) -> None:
    assert read(text).meaning is Meaning.OPTED_OUT


@pytest.mark.parametrize(
    "text",
    [
        "don't stop",
        "please do not stop sending these",
        "cancel my appointment on Friday",
        "I want to cancel",
        "please cancel",
        "When does it end?",
        "stop by at 5?",
        "Is this the bus stop",
        "stop until Monday",
        "stoptexting",
        "unsubcribe",
        "unsuscribe me",
        "Wrong number",
        "If I quit my job, can I pay later",
        "stop " + "and tell my brother as well " * 5,
    ],
)
def test_what_may_be_a_no_is_for_a_person(text: str) -> None:
    assert read(text).meaning is Meaning.UNCLEAR


@pytest.mark.parametrize(
    "text", ["", " ", "?!", "Thanks!", "yes", "ok see you on Friday", "I will pay", "started"]
)
def test_other_answers_are_no_answer_to_this(text: str) -> None:
    assert read(text) == read("anything")
    assert read(text).meaning is Meaning.OTHER


def test_only_start_and_unstop_alone_are_a_yes() -> None:
    assert [read(text).meaning for text in ("START", " unstop. ")] == [Meaning.OPTED_IN] * 2
    for text in ("yes", "please start", "start again", "when does it start", "subscribe"):
        assert read(text).meaning is not Meaning.OPTED_IN


def test_help_and_info_alone_ask_for_help() -> None:
    assert [read(text).meaning for text in ("Help", "INFO?")] == [Meaning.HELP] * 2
    assert read("help me move this").meaning is Meaning.OTHER


def test_words_of_a_language_hold_where_it_is_spoken() -> None:
    assert read("ABMELDEN", country="DE").meaning is Meaning.OPTED_OUT
    assert read("D\u00e9sabonner", country="fr").meaning is Meaning.OPTED_OUT
    assert read("baja", country="MX").meaning is Meaning.OPTED_OUT
    assert read("baja", country="DE").meaning is Meaning.OTHER
    assert read("baja").meaning is Meaning.OTHER


def test_the_word_that_was_found_is_told_and_nothing_else_of_the_text() -> None:
    assert read("Please STOP texting me").word == "stop"
    assert read("Cancel my visit, Ann Smith").word == "cancel"
    assert read("Ann Smith").word == ""


def test_a_text_of_any_size_is_read_in_bounds() -> None:
    assert read("stop" + " " * TEXT_READ_MAX * 500).meaning is Meaning.OPTED_OUT
    assert read("a" * 2_000_000).meaning is Meaning.OTHER
    assert read("\u0301" * 100_000).meaning is Meaning.OTHER


def test_the_tables_hold_what_the_reading_leaves_of_a_word() -> None:
    tables = [NO_EVERYWHERE, AGAIN, HELP, REQUESTS, BESIDE, *NO_BY_COUNTRY.values()]
    for word in set().union(*tables):
        assert word.isascii()
        assert " ".join(word.lower().split()) == word
    assert not any(set(request.split()) & BESIDE for request in REQUESTS), "it could never be found"
    assert not BESIDE & {"not", "dont", "never", "until", "unless", "no"}
    assert not NO_EVERYWHERE & AGAIN
