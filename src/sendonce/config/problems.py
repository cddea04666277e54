"""What is wrong with a configuration, said once and all together: file, table, key, value, rule, fix."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType

from sendonce.core.errors import ConfigError, InvalidInput


class ConfigErrors(ConfigError):
    """Everything that is wrong, one problem a line. `problems` are those lines."""

    def __init__(self, problems: Iterable[str]) -> None:
        # A key may hold a line end or an escape sequence; a problem is one line all the same.
        self.problems = tuple(
            "".join(letter if letter.isprintable() else "?" for letter in problem) for problem in problems
        )
        super().__init__("\n".join(self.problems))


class Problems:
    """Collects what is wrong, so that all of it is shown at once and not one by one.

    problems = Problems()
    for account in settings.accounts.values():
        with problems.noted():
            adapters[account.name] = build(account)
    problems.check()
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def note(self, line: str) -> None:
        """Take down one line, as `Place.say` makes it."""
        self._lines.append(line)

    def noted(self, place: Place | None = None) -> _Noting:
        """A block whose `ConfigError` is noted instead of let out; the block ends there.

        With `place` an `InvalidInput` is noted too, as said of that table.
        """
        return _Noting(self, place)

    def check(self) -> None:
        """Raises `ConfigErrors` where anything was noted."""
        if self._lines:
            raise ConfigErrors(dict.fromkeys(self._lines))


@dataclass(frozen=True, slots=True)
class _Noting:
    problems: Problems
    place: Place | None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        match error:
            case ConfigErrors(problems=lines):
                for line in lines:
                    self.problems.note(line)
            case ConfigError():
                self.problems.note(str(error))
            case InvalidInput() if self.place is not None:
                self.problems.note(self.place.say("", f"is refused: {error}"))
            case _:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table stands: for messages, for paths relative to its file, for `env:` references.

    table       as in the file, "account.mail"; "" for the top of the file
    neighbours  keys of the same table that somebody else reads: a misspelt one is recognised too
    """

    file: Path
    table: str
    environ: Mapping[str, str] = field(repr=False, compare=False)
    neighbours: tuple[str, ...] = ()

    def say(self, key: str, sentence: str) -> str:
        """One line about a key of this table; `key` "" for the table itself."""
        where = f"[{self.table}] {key}" if self.table else key
        return f"{self.file}: {where.strip()} {sentence}"

    def at(self, table: str) -> Place:
        """Another table of the same file."""
        return Place(self.file, table, self.environ)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """The fix for an unknown word: the nearest known one, or all of them where none is near."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(sorted(known))}"
