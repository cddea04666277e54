"""What every connection to a provider needs: trust, a look at the kernel's view, and a hard end."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct

from sendonce.core.errors import ConfigError

_POLLRDHUP: int = getattr(select, "POLLRDHUP", 0)  # Linux only; elsewhere the loop's own view must do
_LINGER_ZERO = struct.pack("ii", 1, 0)


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """A client context: TLS 1.2 or later, host names checked, `ca_file` trusted beside the system's.

    Raises `ConfigError` where the file cannot be read.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            raise ConfigError(f"ca_file {ca_file!r} cannot be read as PEM certificates: {error}") from None
    return context


class Watch:
    """Asks the kernel about a socket, so that an end of stream which the loop has not seen yet is found."""

    __slots__ = ("_poll",)

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        plain = transport.get_extra_info("ssl_object") is None
        self._poll = select.poll()
        # Over TLS, readable may mean a session ticket; the end of the stream is still told apart.
        self._poll.register(
            transport.get_extra_info("socket").fileno(),
            (select.POLLIN | _POLLRDHUP) if plain else _POLLRDHUP,
        )

    def quiet(self) -> bool:
        """Whether nothing has arrived: no byte, no end of stream, no error."""
        return not self._poll.poll(0)


def abort(transport: asyncio.Transport) -> None:
    """Reset the connection, so that nothing of it lingers at the other side."""
    with contextlib.suppress(OSError, ValueError):  # closed already, or reset by the peer
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()
