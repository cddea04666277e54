"""Celery on Redis with threads: acknowledged late, so that a killed worker's tasks come back.

Its `rate_limit` is one for each process, so each gets its share.
"""

import os
import sys

import kit
from celery import Celery

app = Celery("celery_program", broker=kit.REDIS)
transport = {"max_connections": 1_000}
if kit.LEASE_S:
    transport["visibility_timeout"] = kit.LEASE_S
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    broker_transport_options=transport,
)
rate_limit = f"{kit.LIMIT // kit.WORKERS}/s" if kit.LIMIT else None


@app.task(name="send", bind=True, max_retries=None, rate_limit=rate_limit)
def send(self, key):
    try:
        kit.post_blocking(key)
    except kit.Refused as refused:
        raise self.retry(countdown=1, exc=refused) from refused


if __name__ == "__main__":
    if kit.VERB == "enqueue":
        with app.producer_pool.acquire(block=True) as producer:
            for keys, delay_s in kit.parts(100):
                for key in keys:
                    send.apply_async((key,), producer=producer, countdown=delay_s or None)
    elif kit.VERB == "work":
        worker = ["worker", "-P", "threads", "-c", str(kit.CONCURRENCY), "-l", "error"]
        worker += ["--without-gossip", "--without-mingle", "-n", f"worker-{kit.WORKER}@bench"]
        os.execv(sys.executable, [sys.executable, "-m", "celery", "-A", "celery_program", *worker])
