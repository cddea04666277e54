"""What every peer's program shares: the call that it makes, and the keys.

It runs in the peer's own environment, so it imports nothing of sendonce. The call is what a careful user
would write: a client that keeps its connections, the whole answer read, anything but 2xx raised so that the
peer tries again.
"""

import asyncio
import json
import os
import sys
import time

URL = os.environ["BENCH_URL"]
CONCURRENCY = int(os.environ["BENCH_CONCURRENCY"])
DATABASE = os.environ.get("BENCH_DATABASE", "")
REDIS = os.environ.get("BENCH_REDIS", "")
TO = "+12025550123"


def keys(count):
    return [f"parcel-{n}:customer-{n}:sms" for n in range(count)]


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
        answer.raise_for_status()


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
        raise RuntimeError(answer.status)


def verb():
    """("setup", 0), ("enqueue", how many) or ("work", 0)."""
    return sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0


def enqueued(count, since):
    print(json.dumps({"rate": count / (time.perf_counter() - since)}))


def run(main):
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
