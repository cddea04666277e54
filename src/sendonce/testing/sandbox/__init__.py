"""A local provider simulator: real SMTP and real HTTP on loopback, with limits, faults and a count.

    with sandbox_in_thread(SandboxSettings()) as sandbox:
        ...                                             # send to sandbox.http_url, sandbox.smtp_port
        sandbox.change(sms={"lost_after": {"next": 3}}) # the next three answers get lost
        assert sandbox.report()["channels"]["sms"]["duplicates"] == 0

    settings                     what can be set          door       the count
    channel                      what becomes of a call   events     what is said later
    shapes, application          the HTTP APIs            server     start and stop
    http_server, smtp_server     the sockets              client     steer and read, blocking

For development and tests only: memory only, no access control, loopback only.
"""

from sendonce.testing.sandbox.client import SandboxClient
from sendonce.testing.sandbox.server import Sandbox, sandbox_in_process, sandbox_in_thread, serve
from sendonce.testing.sandbox.settings import (
    ChannelRules,
    EventRules,
    Idempotency,
    RecipientRule,
    Refusal,
    RetryAfter,
    SandboxSettings,
    Tls,
    Trigger,
    read_settings,
)

__all__ = [
    "ChannelRules",
    "EventRules",
    "Idempotency",
    "RecipientRule",
    "Refusal",
    "RetryAfter",
    "Sandbox",
    "SandboxClient",
    "SandboxSettings",
    "Tls",
    "Trigger",
    "read_settings",
    "sandbox_in_process",
    "sandbox_in_thread",
    "serve",
]
