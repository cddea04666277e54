"""Gates, lanes and the fair order, on any database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sendonce.core.errors import StoreUnavailable
from sendonce.core.pacing import Gate, GateLimits, Limit
from sendonce.ports.store import LostCall, OpenCall
from sendonce.store.session import Session, Tuple


class SqlGates:
    """`ports.store.Gates` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lock(self, account: str) -> Gate | None:
        rows = self._session.rows("gate_lock", {"account": account})
        return _gate(rows[0]) if rows else None

    def save(self, gate: Gate) -> None:
        changed = self._session.run(
            "gate_save",
            {
                "account": gate.account,
                "limits": spell_limits(gate.limits),
                "closed_until": gate.closed_until,
                "closed_why": gate.closed_why,
                "paused_until": gate.paused_until,
                "state": _spell_state(gate),
                "version": gate.version,
            },
        )
        if not changed:
            # The lock makes this impossible; a claim on a stale gate must never commit.
            raise StoreUnavailable(f"the gate of account {gate.account} changed under its lock")

    def create(self, account: str, limits: GateLimits) -> bool:
        state = _spell_state(Gate(account=account, limits=limits))
        return self._session.run("gate_insert", {**_configured(account, limits), "state": state}) == 1

    def seed(self, account: str, limits: GateLimits) -> bool:
        made = self.create(account, limits)
        return made or self._session.run("gate_reseed", _configured(account, limits)) == 1

    def configured(self) -> dict[str, GateLimits]:
        return {row[0]: _read_limits(row[1]) for row in self._session.rows("gate_all", {})}

    def all(self) -> list[Gate]:
        return [_gate(row) for row in self._session.rows("gate_all", {})]

    def flows(self, account: str, flows: Sequence[str]) -> dict[str, int]:
        wanted = list(dict.fromkeys(flows))
        rows = self._session.rows_each("flow_get", [{"account": account, "flow": flow} for flow in wanted])
        return {flow: found[0][0] for flow, found in zip(wanted, rows, strict=True) if found}

    def save_flows(self, account: str, tags: Mapping[str, int], below: int) -> None:
        self._session.many(
            "flow_save", ({"account": account, "flow": flow, "tag": tag} for flow, tag in tags.items())
        )
        self._session.run("flow_forget", {"account": account, "below": below})


class SqlCalls:
    """`ports.store.Calls` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def count(self, account: str) -> int:
        return self.since(account, 0)[0]

    def since(self, account: str, claimed_at: int) -> tuple[int, int | None]:
        ((count, first),) = self._session.rows("call_count", {"account": account, "since": claimed_at})
        return count, first

    def open(self, calls: Sequence[OpenCall]) -> None:
        self._session.many(
            "call_open",
            (
                {
                    "delivery_id": call.delivery_id,
                    "epoch": call.epoch,
                    "account": call.account,
                    "process": call.process,
                    "claimed_at": call.claimed_at,
                    "slot_at": call.slot_at,
                    "send_deadline": call.send_deadline,
                }
                for call in calls
            ),
        )

    def close(self, keys: Sequence[tuple[str, int, int, int]]) -> None:
        self._session.many(
            "call_close",
            (
                {"account": account, "claimed_at": at, "delivery_id": id_, "epoch": epoch}
                for account, at, id_, epoch in keys
            ),
        )

    def overdue(self, steady: int, limit: int, after: tuple[int, int] = (0, 0)) -> list[LostCall]:
        id_, epoch = after
        parameters = {"steady": steady, "limit": limit, "after_id": id_, "after_epoch": epoch}
        rows = self._session.rows("call_overdue", parameters)
        return [LostCall(OpenCall(*row[:7]), row[7] == 1, row[8]) for row in rows]


def _configured(account: str, limits: GateLimits) -> dict[str, str]:
    text = spell_limits(limits)
    return {"account": account, "configured": text, "limits": text}


def spell_limits(limits: GateLimits) -> str:
    """Limits as the gate row keeps them: canonical JSON, so that equal limits are equal texts."""
    return json.dumps(
        {
            "limits": [[limit.count, limit.interval_us, limit.parts] for limit in limits.limits],
            "lanes": limits.lanes,
            "headroom": limits.headroom,
            "jitter_us": limits.jitter_us,
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def _read_limits(text: str) -> GateLimits:
    body = json.loads(text)
    return GateLimits(
        limits=tuple(Limit(count, interval_us, parts) for count, interval_us, parts in body["limits"]),
        lanes=body["lanes"],
        headroom=body["headroom"],
        jitter_us=body["jitter_us"],
    )


def _spell_state(gate: Gate) -> str:
    return json.dumps(
        {
            "tats": gate.tats,
            "recent": gate.recent,
            "usage": gate.usage,
            "probing": gate.probing,
            "pace": gate.pace,
            "lane_pace": gate.lane_pace,
            "paced_at": gate.paced_at,
            "stepped_at": gate.stepped_at,
            "streak": gate.streak,
            "throttles": gate.throttles,
            "retry_credit": gate.retry_credit,
            "credited_at": gate.credited_at,
            "vtime": gate.vtime,
            "starts": round(gate.starts, 3),
            "failures": round(gate.failures, 3),
            "counted_at": gate.counted_at,
            "ill_since": gate.ill_since,
            "calls_from": gate.calls_from,
            "line_from": gate.line_from,
            "looked_at": gate.looked_at,
        },
        separators=(",", ":"),
    )


def _gate(row: Tuple) -> Gate:
    account, _, limits, closed_until, closed_why, paused_until, state, version = row
    body = json.loads(state)
    return Gate(
        account=account,
        limits=_read_limits(limits),
        tats=tuple(body["tats"]),
        recent=tuple((slot, cost) for slot, cost in body["recent"]),
        usage=tuple(tuple((start, used) for start, used in spent) for spent in body["usage"]),
        closed_until=closed_until,
        closed_why=closed_why,
        paused_until=paused_until,
        probing=body["probing"],
        pace=body["pace"],
        lane_pace=body["lane_pace"],
        paced_at=body["paced_at"],
        stepped_at=body["stepped_at"],
        streak=body["streak"],
        throttles=body["throttles"],
        retry_credit=body["retry_credit"],
        credited_at=body["credited_at"],
        vtime=body["vtime"],
        starts=body["starts"],
        failures=body["failures"],
        counted_at=body["counted_at"],
        ill_since=body["ill_since"],
        # Whatever does not know them takes them out again, and then nothing is passed over.
        calls_from=body.get("calls_from", 0),
        line_from=body.get("line_from", 0),
        looked_at=body.get("looked_at", 0),
        version=version,
    )
