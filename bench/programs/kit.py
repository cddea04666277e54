"""What every peer's program shares: the call that it makes, the keys, and what it was asked for.

It runs in the peer's own environment, so it imports nothing of sendonce. The call is what a careful user
would write: a client that keeps its connections, the whole answer read, the key of the delivery sent along,
anything but 2xx raised so that the peer tries again.
"""

import asyncio
import json
import os
import sys
import time

URL = os.environ["BENCH_URL"]
CONCURRENCY = int(os.environ["BENCH_CONCURRENCY"])
WORKERS = int(os.environ["BENCH_WORKERS"])
WORKER = os.environ.get("BENCH_WORKER", "0")
LIMIT = int(os.environ["BENCH_LIMIT"])  # calls a second of all workers; 0: none
LEASE_S = int(os.environ["BENCH_LEASE_S"])  # when a silent worker counts as dead; 0: as the peer comes
TIMED = os.environ["BENCH_TIMED"] == "1"  # some are due later: look every second
DATABASE = os.environ.get("BENCH_DATABASE", "")
REDIS = os.environ.get("BENCH_REDIS", "")
RABBITMQ = os.environ.get("BENCH_RABBITMQ", "")
TO = "+12025550123"

VERB = sys.argv[1] if len(sys.argv) > 1 else ""


def parts(size):
    """(keys to enqueue, seconds until they are due), so many at a time, for as long as there is time. Then
    it says how many they were and how fast they went.
    """
    count, first, due_at, seconds = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
    begun, made = time.perf_counter(), 0
    while made < count and time.perf_counter() - begun < seconds:
        upto = min(made + size, count)
        keys = [f"parcel-{n}:customer-{n}:sms" for n in range(first + made, first + upto)]
        yield keys, max(0.0, due_at - time.time()) if due_at else 0.0
        made = upto
    print(json.dumps({"count": made, "rate": made / (time.perf_counter() - begun)}))


class Refused(Exception):
    """An answer that was not 2xx. 429 is one."""


def text_of(key):
    return f"Hello Ada Example, your parcel arrives today. [ref:{key}]"


_session = None


async def post(key):
    global _session
    import aiohttp

    if _session is None:
        _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    body = {"to": TO, "text": text_of(key)}
    async with _session.post(URL, json=body, headers={"Idempotency-Key": key}) as answer:
        await answer.read()
        if answer.status // 100 != 2:
            raise Refused(answer.status)


_pool = None


def post_blocking(key):
    global _pool
    import urllib3

    if _pool is None:
        _pool = urllib3.PoolManager(maxsize=CONCURRENCY, retries=False)
    body = json.dumps({"to": TO, "text": text_of(key)})
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    answer = _pool.request("POST", URL, body=body, headers=headers)
    if answer.status // 100 != 2:
        raise Refused(answer.status)


def run(main):
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
