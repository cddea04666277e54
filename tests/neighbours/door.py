"""A door in front of the API that can lose answers, or hold one: the request arrived, and nobody is told."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

FORWARDED: Final = ("Authorization", "Content-Type", "Idempotency-Key")


class Door:
    """lose      so many of the next answers do not come back
    hold      the next answer waits until `go`; `held` says that one does
    asked     how many requests came
    """

    def __init__(self, port: int) -> None:
        self.behind = port
        self.lose = 0
        self.hold = False
        self.asked = 0
        self.held = threading.Event()
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.url = ""


@contextmanager
def door_to(port: int) -> Iterator[Door]:
    """A door to the API on this port, until the block is over."""
    door = Door(port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = http.client.HTTPConnection("127.0.0.1", door.behind, timeout=30)
            headers = {name: self.headers[name] for name in FORWARDED if name in self.headers}
            line.request(self.command, self.path, body or None, headers)
            answer = line.getresponse()
            said = answer.read()
            line.close()
            with door.lock:
                door.asked += 1
                lost, door.lose = door.lose > 0, max(0, door.lose - 1)
                held, door.hold = door.hold, False
            if held:
                door.held.set()
                door.go.wait(60)
            if lost or held:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    door.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield door
    finally:
        door.go.set()
        server.shutdown()
        thread.join()
        server.server_close()
