"""Procrastinate on psycopg, jobs kept when they are done (its default)."""

import time

import kit
from procrastinate import App, PsycopgConnector, RetryStrategy

app = App(connector=PsycopgConnector(conninfo=kit.DATABASE, min_size=4, max_size=20))


@app.task(queue="reminders", name="send", retry=RetryStrategy(max_attempts=200, wait=1))
async def send(key):
    await kit.post(key)


async def main():
    verb, count = kit.verb()
    async with app.open_async():
        if verb == "setup":
            await app.schema_manager.apply_schema_async()
        elif verb == "enqueue":
            keys, since = kit.keys(count), time.perf_counter()
            for start in range(0, count, 1_000):
                await send.configure().batch_defer_async(
                    *[{"key": key} for key in keys[start : start + 1_000]]
                )
            kit.enqueued(count, since)
        else:
            await app.run_worker_async(queues=["reminders"], concurrency=kit.CONCURRENCY)


kit.run(main)
