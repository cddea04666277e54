"""Reminders, their revisions, frozen content and templates, on any database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sendonce.core.delivery import Channel, partition_of
from sendonce.ports.store import Content, Reminder, StoredTemplate
from sendonce.store.session import Session, Tuple, check_text

COLUMNS: Final = (
    "id, tenant, reminder, customer, due_at, due_local, zone, expires_at, template, template_version, "
    "category, priority, grp, source, import_id, linked, data, recipients, spec_hash, version, created_at"
)

_spell: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class SqlReminders:
    """`ports.store.Reminders` on a session."""

    def __init__(self, session: Session, now: int) -> None:
        self._session = session
        self._now = now

    def find(self, keys: Sequence[tuple[str, str, str]]) -> list[Reminder | None]:
        found = self._session.rows_each(
            "reminder_find",
            [
                {"tenant": tenant, "reminder": reminder, "customer": customer}
                for tenant, reminder, customer in keys
            ],
        )
        return [_reminder(rows[0]) if rows else None for rows in found]

    def by_ids(self, ids: Sequence[int]) -> dict[int, Reminder]:
        found = self._session.rows_each("reminder_by_id", [{"id": id_} for id_ in sorted(set(ids))])
        return {row[0]: _reminder(row) for rows in found for row in rows}

    def insert(self, new: Sequence[Reminder]) -> list[int]:
        inserted = self._session.rows_each(
            "reminder_insert", [self._parameters(reminder) for reminder in new]
        )
        return [int(rows[0][0]) for rows in inserted]

    def revise(self, revised: Sequence[Reminder]) -> None:
        for old in self.by_ids([reminder.id for reminder in revised]).values():
            new = next(reminder for reminder in revised if reminder.id == old.id)
            spec = _spell(self._parameters(old))
            self._session.run(
                "reminder_keep_revision",
                {"id": old.id, "import_id": new.import_id, "spec": spec, "at": self._now},
            )
            self._session.run("reminder_revise", {"id": new.id, **_content_of(new)})

    def touch(self, ids: Sequence[int], import_id: int) -> None:
        self._session.many("reminder_touch", ({"id": id_, "import_id": import_id} for id_ in ids))

    def reschedule(self, due: Mapping[int, int]) -> None:
        self._session.many("reminder_reschedule", ({"id": id_, "due_at": at} for id_, at in due.items()))

    def revisions(self, import_id: int, limit: int, after: int) -> list[Reminder]:
        rows = self._session.rows(
            "revision_of_import", {"import_id": import_id, "limit": limit, "after": after}
        )
        return [_revised(row[0], json.loads(row[2])) for row in rows]

    def _parameters(self, reminder: Reminder) -> dict[str, int | str]:
        return {
            "tenant": reminder.tenant,
            "reminder": reminder.reminder,
            "customer": reminder.customer,
            "part": partition_of(reminder.tenant, reminder.customer),
            **_content_of(reminder),
            "linked": reminder.linked,
            "version": reminder.version,
            "created_at": reminder.created_at,
        }


def _content_of(reminder: Reminder) -> dict[str, int | str]:
    """The columns that a revision may change."""
    return {
        "due_at": reminder.due_at,
        "due_local": reminder.due_local,
        "zone": reminder.zone,
        "expires_at": reminder.expires_at,
        "template": reminder.template,
        "template_version": reminder.template_version,
        "category": reminder.category,
        "priority": reminder.priority,
        "grp": reminder.group,
        "source": reminder.source,
        "import_id": reminder.import_id,
        "data": reminder.data,
        "recipients": _spell(reminder.recipients),
        "spec_hash": reminder.spec_hash,
    }


def _revised(id_: int, spec: dict[str, Any]) -> Reminder:
    """A reminder as a revision kept it: the spelling of `_parameters`."""
    spec.pop("part")
    spec["group"] = spec.pop("grp")
    spec["recipients"] = json.loads(spec["recipients"])
    return Reminder(id=id_, **spec)


def _reminder(row: Tuple) -> Reminder:
    return Reminder(
        id=row[0],
        tenant=row[1],
        reminder=row[2],
        customer=row[3],
        due_at=row[4],
        due_local=row[5],
        zone=row[6],
        expires_at=row[7],
        template=row[8],
        template_version=row[9],
        category=row[10],
        priority=row[11],
        group=row[12],
        source=row[13],
        import_id=row[14],
        linked=row[15],
        data=row[16],
        recipients=json.loads(row[17]),
        spec_hash=row[18],
        version=row[19],
        created_at=row[20],
    )


class SqlContents:
    """`ports.store.Contents` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put(self, contents: Sequence[Content]) -> None:
        self._session.many(
            "content_put",
            (
                {
                    "delivery_id": content.delivery_id,
                    "version": content.version,
                    "address": content.address,
                    "payload": content.payload,
                    "hash": content.hash,
                    "template": content.template,
                    "template_version": content.template_version,
                    "frozen_at": content.frozen_at,
                    "mark": content.mark,
                }
                for content in contents
            ),
        )

    def get(self, keys: Sequence[tuple[int, int]]) -> dict[int, Content]:
        found = self._session.rows_each(
            "content_get", [{"delivery_id": id_, "version": version} for id_, version in keys]
        )
        return {row[0]: Content(*row) for rows in found for row in rows}


class SqlTemplates:
    """`ports.store.Templates` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def newest(self, tenant: str, name: str) -> list[StoredTemplate]:
        check_text(tenant, name)
        rows = self._session.rows("template_newest", {"tenant": tenant, "name": name})
        return [_template(row) for row in rows]

    def version(self, tenant: str, name: str, version: int) -> list[StoredTemplate]:
        check_text(tenant, name)
        rows = self._session.rows("template_version", {"tenant": tenant, "name": name, "version": version})
        return [_template(row) for row in rows]

    def put(self, templates: Sequence[StoredTemplate]) -> None:
        self._session.many(
            "template_put",
            (
                {
                    "tenant": template.tenant,
                    "name": template.name,
                    "version": template.version,
                    "channel": template.channel.value,
                    "subject": template.subject,
                    "text": template.text,
                    "html": template.html,
                    "hash": template.hash,
                    "added_at": template.added_at,
                }
                for template in templates
            ),
        )


def _template(row: Tuple) -> StoredTemplate:
    return StoredTemplate(row[0], row[1], row[2], Channel(row[3]), *row[4:])
