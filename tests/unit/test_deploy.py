"""What lies in `deploy/` fits the program: commands that it takes, probes that it answers, the time that its
stop may take, secrets by reference only.

No image is built and no cluster asked: what a tool can check by itself is checked by it where there is one
(`systemd-analyze`, `kubectl kustomize`)."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from sendonce.api.door import OPEN_PATHS
from sendonce.cli.exits import Exit
from sendonce.config import load
from sendonce.core.duration import parse_duration
from sendonce.runtime.health import HealthServer, Report, parse_address
from tests.typed import parsed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = "/opt/sendonce/bin/sendonce"
BEYOND_S = 5.0
"""By so much a manager must wait longer than a stop may take: for the start of the program, and its exit."""
BACKUP = "sendonce-backup.service"
"""It comes to its end, so what is said of processes that stay is not said of it."""
UNITS = {path.name: path.read_text("utf-8") for path in sorted((DEPLOY / "systemd").glob("*.service"))}
STAYING = sorted(UNITS.keys() - {BACKUP})
COMPOSE: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MANIFESTS: list[Any] = [
    manifest
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text("utf-8"))
]
SECRETS = set(re.findall(r'"file:secrets/([\w-]+)"', (DEPLOY / "sendonce.toml").read_text("utf-8")))


def stop_s(words: Sequence[str]) -> float:
    """How long a process with this command line may take to stop; 0 for one that ends by itself."""
    said = parsed(words).get("stop_after")
    return parse_duration(said, field="--stop-after") if said else 0.0


def test_the_configuration_is_one_and_its_secrets_are_files(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "sendonce.toml", tmp_path)
    (tmp_path / "secrets").mkdir()
    for name in SECRETS:
        (tmp_path / "secrets" / name).write_text("AC00000000000000000000000000000000\n", encoding="utf-8")
    (tmp_path / "secrets/store-url").write_text("postgresql://sendonce_app:x@db.example.com/reminders\n")
    settings = load(tmp_path / "sendonce.toml", environ={})
    assert "db.example.com" in str(settings.store_url)
    assert {"store-url", "smtp-password", "twilio-sid", "twilio-token"} == SECRETS


# systemd


def values(unit: str) -> dict[str, list[str]]:
    """Every setting of a unit, whatever its section."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNITS[unit], re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", STAYING)
def test_a_unit_starts_a_command_that_exists_and_waits_for_its_stop(unit: str) -> None:
    settings = values(unit)
    (line,) = settings["ExecStart"]
    program, *words = shlex.split(line.replace("%i", "email"))
    assert program == PROGRAM
    assert float(settings["TimeoutStopSec"][0]) >= stop_s(words) + BEYOND_S
    assert settings["RestartPreventExitStatus"] == [str(Exit.USAGE.value)]
    for variable in settings["Environment"]:
        name, _, value = variable.partition("=")
        assert name in ("SENDONCE_CONFIG", "SENDONCE_HEALTH")
        if name == "SENDONCE_HEALTH":
            assert parse_address(value, field=name).host == "127.0.0.1"


def test_units_differ_in_what_they_run_and_in_nothing_else() -> None:
    own = {"Description", "ExecStart", "Environment", "EnvironmentFile"}
    common = [{name: value for name, value in values(unit).items() if name not in own} for unit in STAYING]
    assert all(settings == common[0] for settings in common)
    assert common[0]["User"] == ["sendonce"]
    assert common[0]["NoNewPrivileges"] == ["yes"]
    begins = list(common[0]).index("User")
    bounds = dict(list(common[0].items())[begins:])
    del bounds["StateDirectory"], bounds["WantedBy"]
    assert bounds.items() <= values(BACKUP).items()


def test_the_backup_of_a_night_is_a_command_that_exists(tmp_path: Path) -> None:
    """Its shell line is run as systemd would, with a program in the place of ours that says what it got."""
    (line,) = values(BACKUP)["ExecStart"]
    shell, flag, text = shlex.split(line.replace("$$", "$").replace("%%", "%"))
    program = tmp_path / "sendonce"
    program.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    command = [shell, flag, text.replace(PROGRAM, str(program))]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert re.fullmatch(r"backups/sendonce-\d{4}-\d\d-\d\dT\d{6}\.db", str(parsed(said)["file"]))
    (after,) = values(BACKUP)["ExecStartPost"]
    assert shlex.split(after)[1:] == ["backups", "-name", "sendonce-*.db", "-mtime", "+14", "-delete"]


def test_systemd_takes_them_where_there_is_one(tmp_path: Path) -> None:
    """Elsewhere what stands above holds all the same."""
    names = []
    for path in sorted((DEPLOY / "systemd").iterdir()):
        names.append(path.name.replace("@.", "@email."))
        text = path.read_text("utf-8").replace(PROGRAM, str(Path(sys.executable).parent / "sendonce"))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
        (tmp_path / names[-1]).write_text(text, encoding="utf-8")
    if analyze := shutil.which("systemd-analyze"):
        command = [analyze, "verify", "--man=no", *(str(tmp_path / name) for name in names)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


# The image and the compose file


def test_the_image_holds_what_is_pinned_and_runs_as_nobody_in_particular() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)
    installs = re.findall(r"pip install (.+?) \\$", text, re.MULTILINE)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--no-index" in installs[1]
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert int(user) > 0
    assert 'ENTRYPOINT ["sendonce"]' in text
    sources = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    let_in = re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8"), re.MULTILINE)
    assert sorted(sources) == sorted(each.replace("*.whl", "sendonce-*.whl") for each in let_in)


def ours() -> dict[str, Any]:
    """The services of the compose file that run the program."""
    return {
        name: service
        for name, service in COMPOSE["services"].items()
        if service["image"].startswith("sendonce:")
    }


@pytest.mark.parametrize("name", ours())
def test_a_service_runs_a_command_that_exists_with_every_secret_it_reads(name: str) -> None:
    service = ours()[name]
    assert parse_duration(service["stop_grace_period"], field=name) >= stop_s(service["command"]) + BEYOND_S
    assert {Path(each["target"]).name for each in service["secrets"]} == SECRETS
    assert {str(Path(each["target"]).parent) for each in service["secrets"]} == {"/etc/sendonce/secrets"}
    (configuration,) = service["configs"]
    assert configuration["target"] == "/etc/sendonce/sendonce.toml"
    for dependency in service["depends_on"]:
        assert dependency in COMPOSE["services"]
    if name != "schema":
        assert service["restart"] == "unless-stopped"
        asked = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", service["healthcheck"]["test"][-1])
        assert asked is not None
        assert answers(service, int(asked[1]), asked[2])


def answers(service: Mapping[str, Any], port: int, path: str) -> bool:
    """Whether a process that is started so answers there."""
    listen = parsed(service["command"]).get("listen")
    if listen:
        return parse_address(listen, field="--listen").port == port and path in OPEN_PATHS
    return listens_at(service["environment"]["SENDONCE_HEALTH"]) == port and path in HEALTH_PATHS


def listens_at(address: str) -> int:
    """The port of an address that is reached from outside the container."""
    found = parse_address(address, field="SENDONCE_HEALTH")
    assert found.host == "0.0.0.0"
    return found.port


HEALTH_PATHS = ("/live", "/ready")


def test_probes_are_answered() -> None:
    server = HealthServer(lambda: Report((), {}), on_error=lambda stage, error: None)
    answered = [server.answer(f"GET {path} HTTP/1.1\r\n\r\n".encode()) for path in (*HEALTH_PATHS, "/none")]
    assert [each.split()[1] for each in answered] == [b"200", b"200", b"404"]


def test_one_of_two_schedulers_stands_by_and_only_the_schema_is_made_by_the_owner() -> None:
    assert COMPOSE["services"]["scheduler"]["deploy"]["replicas"] == 2
    store = {
        name: next(each["source"] for each in service["secrets"] if each["target"].endswith("/store-url"))
        for name, service in ours().items()
    }
    assert store.pop("schema") == "owner-url"
    assert set(store.values()) == {"store-url"}


def test_secrets_of_the_compose_file_are_files_and_no_port_is_open_to_the_network() -> None:
    assert {tuple(secret) for secret in COMPOSE["secrets"].values()} == {("file",)}
    for service in COMPOSE["services"].values():
        assert not any("PASSWORD" in name.removesuffix("_FILE") and not name.endswith("_FILE")
                       for name in service.get("environment", {}))  # fmt: skip
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for used in service.get("secrets", []):
            assert (used if isinstance(used, str) else used["source"]) in COMPOSE["secrets"]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file()
    assert COMPOSE["services"]["rights"]["image"] == COMPOSE["services"]["postgres"]["image"]


# Kubernetes


def of_kind(*kinds: str) -> list[Any]:
    return [manifest for manifest in MANIFESTS if manifest["kind"] in kinds]


def pods() -> Iterator[tuple[str, Any]]:
    """Each pod that a manifest makes."""
    for manifest in of_kind("Deployment", "Job", "CronJob"):
        spec = manifest["spec"]
        spec = spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec
        yield manifest["metadata"]["name"], spec["template"]["spec"]


PODS = dict(pods())


def programs(pod: Any) -> list[Any]:
    """The containers of a pod that run the program."""
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    return [container for container in containers if container["image"].startswith("sendonce:")]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_a_command_that_exists_and_is_given_the_time_to_stop(name: str) -> None:
    pod = PODS[name]
    (container,) = programs(pod)
    wait_s = pod.get("terminationGracePeriodSeconds", 30)
    before = container.get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
    (word, seconds) = before["exec"]["command"]
    assert word == "sleep"
    assert wait_s >= float(seconds) + stop_s(container["args"]) + BEYOND_S
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for each in [*pod.get("initContainers", []), *pod["containers"]]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert all(
            "valueFrom" in variable or variable["name"] == "SENDONCE_HEALTH"
            for variable in each.get("env", [])
        )
        assert {mount["name"] for mount in each["volumeMounts"]} <= {
            volume["name"] for volume in pod["volumes"]
        }


@pytest.mark.parametrize("name", PODS)
def test_a_pod_finds_every_secret_where_the_configuration_looks(name: str) -> None:
    (volume,) = (each for each in PODS[name]["volumes"] if each["name"] == "configuration")
    placed = {
        item["path"]
        for source in volume["projected"]["sources"]
        for item in (source.get("secret") or source["configMap"])["items"]
    }
    assert placed == {"sendonce.toml", *(f"secrets/{secret}" for secret in SECRETS)}
    owner = any(
        each.get("secret", {}).get("name") == "sendonce-owner" for each in volume["projected"]["sources"]
    )
    assert owner is (name == "sendonce-schema")


@pytest.mark.parametrize("manifest", of_kind("Deployment"), ids=lambda manifest: manifest["metadata"]["name"])
def test_a_deployment_is_probed_where_it_listens_and_never_restarted_for_not_being_ready(
    manifest: Any,
) -> None:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    environment = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    service = {"command": container["args"], "environment": environment}
    for probe in asked.values():
        assert answers(service, ports[probe["port"]], probe["path"])
    assert asked["startup"]["path"] == asked["liveness"]["path"]
    assert asked["readiness"]["path"] in ("/ready", "/readyz")
    assert asked["liveness"]["path"] in ("/live", "/healthz")
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"] == labels
    assert container["resources"]["limits"]["memory"]


def test_no_manifest_holds_a_secret() -> None:
    assert of_kind("Secret", "ConfigMap") == []


def test_what_selects_selects_something() -> None:
    all_labels = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind("Deployment")]
    for manifest in of_kind("PodDisruptionBudget", "Service", "NetworkPolicy"):
        spec = manifest["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        wanted = selector.get("matchLabels", selector)
        assert any(wanted.items() <= labels.items() for labels in all_labels), manifest["metadata"]["name"]
    for manifest in of_kind("PodDisruptionBudget"):
        wanted = manifest["spec"]["selector"]["matchLabels"]
        (replicas,) = (
            each["spec"]["replicas"]
            for each in of_kind("Deployment")
            if each["spec"]["template"]["metadata"]["labels"] == wanted
        )
        assert replicas > manifest["spec"]["minAvailable"]  # else no node could ever be emptied


def test_a_pass_by_cron_may_overlap_and_is_ended_by_its_bound() -> None:
    (cron,) = of_kind("CronJob")
    assert cron["spec"]["concurrencyPolicy"] == "Allow"
    assert cron["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] <= 900
    assert programs(PODS["sendonce-pass"])[0]["args"][0] == "pass"


def test_kustomize_takes_them_where_there_is_one() -> None:
    (kustomization,) = of_kind("Kustomization")
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert files - set(kustomization["resources"]) == {"kustomization.yaml", "schema.yaml", "passes.yaml"}
    if kubectl := shutil.which("kubectl"):
        command = [kubectl, "kustomize", str(DEPLOY / "kubernetes")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert len(list(yaml.safe_load_all(done.stdout))) == 8
