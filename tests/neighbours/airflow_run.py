"""Runs the recipe's DAG once, by Airflow's own `dag.test()`.

On the last line of stdout: its state, and how many tries its task took. A retry comes at once, since how long
Airflow waits for it is not ours to try.
"""

from __future__ import annotations

from datetime import timedelta

from airflow_pass import passes

if __name__ == "__main__":
    (task,) = passes.tasks
    task.retry_delay = timedelta()
    done = passes.test()
    (ran,) = done.get_task_instances()
    print(done.state, ran.try_number)  # noqa: T201
