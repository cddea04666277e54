"""Reminders from Celery tasks: the task schedules, sendonce sends when it is due.

    celery -A celery_reminders worker

A task may run twice (`acks_late`, a worker that was lost, a repetition after a time-out). Its reminder has an
id that is made from the business, and a due time that was fixed when the task was made: so the second time it
is known already, and nothing is sent twice. What must never stand in a task is `due="in 2h"`, which means
another time at each try.
"""

import os

from celery import Celery

import sendonce
from sendonce.core.errors import StoreUnavailable

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
app.conf.task_acks_late = True  # acknowledged when done: a lost worker's task comes again
app.conf.task_reject_on_worker_lost = True


@app.task(
    autoretry_for=(StoreUnavailable,),  # the service is away, or puts off: the same again, later
    retry_backoff=1,
    retry_backoff_max=300,
    max_retries=200,
)
def remind_of_parcel(parcel: str, customer: str, email: str, name: str, due: str) -> str:
    """Schedule the reminder of a parcel; `due` is an instant such as 2026-12-01T09:00:00+01:00."""
    with sendonce.Client(os.environ["SENDONCE_URL"], key=os.environ["SENDONCE_KEY"]) as client:
        (result,) = client.schedule(
            [
                {
                    "reminder": f"parcel-{parcel}",
                    "customer": customer,
                    "due": due,
                    "template": "hello",
                    "email": email,
                    "data": {"name": name},
                }
            ]
        )
    if not result.ok:  # a wrong value: trying again would not mend it
        raise ValueError(f"{result.verdict}: {result.why}")
    return str(result.verdict)
