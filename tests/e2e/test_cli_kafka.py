"""`sendonce kafka`: as a cron runs it, as a process, and what it says of a cluster that is not there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.command_line import Folder, ended
from tests.kafka_cluster import TOPIC, Cluster


def configure(folder: Folder, servers: str) -> None:
    path = Path(folder.path / "sendonce.toml")
    text = path.read_text(encoding="utf-8").partition("\n[kafka]")[0]
    path.write_text(
        f'{text}\n[kafka]\nservers = "{servers}"\nsecurity = "none"\ntimeout = "1s"\n', encoding="utf-8"
    )


def cancelled(folder: Folder, name: str) -> str:
    folder.run(
        "schedule", name, "--customer", "c-1", "--email", "ann@example.com", "--due", "in 2h",
        "--template", "shipped", "--set", "name=Ann", "--set", "parcel=7",
    )  # fmt: skip
    folder.run("cancel", "--reminder", name, "--reason", "paid by Ann")
    return f"{name}:c-1:email"


def test_the_feed_is_handed_on_once_and_followed(folder: Folder) -> None:
    cluster = Cluster()
    folder.add_template()
    assert "write [kafka] with servers in" in folder.run("kafka", code=2).err
    configure(folder, cluster.servers)
    first, second = cancelled(folder, "k-1"), cancelled(folder, "k-2")
    ran = folder.run("kafka", "--once")
    assert "2 events handed on" in ran.out
    assert f"topic {TOPIC}" in ran.err
    assert folder.json("kafka", "--once") == {"handed_on": 0, "gone": False}
    with ended(folder.process("kafka")) as following:
        third = cancelled(folder, "k-3")
        records = cluster.wait_for(3)
        following.terminate()
        out, err = following.communicate(timeout=30)
        assert following.returncode == 0, err
    assert "1 event handed on" in out
    assert {key for key, _, _ in records} == {first, second, third}
    found = {each["part"]: each for each in folder.json("check")["findings"]}
    assert found["kafka"]["text"] == f"topic {TOPIC}, 4 partitions"


def test_a_cluster_that_is_away_and_a_place_that_holds_no_longer_are_named(folder: Folder) -> None:
    folder.add_template()
    cancelled(folder, "k-1")
    configure(folder, "127.0.0.1:1")
    answer = json.loads(folder.run("kafka", "--once", "--json", code=3).out)
    assert answer["error"]["code"] == "sink_unavailable"
    cluster = Cluster()
    configure(folder, cluster.servers)
    assert folder.json("kafka", "--once") == {"handed_on": 1, "gone": False}
    assert folder.json("kafka", "--once", "--since", "2020-01-01T00:00Z")["handed_on"] == 1
    # The place is of before a release: it ends and says how to begin again.
    folder.run("db", "hold", "--reason", "a copy")
    folder.run("db", "released", "--reason", "a copy", "--nothing-lost")
    ended_at = folder.run("kafka", "--once", code=5)
    assert "sendonce kafka --since TIME" in ended_at.err
    assert folder.json("kafka", "--once", "--since", "2020-01-01T00:00Z")["handed_on"] == 1
    assert folder.json("kafka", "--once")["handed_on"] == 0
