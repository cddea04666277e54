"""Messages shown on the terminal instead of sent: for a first look, and for development.

Class N, and nothing leaves the machine. The whole text is shown; use it with made-up recipients.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sendonce.core.outcome import Accepted, Finding, NoAnswer, NotStarted, Outcome, Unknown
from sendonce.ports.provider import EmailContent, Message, Promise, ProviderClass, Start, TooLate


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Nothing to set."""


class ConsoleProvider:
    """`ports.provider.Provider` that writes to standard output."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._closed = False

    @property
    def promise(self) -> Promise:
        return Promise(ProviderClass.NEITHER, timeout_s=10.0, arrival_max_s=0.0)

    async def send(self, message: Message, *, start: Start) -> Outcome:
        if self._closed:
            return NotStarted("stopping")
        shown = as_text(message)
        try:
            await start()
        except TooLate as late:
            return NotStarted(late.why)
        try:
            sys.stdout.write(shown)
            sys.stdout.flush()
        except (OSError, ValueError):
            return Unknown("reset", "stdout")
        return Accepted(f"console-{message.send_key[:12]}")

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        return "shows messages on standard output"

    async def close(self) -> None:
        self._closed = True


def as_text(message: Message) -> str:
    """The message for a person to read; what a terminal could take for commands is shown as escapes."""
    content = message.content
    lines = [f"--- {message.delivery_key}", f"From: {content.sender}", f"To: {message.to}"]
    if isinstance(content, EmailContent):
        lines += [f"Subject: {content.subject}", ""]
        lines += (content.text or content.html).splitlines()
    else:
        lines += ["", *content.text.splitlines()]
    safe = ("".join(char if char.isprintable() else repr(char)[1:-1] for char in line) for line in lines)
    return "\n".join(safe) + "\n---\n"
