"""Dramatiq on RabbitMQ where that runs, else on Redis; one process with threads."""

import os
import sys
from contextlib import nullcontext

import dramatiq
import kit
from dramatiq.rate_limits import WindowRateLimiter

if kit.RABBITMQ:
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=kit.RABBITMQ, confirm_delivery=True)
else:
    from dramatiq.brokers.redis import RedisBroker

    # What a dead worker held is moved back by one in so many commands: by default one in a thousand.
    settings = (
        {"heartbeat_timeout": kit.LEASE_S * 1_000, "maintenance_chance": 100_000} if kit.LEASE_S else {}
    )
    broker = RedisBroker(url=kit.REDIS, **settings)
dramatiq.set_broker(broker)

if kit.LIMIT:
    from dramatiq.rate_limits.backends import RedisBackend

    limiter = WindowRateLimiter(RedisBackend(url=kit.REDIS), "provider", limit=kit.LIMIT, window=1)


@dramatiq.actor(queue_name="reminders", max_retries=500, min_backoff=500, max_backoff=2_000)
def send(key):
    with limiter.acquire() if kit.LIMIT else nullcontext():
        kit.post_blocking(key)


if __name__ == "__main__":
    if kit.VERB == "enqueue":
        for keys, delay_s in kit.parts(100):
            for key in keys:
                send.send_with_options(args=(key,), delay=round(delay_s * 1_000) or None)
    elif kit.VERB == "work":
        worker = ["dramatiq_program", "--processes", "1", "--threads", str(kit.CONCURRENCY), "--skip-logging"]
        os.execv(sys.executable, [sys.executable, "-m", "dramatiq", *worker])
