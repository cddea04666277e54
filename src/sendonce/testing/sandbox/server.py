"""The sandbox as a whole: start it on an event loop, in a thread, or in a process of its own.

    sandbox = Sandbox(settings); await sandbox.start(); ...; await sandbox.stop()
    await serve(settings, on_ready=...)                      until SIGINT, SIGTERM or cancellation
    with sandbox_in_thread(settings) as client: ...          `client` is a `SandboxClient`
    with sandbox_in_process(settings) as client: ...

It listens on loopback only, has no access control, and forgets everything when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sendonce.core.errors import ConfigError
from sendonce.testing.sandbox.application import SandboxApplication
from sendonce.testing.sandbox.channel import Channel
from sendonce.testing.sandbox.client import SandboxClient
from sendonce.testing.sandbox.door import Effect
from sendonce.testing.sandbox.events import EventPoster
from sendonce.testing.sandbox.http_server import HttpConnection
from sendonce.testing.sandbox.settings import ChannelRules, SandboxSettings, Tls, to_json

BACKLOG = 1024
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


class Sandbox:
    """The simulated provider on the running event loop."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.smtp_port = 0
        self.http_port = 0
        self.tls_cert = ""
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.BaseTransport] = set()
        self._cleanup = contextlib.ExitStack()
        self._clock_offset = time.time_ns() - time.monotonic_ns()

    @property
    def http_url(self) -> str:
        return f"http://{_bracketed(self.settings.host)}:{self.http_port}"

    async def start(self) -> None:
        """Listen. Afterwards `smtp_port`, `http_port` and, with TLS, `tls_cert` are known.

        Raises `ConfigError` when a port is taken, aiosmtpd is missing or TLS cannot be set up.
        """
        loop = asyncio.get_running_loop()
        self._events = EventPoster(self.settings, now=self.now, later=loop.call_later)
        numbers = itertools.count(1)
        self.channels = {
            name: self._channel(name, rules, numbers)
            for name, rules in (("sms", self.settings.sms), ("email", self.settings.email))
        }
        try:
            await self._listen(loop)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening and cut all connections. Idempotent."""
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # a connection that was just accepted is made by now
        for transport in list(self._connections):
            transport.abort()  # type: ignore[attr-defined]
        while self._connections:  # noqa: ASYNC110  each leaves the set a turn of the loop after its abort
            await asyncio.sleep(0)
        for server in self._servers:
            await server.wait_closed()
        self._servers = []
        await self._events.stop()
        self._cleanup.close()

    def now(self) -> int:
        """Microseconds UTC, from a clock that never steps."""
        return (time.monotonic_ns() + self._clock_offset) // 1000

    def _channel(self, name: str, rules: ChannelRules, numbers: Iterator[int]) -> Channel:
        def took(effect: Effect) -> None:
            self._events.took(self.channels[name], effect)

        return Channel(
            name,
            rules,
            seed=self.settings.seed,
            marker=self.settings.marker,
            now=self.now,
            later=asyncio.get_running_loop().call_later,
            next_number=numbers.__next__,
            took=took,
        )

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        settings = self.settings
        application = SandboxApplication(
            settings, self.channels, self._events, now=self.now, later=loop.call_later
        )
        try:
            from sendonce.testing.sandbox.smtp_server import SmtpConnection
        except ImportError as error:
            raise ConfigError("the sandbox needs aiosmtpd; pip install 'sendonce[sandbox]'") from error
        tls = self._tls()

        def http() -> HttpConnection:
            return HttpConnection(
                application,
                now=self.now,
                size_max=settings.size_max,
                open_connections=self._connections,
            )

        def smtp() -> SmtpConnection:
            return SmtpConnection(
                settings,
                self.channels["email"],
                tls=tls,
                now=self.now,
                open_connections=self._connections,
            )

        self.http_port = await self._bind(loop, http, settings.http_port, None)
        implicit = tls if settings.smtp_tls is Tls.IMPLICIT else None
        self.smtp_port = await self._bind(loop, smtp, settings.smtp_port, implicit)

    async def _bind(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.BaseProtocol],
        port: int,
        tls: ssl.SSLContext | None,
    ) -> int:
        try:
            server = await loop.create_server(protocol, self.settings.host, port, ssl=tls, backlog=BACKLOG)
        except OSError as error:
            where = f"{self.settings.host}:{port}"
            raise ConfigError(f"cannot listen on {where}: {error.strerror}; choose another port") from error
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    def _tls(self) -> ssl.SSLContext | None:
        settings = self.settings
        if settings.smtp_tls is Tls.NONE:
            return None
        if bool(settings.tls_cert) != bool(settings.tls_key):
            raise ConfigError("tls_cert and tls_key belong together; set both, or none to have them made")
        cert, key = settings.tls_cert, settings.tls_key
        if not cert:
            directory = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sandbox-tls-")))
            cert, key = _self_signed(directory)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(cert, key)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"tls_cert = {cert!r} and tls_key cannot be used: {error}") from error
        self.tls_cert = cert
        return context


async def serve(settings: SandboxSettings, *, on_ready: Callable[[Sandbox], None]) -> None:
    """Run a sandbox until SIGINT, SIGTERM or cancellation; `on_ready` is called when it listens."""
    await _serve_until(settings, asyncio.Event(), on_ready)


async def serve_until_eof(settings: SandboxSettings, *, on_ready: Callable[[Sandbox], None]) -> None:
    """As `serve`, and end also when standard input does: a child that never outlives its parent."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def wait_for_eof() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_eof, name="sandbox-stdin", daemon=True).start()
    await _serve_until(settings, stop, on_ready)


async def _serve_until(
    settings: SandboxSettings, stop: asyncio.Event, on_ready: Callable[[Sandbox], None]
) -> None:
    loop = asyncio.get_running_loop()
    sandbox = Sandbox(settings)
    await sandbox.start()
    handled = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
            handled.append(number)
    try:
        on_ready(sandbox)
        await stop.wait()
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        await sandbox.stop()


@contextlib.contextmanager
def sandbox_in_thread(settings: SandboxSettings | None = None) -> Iterator[SandboxClient]:
    """Run a sandbox in a thread of this process, for tests. Errors of its start are raised here."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, SandboxClient]] = []
    failed: list[BaseException] = []
    ready = threading.Event()

    async def run() -> None:
        stop = asyncio.Event()

        def on_ready(sandbox: Sandbox) -> None:
            started.append((asyncio.get_running_loop(), stop, _client_of(sandbox)))
            ready.set()

        await _serve_until(settings or SandboxSettings(), stop, on_ready)

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="sandbox")
    thread.start()
    ready.wait()
    if not started:
        thread.join()
        raise failed[0]
    loop, stop, client = started[0]
    try:
        yield client
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        client.close()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def sandbox_in_process(settings: SandboxSettings | None = None) -> Iterator[SandboxClient]:
    """Run a sandbox in a process of its own, for benches and crash drills; it ends with this one.

    Raises `ConfigError` with what it said when it does not start.
    """
    command = [sys.executable, "-m", "sendonce.testing.sandbox", "--config", "-", "--until-eof"]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps(to_json(settings or SandboxSettings())) + "\n")
            process.stdin.flush()
            first_line = process.stdout.readline()
            if not first_line:
                raise ConfigError(f"the sandbox did not start: {process.stderr.read().strip()}")
            with contextlib.closing(SandboxClient(**json.loads(first_line))) as client:
                yield client
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def ready_line(sandbox: Sandbox) -> str:
    """What the process prints when it listens: the arguments of `SandboxClient`, as one line of JSON."""
    return json.dumps(
        {
            "host": sandbox.settings.host,
            "http_port": sandbox.http_port,
            "smtp_port": sandbox.smtp_port,
            "tls_cert": sandbox.tls_cert,
        }
    )


def _client_of(sandbox: Sandbox) -> SandboxClient:
    return SandboxClient(
        host=sandbox.settings.host,
        http_port=sandbox.http_port,
        smtp_port=sandbox.smtp_port,
        tls_cert=sandbox.tls_cert,
    )


def _self_signed(directory: Path) -> tuple[str, str]:
    """A certificate for localhost and the loopback addresses, good for a week."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ConfigError("no openssl to make a certificate with; set tls_cert and tls_key to PEM files")
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7"]
    command += ["-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)  # noqa: S603
    if made.returncode != 0:
        raise ConfigError(f"openssl could not make a certificate: {made.stderr.strip()[-200:]}")
    return str(cert), str(key)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
