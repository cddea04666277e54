"""A blocking client of the sandbox's own side: steer it, reset it, read its counts.

For tests, drills, the demo and benches, from any thread or process. Not for sending.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sendonce.core.errors import InvalidInput

TIMEOUT_S = 60.0


class SandboxClient:
    """Talks to a running sandbox. `tls_cert` is the PEM file to trust when SMTP uses TLS, "" without."""

    def __init__(
        self, *, http_port: int, smtp_port: int = 0, host: str = "127.0.0.1", tls_cert: str = ""
    ) -> None:
        self.host = host
        self.http_port = http_port
        self.smtp_port = smtp_port
        self.tls_cert = tls_cert
        self._lock = threading.Lock()
        self._connection = http.client.HTTPConnection(host, http_port, timeout=TIMEOUT_S)

    @property
    def http_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.http_port}"

    def report(self, *, interval_s: float | None = None) -> dict[str, Any]:
        """All counts; `interval_s` is the width of the sliding window, else each channel's own."""
        query = "" if interval_s is None else f"?interval_s={interval_s}"
        return self._json("GET", f"/report{query}")

    def rules(self) -> dict[str, Any]:
        """The rules of each channel as they are now."""
        return self._json("GET", "/control")

    def change(self, **channels: Mapping[str, Any]) -> dict[str, Any]:
        """`change(sms={"rate_limit": 10})`: a merge patch for each channel. Raises `InvalidInput`."""
        return self._json("POST", "/control", channels)

    def reset(self, *, rules: bool = False) -> None:
        """Forget all counts; with `rules`, also every change since the start."""
        self._json("POST", "/reset", {"rules": rules})

    def effects(self, marker: str | None = None) -> list[dict[str, Any]]:
        """Messages that were taken, oldest first in each channel."""
        if marker is None:
            return self._rows("/effects.ndjson")
        found: list[dict[str, Any]] = self._json("GET", f"/effects?marker={quote(marker, safe='')}")[
            "effects"
        ]
        return found

    def arrivals(self) -> list[dict[str, Any]]:
        """Each call with its times (microseconds UTC), whether the limits admitted it, and its answer."""
        return self._rows("/arrivals.ndjson")

    def events(self) -> list[dict[str, Any]]:
        """Each later event with its URL and what became of it."""
        return self._rows("/events.ndjson")

    def close(self) -> None:
        self._connection.close()

    def _json(self, method: str, target: str, body: Any = None) -> dict[str, Any]:
        status, content = self._call(method, target, None if body is None else json.dumps(body))
        answer: dict[str, Any] = json.loads(content)
        if status != http.client.OK:
            raise InvalidInput(str(answer["error"]["message"]))
        return answer

    def _rows(self, target: str) -> list[dict[str, Any]]:
        _, content = self._call("GET", target, None)
        return [json.loads(line) for line in content.splitlines()]

    def _call(self, method: str, target: str, body: str | None) -> tuple[int, bytes]:
        with self._lock:
            try:
                self._connection.request(method, target, body)
                response = self._connection.getresponse()
                return response.status, response.read()
            except BaseException:
                self._connection.close()  # the next call connects anew
                raise
