"""Procrastinate on psycopg, jobs kept when they are done (its default). It has no rate limiter.

What a dead worker held is found by a periodic task, as its documentation has it; there every ten minutes,
here every five seconds.
"""

from datetime import UTC, datetime, timedelta

import kit
from procrastinate import App, PsycopgConnector, RetryStrategy

app = App(connector=PsycopgConnector(conninfo=kit.DATABASE, min_size=4, max_size=20))


@app.task(queue="reminders", name="send", retry=RetryStrategy(max_attempts=200, wait=1))
async def send(key):
    await kit.post(key)


if kit.LEASE_S:

    @app.periodic(cron="* * * * * */5")
    @app.task(queue="stalled", queueing_lock="stalled", name="stalled", pass_context=True)
    async def stalled(context, timestamp):
        manager = context.app.job_manager
        for job in await manager.get_stalled_jobs(seconds_since_heartbeat=kit.LEASE_S):
            await manager.retry_job(job)


async def main():
    async with app.open_async():
        if kit.VERB == "setup":
            await app.schema_manager.apply_schema_async()
        elif kit.VERB == "enqueue":
            for keys, delay_s in kit.parts(1_000):
                at = datetime.now(UTC) + timedelta(seconds=delay_s) if delay_s else None
                await send.configure(schedule_at=at).batch_defer_async(*[{"key": key} for key in keys])
        else:
            settings = {}
            if kit.LEASE_S:
                settings = {"update_heartbeat_interval": 3.0, "stalled_worker_timeout": float(kit.LEASE_S)}
            if kit.TIMED:
                settings["fetch_job_polling_interval"] = 1.0
            await app.run_worker_async(concurrency=kit.CONCURRENCY, **settings)


kit.run(main)
