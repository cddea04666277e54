"""What the pages of `docs/operate` tell an operator to type is typed, page by page and in order: on a store
with a sent, a refused and an uncertain delivery in it, and for PostgreSQL's own tools on a server of its own.

A block that no test can run says so above it, with the reason: `<!-- not run: ... -->`. Its lines for
`sendonce` are still read as the program would read them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from sendonce.cli.main import main
from sendonce.testing.postgres_server import PostgresServer
from sendonce.testing.sandbox import SandboxClient
from tests.e2e.command_line import ROOT, Folder, environment, wait_for
from tests.typed import parsed

OPERATE = ROOT / "docs/operate"
FENCE = re.compile(r"(?:^ *<!-- not run: (.+?) -->\n)?^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:(?:^|/bin/|=\S+ | -- )sendonce|run --rm api) ([^\n|]+)", re.MULTILINE)
"""As it is typed, from a folder of programs, with a variable, or in a container."""
RUN_ON_POSTGRES = {"backup-postgresql.md", "upgrade.md"}
"""Pages that have tests of their own below."""

LIST = """\
id,customer,due,template,email,phone,name,parcel
shipment-4822,customer-74,now,shipped,,+12025550101,Bob,2
shipment-4821,customer-73,now,shipped,,+12025550199,Ann,1
shipment-4823,customer-75,now,shipped,eve@example.com,,Eve,3
shipment-4824,customer-76,in 6h,shipped,max@example.com,,Max,4
"""
FILES = {
    "reminders.csv": LIST,
    "moved.csv": LIST.splitlines()[0] + "\n" + LIST.splitlines()[-1].replace("in 6h", "in 8h"),
    "opt-outs.csv": "address,kind\nzoe@example.com,opt_out\n",
}


@dataclass(frozen=True)
class Block:
    """What stands between two fences. `why`: why it is not run, "" where it is."""

    page: str
    language: str
    text: str
    why: str

    @property
    def lines(self) -> list[list[str]]:
        """The command lines of `sendonce` in it, without their first word."""
        return [shlex.split(words, comments=True) for words in COMMAND.findall(self.text)]

    @property
    def is_plain(self) -> bool:
        """Nothing but `sendonce` with its words: no shell is needed."""
        return all(re.fullmatch(r"sendonce [^$|<>&;]+", line) for line in self.text.splitlines())


def blocks() -> Iterator[Block]:
    for page in sorted(OPERATE.rglob("*.md")):
        name = str(page.relative_to(OPERATE))
        for why, _, language, text in FENCE.findall(page.read_text("utf-8")):
            yield Block(name, language, textwrap.dedent(text), why)


BLOCKS = list(blocks())
PAGES = sorted({each.page for each in BLOCKS if each.language == "sh" and not each.why} - RUN_ON_POSTGRES)


def to_run(page: str) -> list[Block]:
    return [block for block in BLOCKS if block.page == page and block.language == "sh" and not block.why]


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory, sandbox: SandboxClient) -> Path:
    """A folder whose store has seen a morning: one sent, one refused, one in doubt, one to come."""
    path = tmp_path_factory.mktemp("lived-in")
    with pytest.MonkeyPatch.context() as patch:
        folder = _Silent(path, patch)
        folder.configure(sandbox)
        folder.add_template()
        for name, text in FILES.items():
            folder.write(name, text)
        sandbox.reset(rules=True)
        sandbox.change(
            sms={"recipients": [{"pattern": "99$", "refusal": "blocked"}], "lost_after": {"next": 1}}
        )
        folder.run("import", "reminders.csv")
        folder.run("drain", "--max-time", "60s")
        sandbox.reset(rules=True)
    return path


class _Silent(Folder):
    """A folder for a whole module, which outlives the capture of one test."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        patch.chdir(path)

    def run(self, *arguments: str, code: int = 0) -> None:  # type: ignore[override]
        assert main(list(arguments)) == code, arguments


@pytest.fixture
def folder(
    lived_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Folder:
    shutil.copytree(lived_in, tmp_path, dirs_exist_ok=True)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    return Folder(tmp_path, monkeypatch, capfd)


LOOKS = ("overview", "forecast", "slo")
"""These end with 1 where there is something to look at, which is what a page for an alert is about."""


def typed(folder: Folder, block: Block, **more: str) -> str:
    """Type a block; what it printed. `sendonce` alone is run in this process, which is ten times as fast."""
    if block.is_plain and not more:
        said = []
        for words in block.lines:
            ran = folder.answer(*words)
            assert ran.code in ((0, 1) if words[0] in LOOKS else (0,)), (words, ran)
            said.append(ran.out)
        return "".join(said)
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder.path,
        env=environment(folder.path, **more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (block.text, done.stdout, done.stderr)
    return done.stdout


def test_every_block_is_run_or_says_why_not() -> None:
    assert {block.language for block in BLOCKS} <= {"sh", "sql", "text", "toml"}
    assert all(len(block.why) > 10 for block in BLOCKS if block.why)
    fences = sum(page.read_text("utf-8").count("```") for page in OPERATE.rglob("*.md"))
    assert fences == 2 * len(BLOCKS)  # none was overlooked
    assert len([block for block in BLOCKS if block.language == "sh" and not block.why]) >= 30
    for block in BLOCKS:
        if block.language == "sh":
            for words in block.lines:
                parsed([word for word in words if word != "2>/dev/null"])


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_can_be_typed(page: str, folder: Folder) -> None:
    if page == "containers.md":  # it is typed at the root of the repository, which stays as it is
        (folder.path / "deploy").unlink()
    said = [typed(folder, block) for block in to_run(page)]
    if page == "backup.md":
        restored, released = (text for text in said if "schema" in text)
        assert "held" in restored
        assert "released" in released
        assert folder.json("db", "info")["held"] is None
    if page == "alerts.md":
        assert (
            "https://wiki.example.com/sendonce/pass-gap" in (folder.path / "sendonce.rules.yml").read_text()
        )
    if page == "containers.md":
        secrets = folder.path / "deploy/secrets"
        assert (secrets / "store-url").read_text().startswith("postgresql://sendonce_app:")
        assert secrets.stat().st_mode & 0o077 == 0


# On PostgreSQL


@pytest.fixture
def reminders(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[PostgresServer]:
    """A server with the two users and the database that `deploy/postgresql/roles.sh` makes."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("owner", "app"):
        (secrets / f"{name}-password").write_text(f"of-the-{name}'s\n", encoding="utf-8")
    script = [str(ROOT / "deploy/postgresql/roles.sh")]
    subprocess.run(script, env=of_server(postgres_server, tmp_path, SECRETS=str(secrets)), check=True)
    yield postgres_server
    postgres_server.drop_database("reminders")
    for role in ("sendonce", "sendonce_app"):
        postgres_server.execute(f"DROP ROLE {role}")


def of_server(server: PostgresServer, home: Path, **more: str) -> dict[str, str]:
    """An environment in which PostgreSQL's own programs speak to this server as its administrator."""
    made = environment(home, PGHOST=str(server.folder), PGUSER="postgres", **more)
    return made | {"PATH": f"{server.programs}:{made['PATH']}"}


def test_the_owner_makes_the_tables_and_the_processes_rewrite_nothing(
    folder: Folder, reminders: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the compose file, the Job and an upgrade do it."""
    (block,) = (block for block in to_run("upgrade.md") if "$OWNER_URL" in block.text)
    app = reminders.url("reminders", user="sendonce_app")
    monkeypatch.setenv("SENDONCE_STORE_URL", app)
    assert "with the URL of their owner first" in folder.answer("db", "info").err
    owner = reminders.url("reminders", user="sendonce")
    typed(folder, block, **of_server(reminders, folder.path, OWNER_URL=owner))
    assert folder.json("db", "info")["deliveries"] == 0
    folder.add_template()
    folder.run("import", "reminders.csv")
    folder.run("verify")
    with psycopg.connect(app) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM sendonce.ledger")


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server that archives its log, as the page says, into a folder of its own."""
    with PostgresServer() as server:
        archive = server.folder / "archive"
        archive.mkdir()
        shutil.chown(archive, server.folder.owner())
        for block in BLOCKS:
            if block.page == "backup-postgresql.md" and block.language == "sql":
                for statement in in_place(block.text, server).split(";\n"):
                    if statement.strip():
                        server.execute(statement)
        server.stop()
        server.start()
        yield server


def in_place(text: str, server: PostgresServer, **changed: str) -> str:
    """A text of the page with the names that stand for this server's own."""
    text = re.sub(r"(?<![\w/])archive/", f"{server.folder}/archive/", text)
    for before, after in changed.items():
        text = text.replace(before, after)
    return text


def test_a_moment_is_restored_from_a_base_backup_and_the_archive_and_is_held(
    folder: Folder, archived: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 3 seconds: a server is started, backed up, and started again from the archive of its log."""
    backup, restore, look, *rest = to_run("backup-postgresql.md")
    archived.create_database("reminders")
    monkeypatch.setenv("SENDONCE_STORE_URL", archived.url("reminders"))
    folder.add_template()
    typed(folder, backup, **of_server(archived, folder.path))
    folder.run("import", "moved.csv")
    moment = archived.ask("SELECT clock_timestamp()::text")
    folder.write("later.csv", "\n".join(LIST.splitlines()[:2]))
    folder.run("import", "later.csv")
    wal = archived.ask("SELECT pg_walfile_name(pg_switch_wal())")
    wait_for(lambda: (archived.folder / "archive" / wal).exists())
    archived.stop()

    data = archived.folder / "data"  # it is lost, and what comes into its place comes from the page
    owner = data.owner()
    for path in data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = in_place(restore.text, archived, **{"2026-12-01 08:12:00+00": moment})
    typed(folder, replace(restore, text=text), **of_server(archived, folder.path, PGDATA=str(data)))
    for path in (data, *data.rglob("*")):
        shutil.chown(path, owner)
    archived.start()

    info = folder.json("db", "info")
    assert (info["deliveries"], bool(info["held"])) == (1, True)
    stopped = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z"
    said = [
        typed(folder, replace(block, text=block.text.replace("2026-12-01 08:20Z", stopped)))
        for block in (look, *rest)
    ]
    assert "released" in said[-1]
    assert folder.json("db", "info")["held"] is None


# Sizing


SIZING = (OPERATE / "sizing.md").read_text("utf-8")
MEASURED = re.findall(r"^\| (.+?) \| ([\d.,]+) (.+?) \| \[\w+\]\((.+?)\) \|$", SIZING, re.MULTILINE)


def test_what_is_measured_stands_where_it_was_measured() -> None:
    assert len(MEASURED) == 14
    for figure, value, _, source in MEASURED:
        page = (OPERATE / source).read_text("utf-8")
        assert re.search(rf"(?<![\d.,]){re.escape(value)}(?![\d]|[.,]\d)", page), (figure, value)


def test_what_follows_from_it_is_what_was_computed() -> None:
    figures = {figure: float(value.replace(",", "")) for figure, value, _, _ in MEASURED}

    def of(start: str) -> float:
        return sum(value for figure, value in figures.items() if figure.startswith(start))

    rows = re.findall(r"^\| \d.* GB \|$", SIZING, re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        cells = re.findall(r"\d[\d.,]*", row)
        day, second, workers, server, wal, stored = (float(cell.replace(",", "")) for cell in cells)
        assert second == round(day / 3_600)
        assert workers == max(0.01, round(day / 3_600 * of("worker CPU") / 1_000, 2))
        assert server == max(0.01, round(day / 3_600 * of("server CPU") / 1_000, 2))
        assert wal == round(day * of("log (WAL)") / 1e6, 1)
        assert stored == round(30 * day * of("left behind") / 1e6, 1)
