"""A pass from Airflow: each run asks sendonce to publish what is due, until all of it is.

A run may be late, missed, repeated or run beside another: what is due is found by its state, so the next one
goes on and nothing is published twice. `catchup=False`, since a pass for 09:05 has nothing left to do when
09:06 ran. A scheduler of sendonce does the same each second; this is for those who want to see all that runs
in one place.
"""

import json
import os
from datetime import timedelta
from urllib.request import Request, urlopen

from airflow.sdk import dag, task

PASSES_MAX = 40
"""Each takes 20 seconds at most: what is left then is for the next run."""


def publish(url: str, key: str, trigger: str) -> dict[str, object]:
    """Ask for passes until nothing that is due is left. Raises `URLError` where it is not done."""
    published, answer = 0, {"complete": False, "run": None}
    for _ in range(PASSES_MAX):
        request = Request(  # noqa: S310  an address that you configure
            f"{url}/v1/passes",
            data=json.dumps({"trigger": trigger}).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as response:  # noqa: S310
            answer = json.load(response)
        published += answer["counts"].get("published", 0)
        if answer["complete"] or answer["paused"]:
            break
    return {"run": answer["run"], "complete": answer["complete"], "published": published}


@dag(schedule="* * * * *", catchup=False, max_active_runs=2, tags=["sendonce"])
def sendonce_pass() -> None:
    @task(retries=2, retry_delay=timedelta(seconds=10), execution_timeout=timedelta(minutes=15))
    def run_passes() -> dict[str, object]:
        return publish(os.environ["SENDONCE_URL"], os.environ["SENDONCE_KEY"], "airflow")

    run_passes()


passes = sendonce_pass()
