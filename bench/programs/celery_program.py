"""Celery on Redis with threads: acknowledged late, so that a killed worker's tasks come back."""

import os
import sys
import time

import kit
from celery import Celery

app = Celery("celery_program", broker=kit.REDIS)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"max_connections": 1_000},
)


@app.task(name="send", bind=True, max_retries=None)
def send(self, key):
    try:
        kit.post_blocking(key)
    except RuntimeError as error:
        raise self.retry(countdown=1, exc=error) from error


if __name__ == "__main__":
    verb, count = kit.verb()
    if verb == "enqueue":
        with app.producer_pool.acquire(block=True) as producer:
            since = time.perf_counter()
            for key in kit.keys(count):
                send.apply_async((key,), producer=producer)
            kit.enqueued(count, since)
    elif verb == "work":
        worker = ["worker", "-P", "threads", "-c", str(kit.CONCURRENCY), "-l", "error", "--without-gossip"]
        os.execv(sys.executable, [sys.executable, "-m", "celery", "-A", "celery_program", *worker])
