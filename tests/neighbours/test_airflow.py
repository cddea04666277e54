"""The recipe for Airflow, run by Airflow itself on a database of its own (`make test-airflow`)."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.integration.api_world import Api, reminder
from tests.neighbours.door import Door
from tests.neighbours.programs import HERE, RECIPES, program, run, surroundings


def test_a_run_publishes_what_is_due_and_a_lost_answer_costs_a_retry(
    door: Door, api: Api, tmp_path: Path
) -> None:
    due = [reminder(f"r-{number}", due="now") for number in range(3)]
    assert api.post("/v1/reminders", {"reminders": due}).ok()["counts"] == {"accepted": 3}
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(RECIPES / "airflow_pass.py", dags)
    environ = surroundings(
        door.url,
        api.token,
        AIRFLOW_HOME=str(tmp_path / "airflow"),
        AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
    )
    run([program("airflow", "airflow"), "db", "migrate"], environ, tmp_path)
    door.lose = 1
    test = [program("airflow", "python"), HERE / "airflow_run.py"]
    state, tries = run(test, environ, tmp_path).split()[-2:]
    assert (state, tries, door.asked) == ("success", "2", 2)
    passes = api.get("/v1/passes").ok()["passes"]
    # Newest first: the one whose answer was lost had published all three, and the retry found nothing left.
    assert [(each["trigger"], each["complete"], each["counts"].get("published", 0)) for each in passes] == [
        ("airflow", True, 0),
        ("airflow", True, 3),
    ]
