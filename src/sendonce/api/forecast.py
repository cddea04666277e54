"""`/forecast`: when what falls due will have left, and what will come too late, over all tenants."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from sendonce.api.program import MayOperate
from sendonce.api.routing import Resource
from sendonce.api.shapes import Instant, Said, instant
from sendonce.core.access import Scope
from sendonce.core.forecast import Burst, Minute
from sendonce.pipeline.forecast import AccountForecast, forecast, moment_of

resource = Resource("forecast", "What will leave when, as things are now.")

At = Annotated[
    str,
    Query(
        description='Until an hour after it: "tomorrow 09:00", "in 6h", or a time; else the next day.',
        max_length=80,
        examples=["in 6h"],
    ),
]


class BurstSaid(Said):
    """A time in which deliveries stand in line for a minute or more."""

    begins_at: Instant
    drained_at: Instant
    count: int
    late: int
    expired: int


class MinuteSaid(Said):
    """A minute in which something happens."""

    at: Instant
    due: int
    started: int
    expired: int
    waiting: int = Field(description="At its end.")


class AccountForecastSaid(Said):
    """One account's line. Counts are over all tenants, so no delivery is named."""

    account: str
    channel: str
    waiting: int
    due: int
    per_s: float = Field(description="Deliveries a second that will leave.")
    bound: str = Field(description="What sets the pace: rate or lanes; closed where nothing leaves.")
    opens_at: Instant = Field(
        description="Nothing leaves before; null while it is open, or closed without end."
    )
    calls: float = Field(description="Calls that a delivery costs, by the last ones.")
    drained_at: Instant = Field(description="null: never, until somebody opens it.")
    late: int
    expired: int
    needed_per_s: float | None = Field(description="Calls a second at which nothing would be missed.")
    needed_lanes: int | None
    bursts: list[BurstSaid]
    minutes: list[MinuteSaid]


class ForecastSaid(Said):
    """From `start_at` to `until`."""

    now: Instant
    start_at: Instant
    until: Instant
    accounts: list[AccountForecastSaid]
    sampled: bool = Field(description="Shares of accounts are of a sample.")
    unroutable: int = Field(description="Deliveries that no account of the configuration carries.")
    night: int = Field(description="Deliveries that quiet hours put off.")
    held: str
    missed: int


@resource.get("/forecast", Scope.OPERATE)
def read_forecast(caller: MayOperate, at: At = "") -> ForecastSaid:
    """When each account will have drained, and how many will miss their window or expire."""
    moment = moment_of(at, caller.policy.zone(caller.tenant), caller.now) if at else 0
    seen = caller.read(lambda tx: forecast(tx, caller.policy, at=moment))
    return ForecastSaid(
        now=instant(seen.now),
        start_at=instant(seen.start),
        until=instant(seen.until),
        accounts=[AccountForecastSaid(**_account(each)) for each in seen.accounts],
        sampled=seen.sampled,
        unroutable=seen.unroutable,
        night=seen.night,
        held=seen.held,
        missed=seen.missed,
    )


def _account(each: AccountForecast) -> dict[str, Any]:
    return {
        "account": each.account,
        "channel": each.channel,
        "waiting": each.waiting,
        "due": each.due,
        "per_s": each.per_s,
        "bound": each.bound,
        "opens_at": instant(each.opens_at or 0),
        "calls": each.calls,
        "drained_at": instant(each.drained_at or 0),
        "late": each.late,
        "expired": each.expired,
        "needed_per_s": each.needed_per_s,
        "needed_lanes": each.needed_lanes,
        "bursts": [_burst(burst) for burst in each.bursts],
        "minutes": [_minute(minute) for minute in each.minutes],
    }


def _burst(one: Burst) -> BurstSaid:
    return BurstSaid(
        begins_at=instant(one.begins_at),
        drained_at=instant(one.drained_at),
        count=one.count,
        late=one.late,
        expired=one.expired,
    )


def _minute(one: Minute) -> MinuteSaid:
    return MinuteSaid(
        at=instant(one.at), due=one.due, started=one.started, expired=one.expired, waiting=one.waiting
    )
