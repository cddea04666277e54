"""PgQueuer on asyncpg, in batches as its documentation recommends for throughput."""

import json
import logging
import time

import asyncpg
import kit
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgPoolDriver


async def main():
    verb, count = kit.verb()
    async with asyncpg.create_pool(kit.DATABASE, min_size=2, max_size=10) as pool:
        driver = AsyncpgPoolDriver(pool)
        if verb == "setup":
            await Queries(driver).install()
        elif verb == "enqueue":
            queries, since = Queries(driver), time.perf_counter()
            keys = kit.keys(count)
            for start in range(0, count, 1_000):
                part = keys[start : start + 1_000]
                payloads = [json.dumps({"key": key}).encode() for key in part]
                await queries.enqueue(["send"] * len(part), payloads, [0] * len(part))
            kit.enqueued(count, since)
        else:
            logging.getLogger("pgqueuer").setLevel(logging.ERROR)
            worker = PgQueuer(driver)

            @worker.entrypoint("send")
            async def send(job):
                await kit.post(json.loads(job.payload)["key"])

            await worker.run(batch_size=100, max_concurrent_tasks=kit.CONCURRENCY)


kit.run(main)
