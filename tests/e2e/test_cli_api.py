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


def test_check_says_whether_the_api_may_listen_where_it_is_asked_to(folder: Folder, port: int) -> None:
    text = (folder.path / "sendonce.toml").read_text(encoding="utf-8")

    def finding(listen: str, code: int = 0) -> dict[str, str]:
        folder.write("sendonce.toml", f'{text}\n[api]\nlisten = "{listen}"\n')
        found: list[dict[str, str]] = folder.json("check", code=code)["findings"]
        return next(each for each in found if each["part"] == "api")

    assert finding(str(port)) == {
        "part": "api",
        "verdict": "ok",
        "text": f"`up` serves it on http://127.0.0.1:{port}/v1",
    }
    with socket.create_server(("127.0.0.1", port)):
        assert finding(str(port))["verdict"] == "note"
    assert finding(f"203.0.113.1:{port}", code=1)["verdict"] == "bad"


def test_the_feed_is_read_page_by_page_and_followed(folder: Folder) -> None:
    folder.add_template()
    for name in ("f-1", "f-2"):
        folder.run(
            "schedule", name, "--customer", "c-1", "--email", "ann@example.com", "--due", "in 2h",
            "--template", "shipped", "--set", "name=Ann", "--set", "parcel=7",
        )  # fmt: skip
    cursor = folder.json("feed")["cursor"]
    assert "nothing has ended" in folder.run("feed", "--after", cursor).out
    for name in ("f-1", "f-2"):
        folder.run("cancel", "--reminder", name, "--reason", "paid")
    first = folder.json("feed", "--after", cursor, "--limit", "1")
    second = folder.json("feed", "--after", first["cursor"])
    found = [*first["events"], *second["events"]]
    assert [(each["reminder"], each["state"], each["reason"]) for each in found] == [
        ("f-1", "CANCELLED", "paid"),
        ("f-2", "CANCELLED", "paid"),
    ]
    assert f"sendonce feed --after {second['cursor']}" in folder.run("feed", "--after", cursor).out
    assert "no cursor of this feed" in folder.run("feed", "--after", "x", code=2).err
    with ended(folder.process("feed", "--after", cursor, "--follow", "--json")) as following:
        assert following.stdout is not None
        lines = [json.loads(following.stdout.readline()) for _ in range(2)]
    assert [each["reminder"] for each in lines] == ["f-1", "f-2"]
