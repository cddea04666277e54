"""Templates: text with holes in, and the data that fills them.

A template is compiled once and rendered for each reminder. The same source and the same data give
the same bytes, on every machine and on every attempt: there is no clock, no chance, no locale and no
file access inside. Templates are Jinja2 in a small dialect, and the dialect is what bounds them:

- Data is plain JSON. Values are looked up by name and nothing is ever called, so a template sees no
  Python object, no method and no attribute.
- Nothing can be assigned, so nothing can grow by being doubled; a loop goes over the data, never over
  something computed. Filters, tests, operators and syntax are allow-lists.
- What is left is counted: nodes and nesting of the source, size and depth of the data, the work of
  loops and filters, the size of each intermediate and of each result. The bounds are numbers of
  steps, not seconds, so a template that is refused is refused everywhere.

Values are data and stay data: HTML parts escape them, subjects and text messages hold them on one
line, and characters that turn or hide the text after them do not come through.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, cast

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, UndefinedError, nodes
from jinja2 import Template as JinjaTemplate
from jinja2 import filters as jinja_filters
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing, pass_context
from jinja2.visitor import NodeTransformer

from sendonce.core import segments
from sendonce.core.errors import InvalidInput

SOURCE_BYTES_MAX = 64 * 1024  # of one part of a template
NODES_MAX = 2_000  # expressions, literals and stretches of text in one part
DEPTH_MAX = 24  # of nesting in one part
WORK_MAX = 20_000  # steps of one part: nodes inside loops times turns, filters by length
DATA_CHARACTERS_MAX = 64 * 1024  # of all keys and texts together
DATA_VALUES_MAX = 2_000
DATA_DEPTH_MAX = 8
SUBJECT_CHARACTERS_MAX = 998  # one line of a message (RFC 5322, 2.1.1)
BODY_BYTES_MAX = 256 * 1024  # of text and of HTML, each, in UTF-8
SMS_PARTS_MAX = 10
NUMBER_MAX = 2**63


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """The parts of one template, as written. `channel` is "email" (a subject, and text or HTML or
    both) or "sms" (text only); a part that is not there is ""."""

    channel: str
    subject: str = ""
    text: str = ""
    html: str = ""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the customer gets, with "\\n" line ends. `subject` and `html` are "" for a text message."""

    subject: str
    text: str
    html: str


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template; safe to share between threads.

    `variables` are the names that it reads, also those it has a default for.
    """

    source: TemplateSource
    variables: frozenset[str]
    _parts: tuple[_Part, ...] = field(repr=False)

    def render(self, data: Mapping[str, object]) -> Rendered:
        """Fill in `data` (JSON values: text, numbers, booleans, null, lists, objects).

        Raises `InvalidInput`: a variable is missing (`code` "missing_variable"), a value cannot be
        used ("invalid_data", "render_failed") or the result is empty or too large ("empty",
        "too_large"). `field` names the part or the variable.
        """
        values = _clean_data(data)
        results = {part.name: part.render(values) for part in self._parts}
        match self.source.channel:
            case "sms":
                return Rendered("", _finished_sms(results["sms"]), "")
            case _:
                text, html = results.get("text", ""), results.get("html", "")
                return Rendered(_finished_subject(results["subject"]), *_finished_bodies(text, html))


def compile_template(source: TemplateSource) -> Template:
    """Check and compile all parts. Raises `InvalidInput` that names part, line, rule and fix."""
    sources = _parts_of(source)
    parts = tuple(_compile_part(name, text) for name, text in sources.items())
    return Template(source, frozenset().union(*(part.variables for part in parts)), parts)


SALT: Final = "salt"
"""The name of a part of frozen content that is no text: chance, without which the hash in the ledger would
tell whoever guesses a text that it was this one, also after the text itself was erased."""


def content_hash(parts: Mapping[str, object]) -> str:
    """SHA-256, as 64 hexadecimal digits, over `parts` in canonical JSON: keys sorted, no blanks, UTF-8.

    Equal content has an equal hash whatever the order of its keys. Raises `InvalidInput` for what JSON
    or UTF-8 cannot carry.
    """
    try:
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"content cannot be hashed ({type(error).__name__}): use JSON values and valid Unicode only",
            code="invalid_data",
        ) from None


def load_template(directory: Path, name: str) -> dict[str, TemplateSource]:
    """Read the parts of template `name` from `directory`; one source for each channel that has files.

    NAME.subject.txt, NAME.txt and NAME.html make an email (a subject and one of the two, or both),
    NAME.sms.txt a text message. UTF-8 with or without a byte order mark, any line ends. Raises
    `InvalidInput` for a missing, unknown, unreadable or oversized file.
    """
    check_template_name(name)
    files = _template_files(directory, name)
    email = {part: files[part] for part in ("subject", "text", "html") if part in files}
    if email and ("subject" not in email or len(email) == 1):
        wanted = f"{name}.subject.txt" if "subject" not in email else f"{name}.txt or {name}.html"
        raise InvalidInput(
            f"template {name!r} lacks {wanted} in {directory}: an email needs it", field="template"
        )
    sources = {}
    if email:
        sources["email"] = TemplateSource("email", **email)
    if "sms" in files:
        sources["sms"] = TemplateSource("sms", text=files["sms"])
    return sources


def check_template_name(name: str) -> None:
    """Raise `InvalidInput` for what is no name of a template."""
    if not _TEMPLATE_NAME.fullmatch(name):
        raise InvalidInput(
            f"template name {name[:80]!r} is not allowed: use 1 to 64 letters, digits, - and _",
            field="template",
        )


# Files.

_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE_PARTS = {"subject.txt": "subject", "txt": "text", "html": "html", "sms.txt": "sms"}


def _template_files(directory: Path, name: str) -> dict[str, str]:
    try:
        found = sorted(path for path in directory.iterdir() if path.name.startswith(f"{name}."))
    except OSError as error:
        raise InvalidInput(
            f"template directory {directory} cannot be read: {error.strerror}", field="template"
        ) from None
    known = ", ".join(f"{name}.{ending}" for ending in _FILE_PARTS)
    if not found:
        raise InvalidInput(
            f"template {name!r} has no file in {directory}: write one of {known}",
            field="template",
            code="not_found",
        )
    files = {}
    for path in found:
        part = _FILE_PARTS.get(path.name.removeprefix(f"{name}."))
        if part is None:
            raise InvalidInput(
                f"{path} is no part of a template: rename or move it; known are {known}", field="template"
            )
        files[part] = _read_part(path, one_line=part in ("subject", "sms"))
    return files


def _read_part(path: Path, *, one_line: bool) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(SOURCE_BYTES_MAX + 4)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", field="template") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(content) > SOURCE_BYTES_MAX:
            raise _source_too_large(str(path)) from None
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{path}, line {line}: not UTF-8: save the file as UTF-8", field="template"
        ) from None
    if len(text.encode()) > SOURCE_BYTES_MAX:
        raise _source_too_large(str(path))
    text = _with_plain_line_ends(text)
    return text.rstrip("\n") if one_line else text


def _source_too_large(where: str) -> InvalidInput:
    return InvalidInput(
        f"{where}: a part of a template has at most {SOURCE_BYTES_MAX // 1024} KB: shorten it",
        field="template",
        code="too_large",
    )


def _with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Compiling.


def _parts_of(source: TemplateSource) -> dict[str, str]:
    """The parts of a source by name, in the order they are rendered."""
    match source.channel:
        case "sms":
            if source.subject or source.html:
                raise InvalidInput("an sms template has text only: remove subject and html", field="template")
            if not source.text.strip():
                raise InvalidInput("an sms template needs text", field="template")
            return {"sms": source.text}
        case "email":
            parts = {"subject": source.subject, "text": source.text, "html": source.html}
            if not source.subject.strip():
                raise InvalidInput("an email template needs a subject", field="template")
            if not (source.text.strip() or source.html.strip()):
                raise InvalidInput("an email template needs text, HTML or both", field="template")
            return {name: text for name, text in parts.items() if text}
        case _:
            raise InvalidInput(
                f"channel {source.channel[:80]!r} has no templates: use email or sms", field="channel"
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """One compiled part."""

    name: str
    variables: frozenset[str]
    compiled: JinjaTemplate

    def render(self, values: dict[str, object]) -> str:
        environment = self.compiled.environment
        context = environment.context_class(environment, {**values, _WORK: _Work()}, self.name, {})
        chunks: list[str] = []
        size = 0
        try:
            for chunk in self.compiled.root_render_func(context):
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    raise _Fault(_BODY_TOO_LARGE, "too_large")
                chunks.append(chunk)
        except Exception as error:
            raise self._explained(error, values) from None
        return "".join(chunks)

    def _explained(self, error: Exception, values: Mapping[str, object]) -> InvalidInput:
        where = _where(self.name, self._line(error.__traceback__))
        match error:
            case UndefinedError():
                names = ", ".join(sorted(name[:40] for name in values)[:30]) or "nothing"
                rule = f"{error.message}; the data has {names}: add it, or give it a default"
                return InvalidInput(f"{where}: {rule}", field=self.name, code="missing_variable")
            case _Fault():
                return InvalidInput(f"{where}: {error}", field=self.name, code=error.code)
            case ZeroDivisionError():
                rule = "division by zero: test for it with if"
            case TypeError() | AttributeError():
                rule = "values of different kinds are mixed: make text a number with |int or |float"
            case ValueError() | ArithmeticError() | LookupError() | TemplateError():
                rule = f"the values cannot be used so ({type(error).__name__}): check them"
            case _:
                raise error
        return InvalidInput(f"{where}: {rule}", field=self.name, code="render_failed")

    def _line(self, trace: TracebackType | None) -> int:
        """The template's line in which `trace` went through this part; 0 if it did not."""
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILENAME:
                line = self.compiled.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line


def _compile_part(name: str, text: str) -> _Part:
    environment = _HTML if name == "html" else _TEXT
    try:
        tree = environment.parse(_checked_source(name, text))
        _check(tree, name)
        variables = frozenset(find_undeclared_variables(tree))
        tree = _Counted(environment).visit(tree)
        code = environment.compile(tree, name, _FILENAME)
    except TemplateSyntaxError as error:
        raise _template_error(name, error.lineno, error.message or "syntax error") from None
    except (RecursionError, MemoryError, SyntaxError):
        raise _template_error(name, 0, "nested too deeply: simplify it") from None
    except (TemplateError, TypeError, ValueError, OverflowError):
        raise _template_error(
            name, 0, "a literal cannot be used: write numbers of at most 18 digits"
        ) from None
    return _Part(name, variables, JinjaTemplate.from_code(environment, code, {}))


def _checked_source(name: str, text: str) -> str:
    if len(text) > SOURCE_BYTES_MAX or len(text.encode(errors="surrogatepass")) > SOURCE_BYTES_MAX:
        raise _source_too_large(_where(name, 0))
    text = _with_plain_line_ends(text.removeprefix("\ufeff"))
    if found := _UNWRITABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _template_error(
            name, line, f"control character U+{ord(found[0]):04X} may not be sent: remove it"
        )
    return text


def _where(name: str, line: int) -> str:
    return f"template part {name}, line {line}" if line else f"template part {name}"


def _template_error(name: str, line: int, rule: str) -> InvalidInput:
    return InvalidInput(f"{_where(name, line)}: {rule}", field=name, code="invalid_template")


_FILENAME = "<sendonce template>"
_UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BODY_TOO_LARGE = f"the result has more than {BODY_BYTES_MAX // 1024} KB: shorten the data or the template"

# The dialect, as syntax. Nothing here binds a name but a loop, and nothing here calls.

_ALLOWED_NODES = frozenset(
    {
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For,
        nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword,
        nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.CondExpr,
        nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Concat,
        nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos,
    }
)  # fmt: skip
_INSTEAD = {
    nodes.Call: "functions and methods cannot be called: use a filter, or compute the value in the data",
    nodes.Assign: "set is not available: compute the value in the data",
    nodes.AssignBlock: "set is not available: compute the value in the data",
    nodes.With: "with is not available: compute the value in the data",
    nodes.Pow: "** is not available: compute the value in the data",
    nodes.FilterBlock: "filter blocks are not available: put the filter on each value",
    nodes.Scope: "autoescape is not available: HTML parts escape all values",
}


def _check(tree: nodes.Template, name: str) -> None:
    """Refuse what is outside the dialect. No recursion: the tree is not known to be shallow yet."""
    todo: list[tuple[nodes.Node, int]] = [(tree, 0)]
    seen = 0
    while todo:
        node, depth = todo.pop()
        seen += 1
        if seen > NODES_MAX:
            raise _template_error(name, node.lineno, f"more than {NODES_MAX} expressions: simplify it")
        if depth > DEPTH_MAX:
            raise _template_error(name, node.lineno, f"nested deeper than {DEPTH_MAX}: simplify it")
        if fault := _fault_of(node):
            raise _template_error(name, node.lineno, fault)
        children = [(child, depth + 1) for child in node.iter_child_nodes()]
        todo.extend(reversed(children))  # so that the first fault of the source is the one named


def _fault_of(node: nodes.Node) -> str | None:
    if type(node) not in _ALLOWED_NODES:
        return _INSTEAD.get(type(node), f"{type(node).__name__.lower()} is not available in templates")
    match node:
        case nodes.Name(name="self" | "super"):
            return f"{node.name} has a meaning of its own in templates: give the variable another name"
        case nodes.Filter() if node.name in _NEEDLESS_FILTERS:
            return f"filter {node.name} is not available: {_NEEDLESS_FILTERS[node.name]}"
        case nodes.Filter():
            return _unknown("filter", node.name, FILTERS)
        case nodes.Test():
            return _unknown("test", node.name, TESTS)
        case nodes.For() if node.recursive:
            return "recursive loops are not available: write the loops out"
        case nodes.For() if not _is_data(node.iter):
            return "a loop goes over a value of the data, such as orders or order.lines or order|items"
        case nodes.Const(value=int() | float() as number) if not abs(number) < NUMBER_MAX:
            return "a number is too large: use at most 18 digits"
        case _:
            return None


def _unknown(kind: str, name: str, known: Iterable[str]) -> str | None:
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(known))}"
    return f"{kind} {name} is not available: {hint}"


def _is_data(node: nodes.Node) -> bool:
    """A path into the data, the items of one, or a list written out: no larger than it is written."""
    match node:
        case nodes.List() | nodes.Tuple():
            return all(isinstance(item, nodes.Const) for item in node.items)
        case nodes.Filter(name="items"):
            return node.node is not None and _is_data(node.node)
        case nodes.Getattr() | nodes.Getitem():
            return _is_data(node.node) and not isinstance(node.node, nodes.List | nodes.Tuple)
        case _:
            return isinstance(node, nodes.Name)


class _Counted(NodeTransformer):
    """Puts the counters in: loops pay for their turns in advance, `~` for the text that it makes."""

    def __init__(self, environment: ImmutableSandboxedEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        size = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.iter = self._filter("_each", cast("nodes.Expr", node.iter), [nodes.Const(size)], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return self._filter("_concat", nodes.List(node.nodes), [], node.lineno)

    def _filter(self, name: str, value: nodes.Expr, args: list[nodes.Expr], line: int) -> nodes.Filter:
        made = nodes.Filter(value, name, args, [], None, None)
        made.set_environment(self._environment).set_lineno(line, override=False)
        return made


# Counting.

_WORK = "\0work"  # no template can spell this name


class _Fault(Exception):
    """A rule broken while rendering; the part adds itself and the line."""

    def __init__(self, rule: str, code: str = "render_failed") -> None:
        super().__init__(rule)
        self.code = code


class _Work:
    """The steps that one part has left."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = WORK_MAX

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Fault(
                f"more than {WORK_MAX} steps: loop over less data, or make the loop's body smaller",
                "too_large",
            )


def _charged(apply: Callable[..., object]) -> Callable[..., object]:
    """A filter that pays for the length of what it reads and makes."""

    @pass_context
    def charged(context: Context, value: object, *args: Any, **kwargs: Any) -> object:
        result = apply(value, *args, **kwargs)
        context.parent[_WORK].spend(1 + (_length(value) + _length(result)) // 64)
        return result

    return charged


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | list | dict) else 0


@pass_context
def _each(context: Context, value: object, body_size: int) -> object:
    turns = _sequence(value, "for")
    context.parent[_WORK].spend(len(turns) * body_size)
    return turns


def _concat(pieces: list[object]) -> str:
    texts = [_text(piece) for piece in pieces]
    if sum(map(len, texts)) > BODY_BYTES_MAX:
        raise _Fault(_BODY_TOO_LARGE, "too_large")
    return "".join(texts)


# Filters. Each takes plain data, gives plain data, and says what it needs.


def _text(value: object) -> str:
    """What a value looks like in a message; only text and numbers look like anything."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return str(value)  # raises, with the variable's name
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(value)
    fix = "give it a default" if value is None else "show one of its values, or test it with if"
    raise _Fault(f"{_kind(value)} cannot be shown: {fix}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case LoopContext():
            return "a loop"
        case _:
            return "a number"


def _sequence(value: object, user: str) -> list[object]:
    if isinstance(value, list | tuple):
        return cast("list[object]", value)
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, Undefined):
        str(value)  # raises, with the variable's name
    raise _Fault(f"{user} needs a list or an object and got {_kind(value)}")


def _number(value: object, user: str) -> Decimal:
    if isinstance(value, Undefined):
        str(value)  # raises, with the variable's name
    if (
        isinstance(value, int | float | str | Decimal)
        and not isinstance(value, bool)
        and len(str(value)) <= 40
    ):
        try:
            number = Decimal(str(value).strip())
        except InvalidOperation:
            pass
        else:
            if number.is_finite() and -40 < number.adjusted() < 18:
                return number
    raise _Fault(f"{user} needs a number such as 12 or 12.50 and got {_shown(value)}")


def _shown(value: object) -> str:
    return repr(value[:40]) if isinstance(value, str) else _kind(value)


def _default(value: object, fallback: object = "", empty: bool = False) -> object:
    """`fallback` where the variable is missing or null; with a second `true`, also where it is empty."""
    return fallback if isinstance(value, Undefined) or value is None or (empty and not value) else value


def _truncate(value: object, length: int, end: str = "...") -> str:
    text = _text(value)
    return text if len(text) <= length else text[: max(0, length - len(end))].rstrip() + end


def _replace(value: object, old: str, new: object) -> str:
    text, replacement = _text(value), _text(new)
    if not old:
        raise _Fault("replace needs the text to look for")
    if len(text) + text.count(old) * (len(replacement) - len(old)) > BODY_BYTES_MAX:
        raise _Fault(_BODY_TOO_LARGE, "too_large")
    return text.replace(old, replacement)


def _join(value: object, separator: object = "") -> str:
    pieces, separator = [_text(piece) for piece in _sequence(value, "join")], _text(separator)
    if sum(map(len, pieces)) + len(pieces) * len(separator) > BODY_BYTES_MAX:
        raise _Fault(_BODY_TOO_LARGE, "too_large")
    return separator.join(pieces)


def _first(value: object) -> object:
    return _end(value, 0)


def _last(value: object) -> object:
    return _end(value, -1)


def _end(value: object, at: int) -> object:
    values = value if isinstance(value, str) else _sequence(value, "first or last")
    if not values:
        raise _Fault("an empty value has no first or last: test it with if")
    return values[at]


def _count(value: object) -> int:
    return len(value) if isinstance(value, str) else len(_sequence(value, "length"))


def _round(value: object, digits: int = 0) -> int | Decimal:
    """Half away from zero, as people round; exactly `digits` decimals."""
    if not 0 <= digits <= 9:
        raise _Fault("round takes 0 to 9 digits")
    rounded = _number(value, "round").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return rounded if digits else int(rounded)


def _integer(value: object, fallback: int | None = None) -> int:
    try:
        return int(_number(value, "int"))
    except _Fault:
        if fallback is None:
            raise
        return fallback


def _float(value: object, fallback: float | None = None) -> float:
    try:
        return float(_number(value, "float"))
    except _Fault:
        if fallback is None:
            raise
        return fallback


# ISO 4217: currencies without two decimals.
_CURRENCY_DIGITS = {
    "BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0,
    "UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
    "BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3, "CLF": 4, "UYW": 4,
}  # fmt: skip


def _money(value: object, currency: str, group: str = ",", point: str = ".") -> str:
    """`1234.5|money("USD")` is "USD 1,234.50". Never rounds: an amount with too many decimals is refused."""
    if not re.fullmatch("[A-Z]{3}", currency):
        raise _Fault(f"money needs a currency code such as USD and got {_shown(currency)}")
    amount, digits = _number(value, "money"), _CURRENCY_DIGITS.get(currency, 2)
    exact = amount.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    if exact != amount:
        raise _Fault(f"{currency} has {digits} decimals and {amount} has more: round it in the data")
    written = f"{exact:,f}".translate({ord(","): group[:1], ord("."): point[:1]})
    return f"{currency} {written}"


_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DIRECTIVES: dict[str, Callable[[datetime], str]] = {
    "%Y": lambda at: f"{at.year:04}",
    "%m": lambda at: f"{at.month:02}",
    "%-m": lambda at: str(at.month),
    "%d": lambda at: f"{at.day:02}",
    "%-d": lambda at: str(at.day),
    "%B": lambda at: _MONTHS[at.month - 1],
    "%b": lambda at: _MONTHS[at.month - 1][:3],
    "%A": lambda at: _DAYS[at.weekday()],
    "%a": lambda at: _DAYS[at.weekday()][:3],
    "%H": lambda at: f"{at.hour:02}",
    "%M": lambda at: f"{at.minute:02}",
    "%I": lambda at: f"{at.hour % 12 or 12:02}",
    "%-I": lambda at: str(at.hour % 12 or 12),
    "%p": lambda at: "PM" if at.hour >= 12 else "AM",
    "%%": lambda at: "%",
}


def _date(value: object, form: str = "%-d %B %Y") -> str:
    """An ISO 8601 date or time, as its own clock shows it, by the directives above: English names on
    every machine, whatever its locale."""
    text = _text(value)
    try:
        at = datetime.fromisoformat(text.strip()) if len(text) <= 40 else None
    except ValueError:
        at = None
    if at is None:
        raise _Fault(f"date needs a date such as 2026-05-04 or 2026-05-04T09:00:00Z and got {_shown(value)}")

    def written(found: re.Match[str]) -> str:
        if found[0] not in _DIRECTIVES:
            raise _Fault(f"date does not know {found[0]}: use one of {' '.join(_DIRECTIVES)}")
        return _DIRECTIVES[found[0]](at)

    return re.sub(r"%-?.?", written, form, flags=re.DOTALL)


def _items(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Undefined):
        str(value)  # raises, with the variable's name
    if not isinstance(value, dict):
        raise _Fault(f"items needs an object and got {_kind(value)}")
    return list(value.items())


FILTERS: Mapping[str, Callable[..., object]] = {
    "abs": lambda value: abs(_number(value, "abs")),
    "capitalize": lambda value: _text(value).capitalize(),
    "count": _count,
    "date": _date,
    "default": _default,
    "first": _first,
    "float": _float,
    "int": _integer,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": _count,
    "lower": lambda value: _text(value).lower(),
    "money": _money,
    "replace": _replace,
    "round": _round,
    "title": lambda value: jinja_filters.do_title(_text(value)),
    "trim": lambda value: _text(value).strip(),
    "truncate": _truncate,
    "upper": lambda value: _text(value).upper(),
}
_NEEDLESS_FILTERS = {
    "e": "HTML parts escape all values already",
    "escape": "HTML parts escape all values already",
    "safe": "values are data, never markup: put the markup into the template",
    "random": "the same data must give the same message",
}
TESTS = frozenset(
    {
        "defined", "undefined", "none", "true", "false", "boolean", "number", "integer", "float", "string",
        "sequence", "mapping", "odd", "even", "divisibleby", "in", "eq", "equalto", "ne", "gt", "greaterthan",
        "ge", "lt", "lessthan", "le", "==", "!=", ">", ">=", "<", "<=",
    }
)  # fmt: skip


# The environment: look-ups reach data only, arithmetic numbers only.


class _Missing(StrictUndefined):
    """A variable that is not there. Its message is the start of a sentence that the part ends."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        if isinstance(self._undefined_obj, dict):
            names = ", ".join(sorted(str(name)[:40] for name in self._undefined_obj)[:30]) or "nothing"
            return f"'{self._undefined_name}' is missing in an object that has {names}"
        if self._undefined_obj is not missing:
            return f"{_kind(self._undefined_obj)} has no value '{str(self._undefined_name)[:40]}'"
        return f"variable '{self._undefined_name}' is missing"


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    intercepted_unops = frozenset({"+", "-"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        match obj:
            case dict():
                if isinstance(argument, str) and argument in obj:
                    return obj[argument]
            case str() | list() | tuple():
                if isinstance(argument, slice):
                    return obj[argument]
                if isinstance(argument, int) and -len(obj) <= argument < len(obj):
                    return obj[argument]
            case LoopContext() if argument in _LOOP_VALUES:
                return getattr(obj, argument)
            case Undefined():
                str(obj)  # raises, with the variable's name
        return self.undefined(obj=obj, name=argument)

    def call(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _Fault("functions and methods cannot be called: use a filter")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            context.parent[_WORK].spend(1 + (len(left) + len(right)) // 64)
            return _concat([left, right])
        return _in_range(self.binop_table[operator](*_alike(left, right, operator)))

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        return self.unop_table[operator](_alike(arg, 0, operator)[0])


_LOOP_VALUES = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})


def _alike(left: Any, right: Any, operator: str) -> tuple[Any, Any]:
    """Two numbers that can be calculated with; `round` and `abs` made decimals of some."""
    for value in (left, right):
        if isinstance(value, Undefined):
            str(value)  # raises, with the variable's name
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _Fault(
                f"{operator} needs numbers and got {_kind(value)}: use |int or |float, and ~ to join text"
            )
    if isinstance(left, float) or isinstance(right, float):
        return float(left), float(right)
    return left, right


def _in_range(number: Any) -> Any:
    if not abs(number) < NUMBER_MAX:
        raise _Fault("a result is too large: use at most 18 digits")
    return number


def _environment(*, autoescape: bool) -> _Environment:
    environment = _Environment(
        autoescape=autoescape,
        undefined=_Missing,
        finalize=_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,
        cache_size=0,
    )
    environment.globals.clear()
    environment.filters = {name: _charged(apply) for name, apply in FILTERS.items()}
    environment.filters |= {"_each": _each, "_concat": _charged(_concat)}
    environment.tests = {name: test for name, test in environment.tests.items() if name in TESTS}
    return environment


_TEXT = _environment(autoescape=False)
_HTML = _environment(autoescape=True)


# Data.

# Left to right and right to left overrides, embeddings and isolates: they reach beyond the value.
# Real right-to-left text does without them; marks and joiners stay.
_TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_BREAKS = dict.fromkeys([0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029], "\n")
_CONTROLS = dict.fromkeys([*range(1, 9), *range(0x0E, 0x20), *range(0x7F, 0xA0)])
_CLEANING: dict[int, str | None] = {**_CONTROLS, **_TURNING, **_BREAKS}
_SURROGATE = re.compile("[\ud800-\udfff]")


def _clean_data(data: Mapping[str, object]) -> dict[str, object]:
    """A copy of `data` that is plain JSON, bounded, and free of what would harm the text around it."""
    return _Cleaner().names(data, "data", 0)


class _Cleaner:
    __slots__ = ("characters_left", "values_left")

    def __init__(self) -> None:
        self.characters_left = DATA_CHARACTERS_MAX
        self.values_left = DATA_VALUES_MAX

    def names(self, values: Mapping[Any, object], name: str, depth: int) -> dict[str, object]:
        cleaned: dict[str, object] = {}
        for key, value in values.items():
            if type(value) is str and type(key) is str and key.isprintable() and value.isprintable():
                # Nearly all there is: text with nothing in it to be cleaned away, and room for it.
                size = len(key) + len(value)
                if self.values_left > 0 and self.characters_left >= size:
                    self.values_left -= 1
                    self.characters_left -= size
                    cleaned[key] = value
                    continue
            if not isinstance(key, str):
                raise _data_error(name, f"a name is of type {type(key).__name__}: names are text")
            cleaned[self.text(key, name)] = self.value(value, name if depth else key, depth + 1)
        return cleaned

    def value(self, value: object, name: str, depth: int) -> object:
        self.values_left -= 1
        if self.values_left < 0:
            raise _data_error(
                name, f"the data has more than {DATA_VALUES_MAX} values: send less", "too_large"
            )
        if isinstance(value, str):
            return self.text(value, name)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            if not abs(value) < NUMBER_MAX:
                raise _data_error(name, "a number is too large or not a number: send it as text")
            return value if type(value) in (int, float) else _plain_number(value)
        if depth > DATA_DEPTH_MAX:
            raise _data_error(name, f"nested deeper than {DATA_DEPTH_MAX}: flatten it", "too_large")
        if isinstance(value, list | tuple):
            return [self.value(item, name, depth + 1) for item in value]
        if isinstance(value, Mapping):
            return self.names(value, name, depth)
        kinds = "text, a number, true, false, null, a list or an object"
        raise _data_error(name, f"a {type(value).__name__} is no JSON value: send {kinds}")

    def text(self, text: str, name: str) -> str:
        self.characters_left -= len(text)
        if self.characters_left < 0:
            rule = f"the data has more than {DATA_CHARACTERS_MAX} characters: send less"
            raise _data_error(name, rule, "too_large")
        if type(text) is not str:  # a subclass may have ideas of its own about markup
            text = "".join([text, ""])
        if text.isprintable():  # nothing below is printable
            return text
        if "\x00" in text:
            raise _data_error(name, "a NUL character (U+0000) cannot be stored or sent: remove it")
        if _SURROGATE.search(text):
            raise _data_error(name, "half a character (a lone surrogate) cannot be sent: send valid Unicode")
        return text.replace("\r\n", "\n").translate(_CLEANING)


def _plain_number(value: int | float) -> int | float:
    return int(value) if isinstance(value, int) else float(value)


def _data_error(name: str, rule: str, code: str = "invalid_data") -> InvalidInput:
    shown = ascii(name[:40])[1:-1]
    return InvalidInput(f"variable '{shown}': {rule}", field=shown, code=code)


# Results.

_SMS_SURELY_SHORT = 33 * SMS_PARTS_MAX  # characters; a part holds at least 33, whatever they are
_LINE_BREAK = re.compile(r"[ \t]*[\n\t][ \t\n]*")


def _finished_subject(text: str) -> str:
    subject = _LINE_BREAK.sub(" ", text).strip()
    if not subject:
        raise _result_error("subject", "is empty", "test the data, or give a default", "empty")
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        size = f"has {len(subject)} characters, and {SUBJECT_CHARACTERS_MAX} are allowed"
        raise _result_error("subject", size, "shorten it", "too_large")
    return subject


def _finished_bodies(text: str, html: str) -> tuple[str, str]:
    if not (text.strip() or html.strip()):
        raise _result_error("text", "is empty", "test the data, or give a default", "empty")
    for name, body in (("text", text), ("html", html)):
        if len(body.encode()) > BODY_BYTES_MAX:
            size = f"has {len(body.encode())} bytes, and {BODY_BYTES_MAX} are allowed"
            raise _result_error(name, size, "shorten the data or the template", "too_large")
    return text, html


def _finished_sms(text: str) -> str:
    text = text.strip()
    if not text:
        raise _result_error("sms", "is empty", "test the data, or give a default", "empty")
    if len(text) <= _SMS_SURELY_SHORT:
        return text
    size = segments.count(text)
    if size.parts > SMS_PARTS_MAX:
        found = (
            f"has {size.units} units in {size.parts} parts ({size.encoding}), and {SMS_PARTS_MAX} are allowed"
        )
        raise _result_error("sms", found, "shorten it", "too_large")
    return text


def _result_error(name: str, rule: str, fix: str, code: str) -> InvalidInput:
    return InvalidInput(f"the rendered {name} {rule}: {fix}", field=name, code=code)
