"""DBOS on PostgreSQL: a workflow with one step, on a queue.

What a dead worker held is taken up by the worker that is started under its name.
"""

import os
import threading

import kit

os.environ["DBOS__VMID"] = f"worker-{kit.WORKER}"
os.environ["DBOS__APPVERSION"] = "1"

import sqlalchemy
from dbos import DBOS, DBOSClient

DATABASE = kit.DATABASE.replace("postgresql://", "postgresql+psycopg://")
QUEUE = "reminders"


@DBOS.step(retries_allowed=True, max_attempts=200, interval_seconds=1, backoff_rate=1.0, name="post")
async def post(key):
    await kit.post(key)


@DBOS.workflow(name="send")
async def send(key):
    await post(key)


def launch():
    DBOS(
        config={
            "name": "bench",
            "system_database_url": DATABASE,
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": f"worker-{kit.WORKER}",
            "sys_db_pool_size": 20,
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    DBOS.register_queue(
        QUEUE,
        worker_concurrency=kit.CONCURRENCY,
        polling_interval_sec=1.0 if kit.TIMED else 0.1,
        limiter={"limit": kit.LIMIT, "period": 1.0} if kit.LIMIT else None,
        on_conflict="always_update",
    )


if kit.VERB == "setup":
    launch()
    DBOS.destroy()
elif kit.VERB == "enqueue":
    client, engine = DBOSClient(system_database_url=DATABASE), sqlalchemy.create_engine(DATABASE)
    for keys, delay_s in kit.parts(500):
        options = {"queue_name": QUEUE, "workflow_name": "send", "app_version": "1"}
        if delay_s:
            options["delay_seconds"] = delay_s
        with engine.begin() as connection:
            for key in keys:
                client.enqueue_in_transaction(connection, options, key)
    client.destroy()
else:
    launch()
    threading.Event().wait()
