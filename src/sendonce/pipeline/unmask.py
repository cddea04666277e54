"""An address in plain, for a person who has to compare or to correct it; and that it was shown.

The two are one unit: nobody sees an address that the audit does not say was shown, to whom, and why. The
audit names the delivery and never the address.
"""

from __future__ import annotations

from dataclasses import dataclass

from sendonce.core.delivery import parse_key
from sendonce.core.errors import NotFound
from sendonce.ports.store import Store, Tx
from sendonce.withdrawal import check_reason


@dataclass(frozen=True, slots=True)
class Shown:
    """`address` "": it was erased."""

    key: str
    address: str


def unmask(store: Store, key: str, *, tenant: str, reason: str, actor: str) -> Shown:
    """The address that a delivery goes or went to; answered when the audit is durable.

    Raises `InvalidInput` for an empty reason and for what is no delivery key, `NotFound`.
    """
    reason = check_reason(reason)
    wanted = parse_key(key).key

    def unit(tx: Tx) -> Shown:
        found = tx.deliveries.by_keys([(tenant, wanted)])
        if not found:
            raise NotFound(f"no delivery has the key {key!r:.200}: look for it with `sendonce find`")
        (row,) = found
        content = tx.contents.get([(row.id, row.standing.version)]).get(row.id)
        reminder = tx.reminders.by_ids([row.reminder_id]).get(row.reminder_id)
        asked = reminder.recipients.get(row.channel.value, {}) if reminder is not None else {}
        tx.runs.audit(actor, "unmask", f"{tenant}/{wanted}", reason, {"channel": row.channel.value})
        return Shown(wanted, content.address if content is not None else asked.get("to", ""))

    return store.write(unit).result()
