"""Templates: what they render, what they refuse, and that nobody can make one run away."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from sendonce import render
from sendonce.core import segments
from sendonce.core.errors import InvalidInput
from sendonce.render import (
    FILTERS,
    Rendered,
    TemplateSource,
    compile_template,
    content_hash,
    load_template,
)

ROOT = Path(__file__).parents[2]


def email(subject: str = "s", text: str = "", html: str = "") -> TemplateSource:
    return TemplateSource("email", subject=subject, text=text, html=html)


def text_of(source: str, /, **data: object) -> str:
    return compile_template(email(text=f"[{source}]")).render(data).text[1:-1]


def html_of(source: str, /, **data: object) -> str:
    return compile_template(email(html=source)).render(data).html


def subject_of(source: str, /, **data: object) -> str:
    return compile_template(email(subject=source, text="t")).render(data).subject


def sms_of(source: str, /, **data: object) -> str:
    return compile_template(TemplateSource("sms", text=source)).render(data).text


def refusal(source: TemplateSource, data: dict[str, object] | None = None) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        compile_template(source).render(data or {})
    assert str(caught.value).isprintable()
    return caught.value


# What is rendered.


def test_all_parts_of_an_email() -> None:
    source = email("Order {{ order }}", "Hello {{ name }},\n{{ order }}\n", "<p>{{ name }}</p>\n")
    assert compile_template(source).render({"order": "A-1", "name": "Ann", "unused": 1}) == Rendered(
        "Order A-1", "Hello Ann,\nA-1\n", "<p>Ann</p>\n"
    )


def test_one_body_is_enough() -> None:
    assert compile_template(email("s", text="t")).render({}) == Rendered("s", "t", "")
    assert compile_template(email("s", html="<p>h</p>")).render({}) == Rendered("s", "", "<p>h</p>")


def test_only_html_is_escaped_and_only_once() -> None:
    """CONT-13."""
    name = "O'Brien & Søn <VIP>"
    assert subject_of("{{ name }}", name=name) == name
    assert text_of("{{ name }}", name=name) == name
    assert sms_of("{{ name }}", name=name) == name
    assert html_of("<b>{{ name }}</b>", name=name) == "<b>O&#39;Brien &amp; Søn &lt;VIP&gt;</b>"
    assert html_of("{{ 'a' ~ name|upper }}", name="<i>") == "a&lt;I&gt;"


def test_markup_objects_are_data_like_all_else() -> None:
    assert html_of("{{ x }}", x=Markup("<script>")) == "&lt;script&gt;"


@pytest.mark.parametrize(
    "name",
    [
        "Ann\r\nBcc: spy@example.net",
        "Ann\nX: 1",
        "Ann\u2028Bcc: x",
        "Ann\u0085x",
        "Ann\u000bx",
        "Ann\rX",
        "Ann\x1cx",
        "Ann \n\n\t X",
    ],
)
def test_line_breaks_in_a_value_stay_out_of_the_subject(name: str) -> None:
    """CONT-01."""
    subject = subject_of("Reminder for {{ name }}\n", name=name)
    assert subject.splitlines() == [subject]
    assert subject.isprintable()
    assert subject.startswith("Reminder for Ann ")
    assert len(text_of("{{ name }}", name=name).splitlines()) >= 2


def test_the_template_itself_may_break_the_subject_line() -> None:
    assert subject_of("  Order\n  {{ n }}\n", n=1) == "Order 1"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Ali\u202e", "Ali"),
        ("\u202eexe.fdp", "exe.fdp"),
        ("\u2066Ali\u2069", "Ali"),
        ("\u202a\u202b\u202c\u202d\u2067\u2068x", "x"),
        ("علي", "علي"),
        ("דנה", "דנה"),
        ("\u200fדנה\u200e", "\u200fדנה\u200e"),
        ("नि\u200dक", "नि\u200dक"),
        ("a\x1b[31mb\x07\x7f\x9b", "a[31mb"),
        ("a\r\nb\rc\u2029d\x0ce", "a\nb\nc\nd\ne"),
        ("tab\tkept", "tab\tkept"),
    ],
)
def test_what_would_harm_the_text_around_a_value_is_taken_out(value: str, shown: str) -> None:
    """CONT-17."""
    assert text_of("{{ x.y[0] }}", x={"y": [value]}) == shown
    assert text_of("{% for k, v in x|items %}{{ k }}{% endfor %}", x={value: 1}) == shown


def test_the_authors_own_direction_marks_stay() -> None:
    assert text_of("\u2067{{ x }}\u2069", x="דנה") == "\u2067דנה\u2069"


def test_control_lines_leave_no_blank_lines() -> None:
    source = "a\n{% for l in lines %}\n  - {{ l }}\n{% endfor %}\nb\n"
    assert text_of(source, lines=["x", "y"]) == "a\n  - x\n  - y\nb\n"


def test_line_ends_and_byte_order_mark_of_the_source_do_not_matter() -> None:
    assert text_of("a\r\n{{ x }}\rb", x=1) == "a\n1\nb"
    assert subject_of("\ufeffa") == "a"


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("name", "ann lee"),
        ("name|upper", "ANN LEE"),
        ("'ABC'|lower", "abc"),
        ("name|title", "Ann Lee"),
        ("name|capitalize", "Ann lee"),
        ("'  x '|trim", "x"),
        ("name|replace('ann', 'Bob')", "Bob lee"),
        ("name|first", "a"),
        ("lines|last", "c"),
        ("lines|join(', ')", "a, b, c"),
        ("lines|length", "3"),
        ("order|count", "2"),
        ("name|truncate(6)", "ann..."),
        ("name|truncate(7)", "ann lee"),
        ("note|default('none')", "none"),
        ("missing|default('none')", "none"),
        ("empty|default('none')", ""),
        ("empty|default('none', true)", "none"),
        ("order.items", "3"),
        ("order['keys']", "4"),
        ("lines[1] ~ lines[-1]", "bc"),
        ("name[:3]", "ann"),
        ("'2' ~ 3", "23"),
        ("'a' + 'b'", "ab"),
        ("7 // 2 + 7 % 2 * 10", "13"),
        ("-(1 - 3) / 4", "0.5"),
        ("'12'|int + 1", "13"),
        ("'12.9'|int", "12"),
        ("'x'|int(0)", "0"),
        ("'1.50'|float", "1.5"),
        ("'x'|float(2.5)", "2.5"),
        ("(-3)|abs", "3"),
        ("2.5|round", "3"),
        ("1.005|round(2)", "1.01"),
        ("'3'|round(2)", "3.00"),
        ("2.675|round(2) + 1", "3.68"),
        ("amount|money('USD')", "USD 1,234.50"),
        ("1234567|money('JPY')", "JPY 1,234,567"),
        ("1234.5|money('EUR', '.', ',')", "EUR 1.234,50"),
        ("1234.5|money('EUR', '')", "EUR 1234.50"),
        ("'-0.125'|money('KWD')", "KWD -0.125"),
        ("0.1|money('USD')", "USD 0.10"),
        ("due|date", "4 May 2026"),
        ("due|date('%A, %d %b %Y')", "Monday, 04 May 2026"),
        ("at|date('%Y-%m-%d %H:%M, %-I:%M %p, %-m/%-d %a 100%%')", "2026-05-04 15:07, 3:07 PM, 5/4 Mon 100%"),
        ("'2026-05-04T00:30:00Z'|date('%I:%M %p')", "12:30 AM"),
        ("{'de': 'Hallo', 'en': 'Hello'}[lang]", "Hallo"),
        ("'yes' if lang in ['de', 'fr'] else 'no'", "yes"),
        ("'yes' if note is none and missing is undefined else 'no'", "yes"),
        ("'yes' if empty", ""),
        ("'yes' if 2 < 3 <= 3 and not empty else 'no'", "yes"),
    ],
)
def test_expressions(expression: str, shown: str) -> None:
    data: dict[str, object] = {
        "name": "ann lee",
        "lines": ["a", "b", "c"],
        "note": None,
        "empty": "",
        "order": {"items": 3, "keys": 4},
        "amount": "1234.50",
        "due": "2026-05-04",
        "at": "2026-05-04T15:07:00+02:00",
        "lang": "de",
    }
    assert text_of(f"{{{{ {expression} }}}}", **data) == shown


def test_loops() -> None:
    source = (
        "{% for k, v in order|items %}{{ loop.index }}{{ k }}{{ v }}{{ ' ' if not loop.last }}{% endfor %}"
        "{% for k in order if k != 'a' %}<{{ k }}>{% else %}none{% endfor %}"
        "{% for x in ['p', 'q'] %}{{ x }}{{ loop.length }}{% endfor %}"
        "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}"
    )
    assert text_of(source, order={"a": 1, "b": 2}, nothing=[]) == "1a1 2b2<b>p2q2none"


def test_a_branch_that_is_not_taken_needs_no_data() -> None:
    assert text_of("{% if x == 1 %}{{ y }}{% endif %}", x=2) == ""


def test_variables_are_those_the_template_reads() -> None:
    source = email(
        "{{ a }}", "{{ b.c }} {% for x in d %}{{ x }}{{ loop.index }}{% endfor %}", "{{ e|default(f) }}"
    )
    assert compile_template(source).variables == {"a", "b", "d", "e", "f"}


# What the data lacks, or must not be.


def test_a_missing_variable_is_named_with_part_line_and_what_there_is() -> None:
    error = refusal(email("s", "a\n{{ nmae }}"), {"name": "secret", "due": "2026-05-04"})
    assert str(error) == (
        "template part text, line 2: variable 'nmae' is missing; the data has due, name: "
        "add it, or give it a default"
    )
    assert (error.code, error.field) == ("missing_variable", "text")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ order.total }}", "'total' is missing in an object that has id, lines"),
        ("{{ order.lines[7] }}", "a list has no value '7'"),
        ("{{ name.upper }}", "text has no value 'upper'"),
        ("{{ nobody.name }}", "variable 'nobody' is missing"),
        ("{{ nobody|upper }}", "variable 'nobody' is missing"),
        ("{{ nobody ~ 'x' }}", "variable 'nobody' is missing"),
        ("{{ nobody + 1 }}", "variable 'nobody' is missing"),
        ("{{ nobody|money('USD') }}", "variable 'nobody' is missing"),
        ("{{ nobody|join }}", "variable 'nobody' is missing"),
        ("{% if nobody %}x{% endif %}", "variable 'nobody' is missing"),
        ("{% if nobody == 1 %}x{% endif %}", "variable 'nobody' is missing"),
        ("{% for x in nobody %}x{% endfor %}", "variable 'nobody' is missing"),
        ("{% for x in nobody|items %}x{% endfor %}", "variable 'nobody' is missing"),
    ],
)
def test_missing_values_of_all_kinds(source: str, words: str) -> None:
    for part in (email(text=source), email(html=source), email(subject=source, text="t")):
        error = refusal(part, {"name": "Ann", "order": {"id": 1, "lines": []}})
        assert error.code == "missing_variable"
        assert words in str(error)
        assert "Ann" not in str(error)


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ("{{ x }}", None, "null cannot be shown: give it a default"),
        ("{{ x }}", True, "true or false cannot be shown"),
        ("{{ x }}", [1], "a list cannot be shown"),
        ("{{ x }}", {"a": 1}, "an object cannot be shown"),
        ("{{ x ~ 'a' }}", None, "null cannot be shown"),
        ("{{ x|int }}", "1,5", "int needs a number such as 12 or 12.50 and got '1,5'"),
        ("{{ x|float }}", "nan", "float needs a number"),
        ("{{ x|round }}", True, "round needs a number"),
        ("{{ x|round(20) }}", 1, "round takes 0 to 9 digits"),
        ("{{ x|money('USD') }}", "1.005", "USD has 2 decimals and 1.005 has more"),
        ("{{ x|money('JPY') }}", 1.5, "JPY has 0 decimals"),
        ("{{ x|money('$') }}", 1, "currency code such as USD"),
        ("{{ x|money('USD') }}", "1e400000000", "money needs a number"),
        ("{{ x|date }}", "04.05.2026", "date needs a date such as 2026-05-04"),
        ("{{ x|date('%s') }}", "2026-05-04", "date does not know %s"),
        ("{{ x|date('%') }}", "2026-05-04", "date does not know %"),
        ("{{ x|first }}", [], "an empty value has no first or last"),
        ("{{ x|join }}", "abc", "join needs a list or an object and got text"),
        ("{{ x|length }}", 5, "length needs a list or an object and got a number"),
        ("{{ x|replace('', 'a') }}", "abc", "replace needs the text to look for"),
        ("{% for i in x %}{% endfor %}a", "abc", "for needs a list or an object and got text"),
        ("{% for i in x|items %}{% endfor %}a", [1], "items needs an object and got a list"),
        ("{% if x > 3 %}{% endif %}a", "5", "make text a number with |int or |float"),
        ("{{ x + 1 }}", "5", "+ needs numbers and got text"),
        ("{{ x / 0 }}", 5, "division by zero"),
        ("{{ x.append }}", [], "a list has no value 'append'"),
    ],
)
def test_a_value_that_does_not_fit_is_explained(source: str, value: object, words: str) -> None:
    error = refusal(email(text=f"a\n{source}"), {"x": value})
    assert words in str(error)
    assert str(error).startswith("template part text, line 2: ")


class Colour(StrEnum):
    RED = "red"


@dataclass
class Thing:
    name: str = "x"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "Ann\x00"}, "variable 'name': a NUL character"),
        ({"a": {"b": ["\x00"]}}, "variable 'a': a NUL character"),
        ({"name": "Ann\ud83d"}, "variable 'name': half a character"),
        ({"name\x00": 1}, "a NUL character"),
        ({"na\udc00me": 1}, "half a character"),
        ({"n": float("nan")}, "variable 'n': a number is too large or not a number"),
        ({"n": float("inf")}, "variable 'n': a number"),
        ({"n": 10**5000}, "variable 'n': a number"),
        ({"t": Thing()}, "variable 't': a Thing is no JSON value"),
        ({"t": b"x"}, "variable 't': a bytes is no JSON value"),
        ({"t": {1, 2}}, "variable 't': a set is no JSON value"),
        ({"t": {1: 2}}, "variable 't': a name is of type int"),
        ({"t": "x" * 70_000}, "more than 65536 characters"),
        ({"t": ["x" * 1000] * 70}, "more than 65536 characters"),
        ({"t": [1] * 3000}, "more than 2000 values"),
        ({"t": [[[[[[[[[[1]]]]]]]]]]}, "nested deeper than 8"),
    ],
)
def test_data_that_is_no_plain_bounded_json_is_refused(data: dict[str, object], words: str) -> None:
    error = refusal(email(text="t"), data)
    assert words in str(error)
    assert error.code in ("invalid_data", "too_large")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"t": "x" * 65_535}, ""),
        ({"t": "x" * 65_537}, "variable 't': the data has more than 65536 characters"),
        ({"t": "x" * 65_536}, "variable 'data': the data has more than 65536 characters"),
        ({"t": "x" * 65_500, "u" * 35: ""}, ""),
        ({"t": "x" * 65_500, "u" * 36: ""}, "variable 'data': the data has more than 65536 characters"),
        ({"t": "x" * 65_500, "u": "y" * 35 + "\n"}, "variable 'u': the data has more than 65536 characters"),
        ({f"t{n}": "x" for n in range(2_000)}, ""),
        ({f"t{n}": "x" for n in range(2_001)}, "variable 't2000': the data has more than 2000 values"),
        ({"t": [1] * 1_998, "u": "x"}, ""),
        ({"t": [1] * 1_999, "u": "x"}, "variable 'u': the data has more than 2000 values"),
    ],
)
def test_the_bounds_of_data_are_exact(data: dict[str, object], words: str) -> None:
    if words:
        assert words in str(refusal(email(text="t"), data))
    else:
        assert compile_template(email(text="t")).render(data).text == "t"


def test_data_that_refers_to_itself_ends() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert refusal(email(text="t"), {"t": loop}).code == "too_large"


def test_an_enum_is_its_value() -> None:
    assert text_of("{{ c }}", c=Colour.RED) == "red"


def test_rendering_leaves_the_data_alone() -> None:
    data: dict[str, object] = {"a": "x\u202e\r\ny", "b": [{"c": "\u2066"}]}
    before = repr(data)
    text_of("{{ a }}", **data)
    assert repr(data) == before


# What the result must not be.


@pytest.mark.parametrize(
    ("source", "data", "words"),
    [
        (email("{{ x }}", "t"), {"x": " \r\n "}, "the rendered subject is empty"),
        (email("s", "{{ x }}"), {"x": " \n"}, "the rendered text is empty"),
        (TemplateSource("sms", text="{{ x }}"), {"x": ""}, "the rendered sms is empty"),
        (
            email("{{ x }}", "t"),
            {"x": "é" * 999},
            "the rendered subject has 999 characters, and 998 are allowed",
        ),
        (email("s", "{{ x }}" * 5), {"x": "a" * 60_000}, "more than 256 KB"),
        (email("s", html="{{ x }}" * 2), {"x": "'" * 30_000}, "more than 256 KB"),
        (email("s", "{{ x }}" * 2), {"x": "中" * 60_000}, "the rendered text has 360000 bytes, and 262144"),
        (TemplateSource("sms", text="{{ x }}"), {"x": "a" * 1531}, "1531 units in 11 parts (gsm7)"),
        (TemplateSource("sms", text="{{ x }}"), {"x": "я" * 671}, "671 units in 11 parts (ucs2)"),
    ],
)
def test_an_empty_or_oversized_result_is_refused(
    source: TemplateSource, data: dict[str, object], words: str
) -> None:
    error = refusal(source, data)
    assert words in str(error)
    assert error.code in ("empty", "too_large")


@pytest.mark.parametrize("subject", ["Reminder " * 22, "A" * 300, "é " * 100, "A" * 998])
def test_long_subjects_pass_whole(subject: str) -> None:
    assert subject_of("{{ x }}", x=subject) == subject.strip()


@pytest.mark.parametrize("text", ["a" * 1530, "я" * 670, "\U0001f60e" * 330, "€" * 760])
def test_ten_parts_pass(text: str) -> None:
    assert sms_of("{{ x }}", x=text) == text
    assert segments.count(text).parts == 10


# What is no template.


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (TemplateSource("fax", text="t"), "channel 'fax' has no templates"),
        (TemplateSource("sms", text=" "), "an sms template needs text"),
        (TemplateSource("sms", subject="s", text="t"), "an sms template has text only"),
        (TemplateSource("sms", text="t", html="h"), "an sms template has text only"),
        (email("", "t"), "an email template needs a subject"),
        (email("s", " ", "\n"), "an email template needs text, HTML or both"),
        (email("s", "a\n{{ x"), "template part text, line 2: "),
        (email("s", "a\n{% if x %}"), "template part text, line 2: "),
        (email("{{ x ", "t"), "template part subject, line 1: "),
        (email("s", html="{% endif %}"), "template part html, line 1: "),
        (email("s", "{{ x|uper }}"), "filter uper is not available: did you mean upper?"),
        (email("s", "{{ x|safe }}"), "put the markup into the template"),
        (email("s", "{{ x|e }}"), "HTML parts escape all values already"),
        (email("s", "{% if x is definde %}{% endif %}"), "did you mean defined?"),
        (email("s", "{% set x = 1 %}"), "set is not available"),
        (email("s", "{% set x %}a{% endset %}"), "set is not available"),
        (email("s", "a\x00b"), "control character U+0000"),
        (email("s", "a\n\x0bb"), "line 2: control character U+000B"),
        (email("s", "a\ud83d"), "control character U+D83D"),
        (email("s", "x" * 65_537), "at most 64 KB"),
        (email("s", "中" * 22_000), "at most 64 KB"),
    ],
)
def test_a_faulty_template_is_refused_at_its_place(source: TemplateSource, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        compile_template(source)
    assert words in str(caught.value)


HOSTILE = {
    "repeat": '{{ "a" * 200000000 }}',
    "repeat data": "{{ a * n }}",
    "repeat list": "{{ (l * n)|join }}",
    "format": '{{ "%1000000000d" % n }}',
    "power": "{{ 9 ** 9 ** 9 }}",
    "big product": "{{ " + " * ".join(["999999999999999999"] * 10) + " }}",
    "range": "{% for i in range(100000000) %}x{% endfor %}",
    "millions of turns": "{% for i in l %}{% for j in l %}{% for k in l %}x" + "{% endfor %}" * 3,
    "silent turns": "{% for i in l %}{% for j in l %}{% if a == 'b' %}{% endif %}{% endfor %}{% endfor %}",
    "loop filter": "{% for x in l if x|upper == a|upper %}x{% endfor %}",
    "searching": "{% for i in l %}{% if b in a %}{% endif %}{% if 'zz' in l %}{% endif %}{% endfor %}",
    "doubling by set": "{% set x = a ~ a %}{% set x = x ~ x %}{{ x }}",
    "doubling by with": "{% with x = a ~ a %}{{ x ~ x }}{% endwith %}",
    "doubling by loop": "{% for x in [a ~ a] %}{% for y in [x ~ x] %}{{ y }}{% endfor %}{% endfor %}",
    "loop over a result": "{% for x in a|replace('x', 'xx') %}{{ x }}{% endfor %}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless loop": "{% for x in d recursive %}{{ loop(d) }}{% endfor %}",
    "replace": "{{ a|replace('x', a) }}",
    "chained replace": "{{ a|replace('x', 'yy')|replace('y', 'zzz')|replace('z', 'wwwww') }}",
    "join": "{{ l|join(a) }}",
    "long joining": "{{ " + " ~ ".join(["a"] * 1900) + " }}",
    "hidden joining": "{% if (" + " ~ ".join(["a"] * 1900) + ") == '' %}{% endif %}",
    "hidden adding": "{% if (" + " + ".join(["a"] * 16) + ") == '' %}{% endif %}",
    "many outputs": "{{ a }}" * 900,
    "many filters": "{{ a|title|length }}" * 300,
    "long chain": "{{ a" + "|upper" * 9000 + " }}",
    "long path": "{{ a" + ".b" * 9000 + " }}",
    "long sum": "{{ " + " + ".join(["n"] * 5000) + " }}",
    "long and": "{{ " + " and ".join(["n"] * 5000) + " }}",
    "brackets": "{{ " + "(" * 30000 + "a" + ")" * 30000 + " }}",
    "lists": "{{ " + "[" * 20000 + "]" * 20000 + " }}",
    "not": "{{ " + "not " * 15000 + "a }}",
    "signs": "{{ " + "+" * 60000 + "n }}",
    "ifs": "{% if n %}" * 2000 + "{% endif %}" * 2000,
    "fors": "{% for i in l %}" * 30 + "{% endfor %}" * 30,
    "elifs": "{% if n == 6 %}" + "{% elif n == 7 %}" * 2000 + "{% endif %}",
    "open": "{{" * 32000,
    "open tags": "{%" * 32000,
    "open comments": "{#" * 32000,
    "open string": '{{ "' + "a" * 60000,
    "digits": "{{ " + "9" * 60000 + " }}",
    "infinity": "{{ 1e999 }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "class by key": "{{ ''['__class__'] }}",
    "class by filter": "{{ d|attr('__class__') }}",
    "class by format": "{{ '{0.__class__}'.format(n) }}",
    "globals": "{{ lipsum.__globals__ }}",
    "context": "{{ self._TemplateReference__context }}",
    "loop object": "{% for x in d %}{{ loop }}{% endfor %}",
    "loop parts": "{% for x in d %}{{ loop._iterator }}{% endfor %}",
    "our own filter": "{{ l|_each(-9) }}",
    "method": "{{ b.upper() }}",
    "bound method": "{{ d.items }}",
    "call of a loop": "{% for x in l %}{{ loop.cycle(1, 2) }}{% endfor %}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from": "{% from 'os' import path %}",
    "extends": "{% extends 'x' %}",
    "block": "{% block x %}{% endblock %}",
    "call block": "{% call x() %}{% endcall %}",
    "filter block": "{% filter upper %}x{% endfilter %}",
    "no escaping": "{% autoescape false %}{{ a }}{% endautoescape %}",
    "do": "{% do l.append(1) %}",
    "width": "{{ b|center(1000000000) }}",
    "indent": "{{ b|indent(100000000) }}",
    "random": "{{ l|random }}",
    "now": "{{ now() }}",
    "odd key": "{{ {l: 2}['a'] }}",
    "odd argument": "{{ l|join(l) }}",
    "unpacked argument": "{{ b|truncate(**d) }}",
    "zero step": "{{ a[::0] }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_soon(name: str) -> None:
    data: dict[str, object] = {
        "a": "x" * 50_000,
        "b": "y",
        "l": [str(number) for number in range(1500)],
        "d": {"k": "v"},
        "n": 5_000_000,
    }
    started = time.process_time()
    for source in (email(text=HOSTILE[name]), email(html=HOSTILE[name])):
        refusal(source, data)
    assert time.process_time() - started < 5  # hundredths of a second where nothing else runs


@given(st.text("{}%#|~.[]()'\" \nabfori n1+*", max_size=60))
def test_no_text_breaks_the_compiler(source: str) -> None:
    try:
        rendered = compile_template(email(text=f"x{source}", html=f"x{source}")).render({"a": "b", "i": [1]})
    except InvalidInput as refused:
        rendered = Rendered("", str(refused), str(refused))
    assert rendered.text.startswith(("x", "template part "))
    assert rendered.html.startswith(("x", "template part "))


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=60))
def test_no_value_gets_markup_or_a_header_in(value: str) -> None:
    source = email("S {{ x }}", html='<p title="{{ x }}">{{ x }}</p>')
    rendered = compile_template(source).render({"x": value})
    assert len(rendered.subject.splitlines()) == 1
    assert not any(character < " " for character in rendered.subject)
    assert rendered.html.count("<") == rendered.html.count(">") == 2
    assert rendered.html.count('"') == 2


# The same bytes, always.


def test_the_same_input_gives_the_same_bytes_in_every_process() -> None:
    script = """
from sendonce.render import *
source = TemplateSource("email", "{{ a }} {{ o.z }}",
    "{% for k, v in o|items %}{{ k }}={{ v }} {% endfor %}{{ amount|money('USD') }} {{ due|date('%A %B') }}",
    "{{ {'x': 1, 'y': 2}['y'] }}{{ f * 3 }}{{ 'n' if a in ['1', '2', 'a'] else 'm' }}")
data = {"o": {"z": 1, "y": "2", "x": 0.1}, "a": "a", "amount": "12.5", "due": "2026-05-04", "f": 0.1}
template = compile_template(source)
rendered = template.render(data)
print(content_hash({"s": rendered.subject, "t": rendered.text, "h": rendered.html}))
print(sorted(template.variables), rendered)
"""
    answers = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": f"UTC{seed[:1]}"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
    assert len(answers) == 1
    assert "z=1 y=2 x=0.1 USD 12.50 Monday May" in answers.pop()


def test_content_hash_is_over_content_not_order() -> None:
    assert content_hash({"a": 1, "b": ["é"]}) == content_hash({"b": ["é"], "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": "1"})
    assert content_hash({"a": "x", "b": ""}) != content_hash({"a": "", "b": "x"})
    # a stored hash must stay valid in later versions
    assert content_hash({"b": "é", "a": 1}) == hashlib.sha256('{"a":1,"b":"é"}'.encode()).hexdigest()


@pytest.mark.parametrize("parts", [{"a": float("nan")}, {"a": object()}, {"a": "\ud83d"}, {"a": {1, 2}}])
def test_content_that_cannot_be_hashed_is_refused(parts: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="cannot be hashed"):
        content_hash(parts)


# Files.


def write(directory: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (directory / name.replace("__", ".")).write_bytes(data)


def test_templates_are_read_from_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        due__subject__txt=b"\xef\xbb\xbfDue {{ x }}\r\n",
        due__txt="a\r\nb\n",
        due__html="<p>é</p>\n",
        due__sms__txt="Hi {{ x }}\n\n",
        due2__txt="of another template",
    )
    assert load_template(tmp_path, "due") == {
        "email": TemplateSource("email", "Due {{ x }}", "a\nb\n", "<p>é</p>\n"),
        "sms": TemplateSource("sms", text="Hi {{ x }}"),
    }


def test_a_channel_without_files_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, a__sms__txt="Hi", b__subject__txt="s", b__html="h")
    assert load_template(tmp_path, "a") == {"sms": TemplateSource("sms", text="Hi")}
    assert load_template(tmp_path, "b") == {"email": TemplateSource("email", "s", "", "h")}


@pytest.mark.parametrize(
    ("files", "name", "words"),
    [
        ({}, "due", "template 'due' has no file in"),
        ({"due__txt": "t"}, "due", "lacks due.subject.txt"),
        ({"due__html": "t", "due__sms__txt": "t"}, "due", "lacks due.subject.txt"),
        ({"due__subject__txt": "t"}, "due", "lacks due.txt or due.html"),
        ({"due__sms__txt": "t", "due__htm": "t"}, "due", "due.htm is no part of a template"),
        ({"due__sms__txt": "t", "due__sms": "t"}, "due", "due.sms is no part of a template"),
        ({"due__sms__txt": b"a\n\xff"}, "due", "due.sms.txt, line 2: not UTF-8"),
        ({"due__sms__txt": "é".encode("latin-1") + b"t"}, "due", "not UTF-8"),
        ({"due__sms__txt": "t".encode("utf-16")}, "due", "not UTF-8"),
        ({"due__sms__txt": b"x" * 65_537}, "due", "at most 64 KB"),
        ({"due__sms__txt": "中".encode() * 30_000}, "due", "at most 64 KB"),
        ({}, "../due", "template name '../due' is not allowed"),
        ({}, "", "template name '' is not allowed"),
        ({}, "due.sms", "is not allowed"),
    ],
)
def test_files_that_make_no_template_are_refused(
    tmp_path: Path, files: dict[str, str | bytes], name: str, words: str
) -> None:
    write(tmp_path, **files)
    with pytest.raises(InvalidInput) as caught:
        load_template(tmp_path, name)
    assert words in str(caught.value)


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing cannot be read: No such file"):
        load_template(tmp_path / "missing", "due")
    (tmp_path / "due.txt").mkdir()
    with pytest.raises(InvalidInput, match=r"due\.txt cannot be read: Is a directory"):
        load_template(tmp_path, "due")


# The manual page.


def test_the_manual_names_every_filter_test_and_limit() -> None:
    page = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
    words = set(re.findall(r"%-?[A-Za-z%]|[a-z]+", page))
    assert words >= {*FILTERS, *(test for test in render.TESTS if test.isalpha()), *render._DIRECTIVES}
    for limit in ("64 KB", "2,000", "20,000", "65,536", "256 KB", "998", "ten parts"):
        assert limit in page, limit


def test_the_examples_of_the_manual_work() -> None:
    page = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `{{")]
    assert len(rows) >= 15
    data: dict[str, object] = {
        "name": "ann lee",
        "amount": "1234.5",
        "due": "2026-05-04T15:30:00+02:00",
        "lines": ["pen", "ink"],
        "order": {"id": 7},
        "note": None,
    }
    for expression, shown, *_ in rows:
        assert text_of(expression.removeprefix("| ").strip("`").replace("\\|", "|"), **data) == shown.strip(
            " |`"
        ), expression
