"""The recipes of `docs/cron.md`, run as a cron would: late, twice, together, refused, cut off."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sendonce.api import passes as module
from tests.e2e.command_line import BIN, ROOT, Folder
from tests.integration.api_world import Api, reminder, served
from tests.typed import parsed

CRON = ROOT / "examples/cron"
PROGRAM = "/opt/sendonce/bin/sendonce"
PASS_MAX_S = 900
SECRET = "s3cret"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("api"), pass_secret=SECRET) as made:
        yield made


def due_now(api: Api, name: str, count: int) -> None:
    given = [reminder(f"{name}-{number}", due="now") for number in range(count)]
    assert api.post("/v1/reminders", {"reminders": given}).ok()["counts"] == {"accepted": count}


def published(api: Api, trigger: str) -> list[int]:
    """What each pass of this name published, the oldest first."""
    found = [each for each in api.get("/v1/passes").ok()["passes"] if each["trigger"] == trigger]
    return [each["counts"].get("published", 0) for each in found[::-1]]


def test_the_crontab_holds_one_command_that_publishes(folder: Folder) -> None:
    folder.add_template()
    folder.run(
        "schedule", "c-1", "--customer", "c-1", "--email", "ann@example.com", "--due", "now",
        "--template", "shipped", "--set", "name=Ann", "--set", "parcel=7",
    )  # fmt: skip
    lines = [line for line in (CRON / "crontab").read_text("utf-8").splitlines() if line[:1] not in ("", "#")]
    variable, line = lines
    assert variable == "SENDONCE_CONFIG=/etc/sendonce/sendonce.toml"
    found = re.fullmatch(r"\* \* \* \* \* sendonce (.+)", line)
    assert found is not None
    assert "%" not in found[1]  # cron would read it as the end of the line
    assert f" {PASS_MAX_S} {PROGRAM} " in found[1]
    command = found[1].replace(PROGRAM, str(BIN / "sendonce"))
    done = subprocess.run(["/bin/sh", "-c", command], cwd=folder.path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # cron mails what is written
    assert folder.json("overview")["last_pass"]["trigger"] == "cron"


def test_systemd_takes_the_timer_and_its_service(tmp_path: Path) -> None:
    text = (CRON / "sendonce-pass.service").read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(line)
    assert (program, parsed(words)["trigger"]) == (PROGRAM, "systemd")
    assert f"\nTimeoutStartSec={PASS_MAX_S}\n" in text
    (tmp_path / "sendonce-pass.service").write_text(text.replace(PROGRAM, str(BIN / "sendonce")), "utf-8")
    shutil.copy(CRON / "sendonce-pass.timer", tmp_path)
    if analyze := shutil.which("systemd-analyze"):
        units = [str(tmp_path / f"sendonce-pass.{kind}") for kind in ("service", "timer")]
        done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


class Script:
    """`pass.sh` with a key and a secret in files."""

    def __init__(self, api: Api, folder: Path, *, key: str = "", secret: str = SECRET) -> None:
        (folder / "key").write_text(f"{key or api.token}\n")
        (folder / "secret").write_text(f"{secret}\n")
        self.environ = {
            **os.environ,
            "SENDONCE_URL": f"http://127.0.0.1:{api.port}",
            "SENDONCE_KEY_FILE": str(folder / "key"),
            "SENDONCE_PASS_SECRET_FILE": str(folder / "secret") if secret else "",
        }

    def start(self, who: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [CRON / "pass.sh", who],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, who: str) -> tuple[int, list[Any], str]:
        return ended(self.start(who))


def ended(process: subprocess.Popen[str]) -> tuple[int, list[Any], str]:
    """Its exit code, each answer, and what it said besides."""
    out, err = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def test_the_script_goes_on_until_all_is_published(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_now(api, "all", 60)
    looks = iter([False])  # for the outbox; none is left for the first pass
    after = module._after
    monkeypatch.setattr(module, "_after", lambda span: lambda: next(looks, True))
    script = Script(api, tmp_path)
    process = script.start("all")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    monkeypatch.setattr(module, "_after", after)
    code, rest, err = ended(process)
    assert (code, err) == (0, "")
    assert (first["complete"], rest[-1]["complete"]) == (False, True)
    assert sum(published(api, "all")) == 60
    assert script.run("all")[0] == 0  # once more: nothing is left, and nothing is done
    assert sum(published(api, "all")) == 60


def test_scripts_that_overlap_publish_each_once(api: Api, tmp_path: Path) -> None:
    due_now(api, "both", 40)
    script = Script(api, tmp_path)
    assert [ended(each)[0] for each in [script.start("both") for _ in range(3)]] == [0, 0, 0]
    assert sum(published(api, "both")) == 40


@pytest.mark.parametrize("wrong", [{"key": "so_nobody"}, {"secret": "other"}, {"secret": ""}])
def test_a_script_that_is_refused_says_so_and_ends_badly(
    api: Api, tmp_path: Path, wrong: dict[str, str]
) -> None:
    code, answers, err = Script(api, tmp_path, **wrong).run("refused")
    assert code != 0
    assert answers == []
    assert re.search(r"40[13]", err)
    assert published(api, "refused") == []


def test_eventbridge_asks_what_the_api_takes(tmp_path: Path) -> None:
    resources = yaml.safe_load((CRON / "eventbridge.yaml").read_text("utf-8"))["Resources"]
    parameter = resources["Connection"]["Properties"]["AuthParameters"]["ApiKeyAuthParameters"]
    destination = resources["Passes"]["Properties"]
    (target,) = resources["EachMinute"]["Properties"]["Targets"]
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    with served(tmp_path) as api:  # no secret: it cannot sign
        due_now(api, "aws", 2)
        given = {"Key": api.token, "Url": ""}
        answer = api.ask(
            destination["HttpMethod"],
            filled(destination["InvocationEndpoint"], given),
            raw=target["Input"].encode(),
            token="",
            headers={parameter["ApiKeyName"]: filled(parameter["ApiKeyValue"], given)},
        )
        assert answer.ok()["counts"]["published"] == 2
        assert published(api, "eventbridge") == [2]


def filled(sub: dict[str, str], given: dict[str, str]) -> str:
    """What CloudFormation makes of `Fn::Sub`."""
    return re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], sub["Fn::Sub"])
