"""The recipe for Temporal, run by a real worker against Temporal's own test server, which skips time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.api_world import Api
from tests.neighbours.door import Door
from tests.neighbours.programs import HERE, program, run, surroundings


def test_activities_that_run_again_schedule_and_take_back_once(door: Door, api: Api, tmp_path: Path) -> None:
    door.lose = 1  # the client asks again by itself, too
    out = run(
        [program("neighbours", "python"), HERE / "temporal_run.py"],
        surroundings(door.url, api.token),
        tmp_path,
    )
    answer = json.loads(out.splitlines()[-1])
    assert answer["results"]["open"] == "reminded"
    assert answer["results"]["paid"] == "cancelled"
    assert answer["results"]["wrong"].startswith("invalid: ")
    assert answer["said"] == [
        ["schedule_reminder", "unchanged"],  # its first answer was lost at the door
        ["schedule_reminder", "unchanged"],
        ["schedule_reminder", "accepted"],
        ["schedule_reminder", "unchanged"],
        ["take_back_reminder", "cancelled"],
        ["take_back_reminder", "cancelled"],
    ]
    found = {each["key"]: each["state"] for each in api.get("/v1/deliveries").ok()["deliveries"]}
    assert found == {
        "loan-1:customer-73:email": "SCHEDULED",
        "loan-2:customer-73:email": "CANCELLED",
    }
