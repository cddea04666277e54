"""Consent: what people and providers said about an address, kept with evidence, and at once in force.

Three kinds of records, for one category or for all ("*"):

    suppressed  the address must not be written to: a bounce, a complaint, an operator
    opt_out     the person said no, until a later opt-in
    opt_in      the person said yes

A record and its effect are one unit: when an opt-out is answered, the address's open deliveries have
been taken back, or are known to be on their way and marked. The store holds no plain address here,
only its tag and a masked form for people's eyes; so an address can be asked about, and a list of
records can be read, but the addresses cannot be had back out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from sendonce.address import comparison_form, masked, normalise_email, normalise_phone
from sendonce.core.consent import ANY_CATEGORY, Kind, NoRecord, refusal
from sendonce.core.delivery import Channel, address_tag, parse_channel
from sendonce.core.due import parse_due
from sendonce.core.errors import InvalidInput
from sendonce.core.policy import Policy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.core.unsubscribe import Unsubscription
from sendonce.pipeline.record import masked_of
from sendonce.ports.store import Row, Store, Tx
from sendonce.withdrawal import Answer, check_reason, withdraw_refused

PAGE: Final = 25
"""Records in one unit; each may take back a few deliveries."""

TEXT_MAX: Final = 500
ANSWERS_MAX: Final = 1_000

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "address": ("email", "e_mail", "email_address", "phone", "phone_number", "mobile", "to"),
    "channel": (),
    "category": (),
    "kind": ("type",),
    "at": ("date", "since", "recorded_at"),
    "source": (),
    "evidence": ("reason", "note"),
}
"""Columns of a file of records, as in `core.reminder.COLUMNS`. Where no channel is given, an address
with "@" is an email and all others are sms."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `at` in microseconds UTC; `source` a coded word, `evidence` text for an auditor."""

    tenant: str
    channel: Channel
    address: str
    category: str
    kind: Kind
    at: int
    source: str
    evidence: str


@dataclass(slots=True)
class Recorded:
    """What a call did.

    records, new    how many were given, and how many of them were new or newer than known
    counts          what became of open deliveries, by word; the first `ANSWERS_MAX` are in `answers`
    """

    records: int = 0
    new: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)


def record_of(values: Mapping[str, str], policy: Policy, *, now: int, tenant: str = DEFAULT_TENANT) -> Record:
    """A record as texts by the names of `COLUMNS`; what is not given: kind suppressed, all categories,
    source "operator", recorded now. Raises `InvalidInput` with the field.
    """
    text = values.get("address", "")
    channel = (
        parse_channel(values["channel"])
        if values.get("channel")
        else Channel.EMAIL
        if "@" in text
        else Channel.SMS
    )
    match channel:
        case Channel.EMAIL:
            address = normalise_email(text)
        case Channel.SMS:
            address = normalise_phone(text, region=policy.phone_region)
    return Record(
        tenant,
        channel,
        address,
        _category(values.get("category") or ANY_CATEGORY, policy),
        _kind(values.get("kind") or Kind.SUPPRESSED.value),
        _at(values.get("at", ""), policy.zone(tenant), now),
        _source(values.get("source") or "operator"),
        _evidence(values.get("evidence", "")),
    )


def record(
    store: Store,
    records: Iterable[Record],
    *,
    policy: Policy,
    actor: str,
    progress: Callable[[Recorded], None] = lambda recorded: None,
) -> Recorded:
    """Keep records and put them in force; answered when durable.

    Of one kind, address and category the newest counts, so a list may be given again. Raises
    `StoreUnavailable`: what was reported to `progress` until then is done.
    """
    done = Recorded()
    for page in _pages(iter(records)):
        new, answers = store.write(partial(_keep, page, store.secret, policy, actor)).result()
        done.records += len(page)
        done.new += new
        done.counts.update(answer.word.value for answer in answers)
        done.answers += answers[: ANSWERS_MAX - len(done.answers)]
        progress(done)
    return done


def unsubscribe(store: Store, what: Unsubscription, *, policy: Policy, actor: str) -> list[Answer]:
    """Keep a one-click "no" to a category of email, and put it in force; answered when durable.

    The address itself is not known here, only its tag, so this works also where nothing of a delivery is
    left. Said again, it changes nothing. What became of open deliveries is in the answers.
    """
    key = (what.tenant, Channel.EMAIL.value, what.address_tag)

    def unit(tx: Tx) -> list[Answer]:
        records = [
            record
            for record in tx.preferences.of([key]).get(key, [])
            if record.kind
            is not Kind.SUPPRESSED  # a suppression may be taken away; this "no" then still holds
        ]
        if (refusal(records, what.category, NoRecord.ALLOW) or "").startswith("opted_out"):
            return []
        row: dict[str, int | str] = {
            "tenant": what.tenant,
            "channel": Channel.EMAIL.value,
            "address_tag": what.address_tag,
            "category": what.category,
            "kind": Kind.OPT_OUT.value,
            "at": max([tx.now, *(record.at for record in records)]),
            "source": "one-click",
            "evidence": "",
            "masked": masked_of(tx, what.tenant, what.address_tag),
            "actor": actor,
        }
        tx.preferences.put([row])
        return withdraw_refused(tx, [key], policy=policy, actor=actor)

    return store.write(unit).result()


def remove(
    store: Store,
    *,
    tenant: str,
    channel: Channel,
    address: str,
    category: str = ANY_CATEGORY,
    kind: Kind = Kind.SUPPRESSED,
    reason: str,
    actor: str,
) -> bool:
    """Take a record away, with a reason; False where there is none.

    What it stopped stays stopped: a suppressed delivery is never revived. `address` is normalised.
    """
    reason = check_reason(reason)
    tag = address_tag(store.secret, tenant, channel, comparison_form(channel, address))

    def unit(tx: Tx) -> bool:
        removed = tx.preferences.remove(tenant, channel.value, tag, category, kind.value)
        if removed:
            body = {"channel": channel.value, "category": category, "kind": kind.value}
            tx.runs.audit(actor, "preference_remove", tag, reason, body)
        return removed > 0

    return store.write(unit).result()


def records_of(store: Store, *, tenant: str, channel: Channel, address: str) -> list[Row]:
    """All records about one (normalised) address: kind, category, at, source, evidence, masked, actor."""
    tag = address_tag(store.secret, tenant, channel, comparison_form(channel, address))
    page = store.read(
        lambda tx: tx.rows(
            "preference_list",
            tenant=tenant,
            channel=channel.value,
            address_tag=tag,
            category="",
            kind="",
            limit=200,
        )
    )
    return [row for row in page if row["channel"] == channel.value and row["address_tag"] == tag]


def list_records(store: Store, *, tenant: str = DEFAULT_TENANT, page: int = 500) -> Iterator[Row]:
    """All records of a tenant, page by page; addresses are masked."""
    after: dict[str, int | str] = {"channel": "", "address_tag": "", "category": "", "kind": ""}
    while rows := store.read(partial(page_of, tenant=tenant, after=after, limit=page)):
        yield from rows
        after = {name: rows[-1][name] for name in after}


def page_of(tx: Tx, tenant: str, after: Mapping[str, int | str], limit: int) -> list[Row]:
    """A page of the records of a tenant, behind (channel, address_tag, category, kind) of the last one."""
    return tx.rows("preference_list", tenant=tenant, limit=limit, **after)


def _pages(records: Iterator[Record]) -> Iterator[list[Record]]:
    while page := list(islice(records, PAGE)):
        yield page


def _keep(
    page: Sequence[Record], secret: bytes, policy: Policy, actor: str, tx: Tx
) -> tuple[int, list[Answer]]:
    rows: list[dict[str, int | str]] = []
    for one in page:
        form = comparison_form(one.channel, one.address)
        rows.append(
            {
                "tenant": one.tenant,
                "channel": one.channel.value,
                "address_tag": address_tag(secret, one.tenant, one.channel, form),
                "category": one.category,
                "kind": one.kind.value,
                "at": one.at,
                "source": one.source,
                "evidence": one.evidence,
                "masked": masked(one.channel, one.address),
                "actor": actor,
            }
        )
    new = tx.preferences.put(rows)
    addresses = [(str(row["tenant"]), str(row["channel"]), str(row["address_tag"])) for row in rows]
    return new, withdraw_refused(tx, addresses, policy=policy, actor=actor)


def _category(text: str, policy: Policy) -> str:
    if text != ANY_CATEGORY and text not in policy.categories:
        raise InvalidInput(
            f"category {text!r:.80} is not configured: use * for all, or one of "
            + ", ".join(sorted(policy.categories)),
            field="category",
        )
    return text


def _kind(text: str) -> Kind:
    try:
        return Kind(text.strip().lower().replace("-", "_"))
    except ValueError:
        raise InvalidInput(
            f"kind {text!r:.80} is unknown: use one of {', '.join(Kind)}", field="kind"
        ) from None


def _at(text: str, zone: str, now: int) -> int:
    at = parse_due(text, zone=zone, field="at").at if text else now
    if at > now:
        raise InvalidInput(
            f"at {text!r:.80} lies in the future: write when it was recorded, or leave it out", field="at"
        )
    return at


def _source(text: str) -> str:
    if not (text.isascii() and text.isprintable() and len(text) <= 40 and " " not in text):
        raise InvalidInput(
            f"source {text!r:.80} must be one short word, such as operator, crm or unsubscribe-page",
            field="source",
        )
    return text


def _evidence(text: str) -> str:
    evidence = " ".join(text.split())
    if len(evidence) > TEXT_MAX or not (evidence.isprintable() or not evidence):
        raise InvalidInput(
            f"evidence {evidence!r:.80} must be text of at most {TEXT_MAX} characters: shorten it",
            field="evidence",
        )
    return evidence
