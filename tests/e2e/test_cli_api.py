"""The API as processes: `sendonce api`, and beside the work in `sendonce up`."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess

import pytest

from tests.e2e.command_line import Folder, ended, wait_for


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def asked(port: int, path: str, token: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def stopped(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=15)
    return process.returncode, said


def test_a_process_of_its_own_serves_until_it_is_asked_to_stop(folder: Folder, port: int) -> None:
    token = folder.json("key", "add", "shop", "--scope", "admin")["token"]
    with ended(folder.process("api", "--listen", str(port))) as process:
        wait_for(lambda: asked(port, "/readyz") == 200)
        assert (asked(port, "/v1/keys"), asked(port, "/v1/keys", token)) == (401, 200)
        code, said = stopped(process)
    assert (code, "what was asked is answered" in said) == (0, True)
    (key,) = folder.json("key", "list")["keys"]
    assert key["used_at"] is not None
    assert token not in said


def test_up_serves_it_where_it_is_configured(folder: Folder, port: int) -> None:
    config = folder.path / "sendonce.toml"
    config.write_text(f'{config.read_text("utf-8")}\n[api]\nlisten = "127.0.0.1:{port}"\n', "utf-8")
    with ended(folder.process("up")) as process:
        wait_for(lambda: asked(port, "/readyz") == 200)
        code, said = stopped(process)
    assert (code, "what was open is settled" in said) == (0, True)


def test_a_port_that_is_taken_is_one_line(folder: Folder, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        ran = folder.run("api", "--listen", str(port), code=2)
    assert f"--listen 127.0.0.1:{port} is in use already" in ran.err


def test_keys_are_made_listed_replaced_and_ended(folder: Folder) -> None:
    made = folder.json("key", "add", "shop", "--scope", "read", "--scope", "cancel", "--expires", "90d")
    assert (made["scopes"], made["state"], made["rate"]) == (["read", "cancel"], "valid", 100)
    new = folder.json("key", "rotate", made["prefix"], "--reason", "yearly", "--overlap", "0s")
    folder.run("key", "revoke", new["prefix"], "--reason", "leaked")
    states = {key["prefix"]: key["state"] for key in folder.json("key", "list")["keys"]}
    assert states == {made["prefix"]: "expired", new["prefix"]: "revoked"}
    assert new["token"] not in json.dumps(folder.json("key", "list"))
    assert (
        "no key has the prefix 'nothing'"
        in folder.run("key", "revoke", "nothing", "--reason", "x", code=4).err
    )
