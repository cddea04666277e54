"""What the tests of the command line share: a sandbox for each file, a configured folder for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sendonce.testing.sandbox import SandboxClient, SandboxSettings, sandbox_in_thread
from tests.e2e.command_line import Folder


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxClient]:
    with sandbox_in_thread(SandboxSettings()) as client:
        yield client


@pytest.fixture
def folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    sandbox: SandboxClient,
) -> Folder:
    sandbox.reset(rules=True)
    made = Folder(tmp_path, monkeypatch, capfd)
    made.configure(sandbox)
    return made
