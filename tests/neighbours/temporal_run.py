"""Runs the recipe's workflow in Temporal's time-skipping environment; its results as JSON on stdout.

Each activity's first try does its work and then fails, as if the worker had died with the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from temporal_reminders import Payment, PaymentReminder, schedule_reminder, take_back_reminder
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
)

DAY_S = 86_400.0
said: list[tuple[str, str]] = []


class AnswerLost(Interceptor):
    def intercept_activity(self, following: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Losing(following)


class Losing(ActivityInboundInterceptor):
    async def execute_activity(self, given: ExecuteActivityInput) -> Any:
        info = activity.info()
        answer = await super().execute_activity(given)
        said.append((info.activity_type, answer))
        if info.attempt == 1:
            raise RuntimeError("the answer is lost")
        return answer


async def main() -> None:
    server = str(Path(sys.executable).with_name("temporal-test-server"))
    due = "2099-12-01T09:00:00+01:00"
    async with await WorkflowEnvironment.start_time_skipping(test_server_existing_path=server) as environment:
        client = environment.client
        with ThreadPoolExecutor(4) as threads:
            worker = Worker(
                client,
                task_queue="reminders",
                workflows=[PaymentReminder],
                activities=[schedule_reminder, take_back_reminder],
                activity_executor=threads,
                interceptors=[AnswerLost()],
            )
            async with worker:

                async def run(loan: str, *, paid: bool, email: str = "ann@example.com") -> Any:
                    payment = Payment(loan, "customer-73", email, "Ann", due)
                    handle = await client.start_workflow(
                        PaymentReminder.run,
                        args=[payment, 3 * DAY_S],
                        id=f"loan-{loan}",
                        task_queue="reminders",
                    )
                    if paid:
                        await handle.signal(PaymentReminder.paid)
                    return await handle.result()

                results = {"open": await run("1", paid=False), "paid": await run("2", paid=True)}
                try:
                    await run("3", paid=False, email="ann")
                except WorkflowFailureError as error:
                    results["wrong"] = str(error.cause.__cause__)
    print(json.dumps({"results": results, "said": said}), flush=True)  # noqa: T201
    os._exit(0)  # threads of the SDK may outlive the interpreter, which then aborts


if __name__ == "__main__":
    asyncio.run(main())
