"""Due reminders by email and SMS, each delivered once, at the pace each provider allows.

    from sendonce import Client

    with Client("sendonce.toml") as client:
        client.schedule([{"reminder": "shipment-4821", "customer": "customer-73", "due": "in 2h",
                          "template": "shipped", "email": "ann@example.com"}])

`Client` is what programs use, and on PostgreSQL `schedule` inside a transaction of their own; the rest of the
package is for those who build on it. Errors form one tree under `SendonceError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sendonce.client import Client as Client
    from sendonce.core.errors import SendonceError as SendonceError
    from sendonce.core.reminder import Asked as Asked
    from sendonce.outbox import schedule as schedule
    from sendonce.pipeline.hand_in import Result as Result

    __version__: str

__all__ = ["Asked", "Client", "Result", "SendonceError", "__version__", "schedule"]

_HOMES = {
    "Asked": "sendonce.core.reminder",
    "Client": "sendonce.client",
    "Result": "sendonce.pipeline.hand_in",
    "SendonceError": "sendonce.core.errors",
    "schedule": "sendonce.outbox",
}


def __getattr__(name: str) -> object:
    """Imported when first asked for: `sendonce --help` and the core must not load every adapter."""
    if name == "__version__":
        from importlib.metadata import version

        return version("sendonce")
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sendonce' has no attribute {name!r}")
