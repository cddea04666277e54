"""PgQueuer on asyncpg, in batches as its documentation recommends for throughput. It has no rate limiter."""

import json
import logging
from datetime import timedelta

import asyncpg
import kit
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.errors import RetryRequested


async def main():
    async with asyncpg.create_pool(kit.DATABASE, min_size=2, max_size=10) as pool:
        driver = AsyncpgPoolDriver(pool)
        if kit.VERB == "setup":
            await Queries(driver).install()
        elif kit.VERB == "enqueue":
            queries = Queries(driver)
            for keys, delay_s in kit.parts(1_000):
                count, payloads = len(keys), [json.dumps({"key": key}).encode() for key in keys]
                later = [timedelta(seconds=delay_s)] * count if delay_s else None
                await queries.enqueue(["send"] * count, payloads, [0] * count, execute_after=later)
        else:
            logging.getLogger("pgqueuer").setLevel(logging.ERROR)
            worker = PgQueuer(driver)

            @worker.entrypoint("send")
            async def send(job):
                try:
                    await kit.post(json.loads(job.payload)["key"])
                except kit.Refused as refused:
                    raise RetryRequested(delay=timedelta(seconds=1)) from refused

            settings = {}
            if kit.LEASE_S:  # an idle worker looks for what a dead one held as often as for work
                settings["heartbeat_timeout"] = timedelta(seconds=kit.LEASE_S)
            if kit.LEASE_S or kit.TIMED:
                settings["dequeue_timeout"] = timedelta(seconds=1)
            await worker.run(batch_size=100, max_concurrent_tasks=kit.CONCURRENCY, **settings)


kit.run(main)
