"""Processes, passes, imports, pauses and preferences, on any database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from sendonce.core.consent import Kind, Preference
from sendonce.core.ledger import Value
from sendonce.ports.store import Pause, Process
from sendonce.store.session import Parameters, Session, Tuple, check_text


class SqlProcesses:
    """`ports.store.Processes` on a session."""

    def __init__(self, session: Session, steady: int) -> None:
        self._session = session
        self._steady = steady

    def beat(self, process: Process) -> None:
        self._session.run(
            "process_beat",
            {
                "id": process.id,
                "role": process.role,
                "channel": process.channel,
                "host": process.host,
                "pid": process.pid,
                "started_at": process.started_at,
                "beat_at": process.beat_at,
                "lease_until": process.lease_until,
                "stopped": int(process.stopped),
            },
        )

    def dead(self, steady: int) -> list[Process]:
        return [_process(row) for row in self._session.rows("process_dead", {"steady": steady})]

    def mark_stopped(self, ids: Sequence[str]) -> None:
        self._session.many("process_stop", ({"id": id_} for id_ in ids))

    def lead(self, role: str, process: str, lease_until: int) -> bool:
        parameters: Parameters = {
            "role": role,
            "process": process,
            "lease_until": lease_until,
            "steady": self._steady,
        }
        return self._session.run("leader_take", parameters) == 1

    def resign(self, role: str, process: str) -> None:
        self._session.run("leader_drop", {"role": role, "process": process})

    def forget(self, before: int, limit: int) -> int:
        return self._session.run("process_forget", {"before": before, "steady": self._steady, "limit": limit})


def _process(row: Tuple) -> Process:
    id_, role, channel, host, pid, started_at, beat_at, lease_until, stopped = row
    return Process(id_, role, channel, host, pid, started_at, beat_at, lease_until, stopped == 1)


class SqlRuns:
    """`ports.store.Runs` on a session."""

    def __init__(self, session: Session, now: int) -> None:
        self._session = session
        self._now = now

    def begin_pass(self, trigger: str, process: str, mark: int) -> int:
        parameters: Parameters = {
            "trigger": trigger,
            "process": process,
            "started_at": self._now,
            "mark": mark,
        }
        return int(self._session.rows("pass_begin", parameters)[0][0])

    def finish_pass(self, id_: int, mark: int, counts: Mapping[str, int], *, complete: bool) -> None:
        self._session.run(
            "pass_finish",
            {
                "id": id_,
                "finished_at": self._now,
                "mark": mark,
                "counts": _spell(counts),
                "complete": int(complete),
            },
        )

    def forget_passes(self, before: int, limit: int) -> int:
        return self._session.run("pass_forget", {"before": before, "limit": limit})

    def begin_import(self, tenant: str, source: str, file: str, actor: str) -> int:
        check_text(tenant)
        parameters: Parameters = {
            "tenant": tenant,
            "source": source,
            "file": file,
            "actor": actor,
            "started_at": self._now,
        }
        return int(self._session.rows("import_begin", parameters)[0][0])

    def finish_import(self, id_: int, counts: Mapping[str, int]) -> None:
        self._session.run("import_finish", {"id": id_, "finished_at": self._now, "counts": _spell(counts)})

    def undo_import(self, id_: int) -> None:
        self._session.run("import_undo", {"id": id_, "undone_at": self._now})

    def pauses(self) -> list[Pause]:
        return [Pause(*row) for row in self._session.rows("pause_all", {})]

    def pause(self, pause: Pause) -> None:
        self._session.run(
            "pause_put",
            {
                "scope": pause.scope,
                "name": pause.name,
                "until": pause.until,
                "reason": pause.reason,
                "actor": pause.actor,
                "at": pause.at,
            },
        )

    def resume(self, scope: str, name: str) -> int:
        return self._session.run("pause_remove", {"scope": scope, "name": name})

    def audit(self, actor: str, action: str, target: str, reason: str, body: Mapping[str, Value]) -> None:
        self._session.run(
            "audit_put",
            {
                "at": self._now,
                "actor": actor,
                "action": action,
                "target": target,
                "reason": reason,
                "body": _spell(body),
            },
        )


_OF_PREFERENCE: Final = ("tenant", "channel", "address_tag", "category", "kind")


class SqlPreferences:
    """`ports.store.Preferences` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, keys: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], list[Preference]]:
        wanted = list(dict.fromkeys(keys))
        named: list[Parameters] = [
            {"tenant": tenant, "channel": channel, "address_tag": tag} for tenant, channel, tag in wanted
        ]
        found = zip(wanted, self._session.rows_each("preference_of", named), strict=True)
        return {key: [Preference(Kind(row[0]), *row[1:]) for row in rows] for key, rows in found if rows}

    def put(self, records: Sequence[Mapping[str, int | str]]) -> int:
        # In one order whoever puts them, so that two who put the same ones do not wait for each other.
        ordered = sorted(records, key=lambda record: tuple(str(record[name]) for name in _OF_PREFERENCE))
        return sum(self._session.run_each("preference_put", ordered))

    def remove(self, tenant: str, channel: str, address_tag: str, category: str, kind: str) -> int:
        return self._session.run(
            "preference_remove",
            {
                "tenant": tenant,
                "channel": channel,
                "address_tag": address_tag,
                "category": category,
                "kind": kind,
            },
        )


def _spell(body: Mapping[str, object]) -> str:
    return json.dumps(dict(body), sort_keys=True, separators=(",", ":"))
