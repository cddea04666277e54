"""Runs the recipe's DAG once, by Airflow's own `dag.test()`; its state on the last line of stdout."""

from __future__ import annotations

from airflow_pass import passes

if __name__ == "__main__":
    print(passes.test().state)  # noqa: T201
