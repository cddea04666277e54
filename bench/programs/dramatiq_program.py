"""Dramatiq on Redis, one process with threads."""

import os
import sys
import time

import dramatiq
import kit
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=kit.REDIS))


@dramatiq.actor(queue_name="reminders", max_retries=500, min_backoff=500, max_backoff=2_000)
def send(key):
    kit.post_blocking(key)


if __name__ == "__main__":
    verb, count = kit.verb()
    if verb == "enqueue":
        since = time.perf_counter()
        for key in kit.keys(count):
            send.send(key)
        kit.enqueued(count, since)
    elif verb == "work":
        worker = ["dramatiq_program", "--processes", "1", "--threads", str(kit.CONCURRENCY), "--skip-logging"]
        os.execv(sys.executable, [sys.executable, "-m", "dramatiq", *worker])
