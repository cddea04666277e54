"""Reminders from a Temporal workflow: activities schedule and take back, sendonce sends when it is due.

An activity may run more than once: its worker is lost, or its answer. The reminder's id and its due time are
arguments: so the second time it is known already. Once it is scheduled it does not hang on the workflow any
more; a payment takes it back, as far as it was not sent, and the answer is true.
"""

import os
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from sendonce import Client


@dataclass
class Payment:
    """Of a loan. `due` is an instant, such as 2026-12-01T09:00:00+01:00."""

    loan: str
    customer: str
    email: str
    name: str
    due: str


def service() -> Client:
    return Client(os.environ["SENDONCE_URL"], key=os.environ["SENDONCE_KEY"])


@activity.defn
def schedule_reminder(payment: Payment) -> str:
    with service() as client:
        (result,) = client.schedule(
            [
                {
                    "reminder": f"loan-{payment.loan}",
                    "customer": payment.customer,
                    "due": payment.due,
                    "template": "hello",
                    "email": payment.email,
                    "data": {"name": payment.name},
                }
            ]
        )
    if not result.ok:  # a wrong value: trying again would not mend it
        raise ApplicationError(f"{result.verdict}: {result.why}", non_retryable=True)
    return str(result.verdict)


@activity.defn
def take_back_reminder(loan: str) -> str:
    with service() as client:
        answers = client.cancel(reminder=f"loan-{loan}", reason="paid").answers
    return ", ".join(answer.word.value for answer in answers)


@workflow.defn
class PaymentReminder:
    """Remind of a payment, unless it comes within `wait`."""

    def __init__(self) -> None:
        self._paid = False

    @workflow.signal
    def paid(self) -> None:
        self._paid = True

    @workflow.run
    async def run(self, payment: Payment, wait_s: float) -> str:
        # Tried for as long as it takes, with growing waits: a service that is away comes back.
        options = {
            "start_to_close_timeout": timedelta(minutes=2),
            "retry_policy": RetryPolicy(maximum_interval=timedelta(minutes=5)),
        }
        await workflow.execute_activity(schedule_reminder, payment, **options)
        try:
            await workflow.wait_condition(lambda: self._paid, timeout=timedelta(seconds=wait_s))
        except TimeoutError:
            return "reminded"
        return await workflow.execute_activity(take_back_reminder, payment.loan, **options)
