"""The store port: what the stages may ask of whatever remembers.

A stage never opens a transaction by itself and never holds one over anything that waits. It hands a
*unit* (a function of `Tx`) to `Store.write`, and gets a future of what the unit returned:

    done = store.write(lambda tx: settle(tx, outcomes))

Units are atomic, one by one, and commit in groups: several units, also from different threads, may
share one commit, which is what makes a durable intent cheap. A unit that raises takes back its own
writes and nobody else's, and its future carries the exception. When the future has a result, the
unit is durable. A unit may run again from the start when the database asks for it (a deadlock, a
serialization failure), so it has no effects but through `tx`.

All methods take and return lists; one is a list of one. Locks are taken in one order: gates by
name, then deliveries by id. Inside a unit, reads see the unit's own writes.

`deliveries.move` is the only way in which a state changes: a compare-and-set on (state, epoch, seq)
together with its ledger entry. Everything here is in microseconds; `now` is the calendar clock,
`steady` the store's own clock for leases, slots and ages (see `ports.clock`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from enum import IntEnum
from typing import Final, Protocol, TypeVar

from sendonce.core.access import ApiKey
from sendonce.core.consent import Preference
from sendonce.core.delivery import Channel
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event, Standing, State
from sendonce.core.pacing import Gate, GateLimits
from sendonce.core.provider_event import EventKind, Fact
from sendonce.core.seal import Act, Entry, SealedBlock
from sendonce.core.tombstone import Tombstone
from sendonce.core.value import value

T = TypeVar("T")
Row = Mapping[str, int | str]

FIRST: Final = -(2**63)
"""A bound that nothing lies below."""

HOLD: Final = "hold"
"""The name in `meta` under which a hold stands; "" or nothing: none does (`sendonce.held`)."""


class EventLook(IntEnum):
    """Who looks at a provider's event."""

    WAITS = 0  # a stage will
    DONE = 1
    UNMATCHED = 2  # people may: no delivery of ours is known for it
    FAULTY = 3  # people may: it could not be read, or says nothing that can be acted on
    UNCLEAR = 4  # people should: a customer's words that may mean no


@value
class Reminder:
    """What the business asked for, once per (tenant, reminder, customer).

    recipients  channel -> {"to": address as given, "sender": ..., "reply_to": ...}
    """

    id: int
    tenant: str
    reminder: str
    customer: str
    due_at: int
    due_local: str
    zone: str
    expires_at: int
    template: str
    template_version: int
    category: str
    priority: int
    group: str
    source: str
    import_id: int
    linked: str
    data: str
    recipients: Mapping[str, Mapping[str, str]]
    spec_hash: str
    version: int
    created_at: int


@value
class Course:
    """What a delivery has been through and where it goes next.

    next_at     not looked at before this instant
    tag         its place in the fair order of its account
    cost        SMS parts, 1 for an email
    attempts    calls started; `failures` and `throttles` as `core.retry` counts them
    first_try, last_try   steady instants of the first and the last claim of this content version
    """

    due_at: int
    next_at: int
    expires_at: int
    account: str = ""
    tag: int = 0
    cost: int = 1
    attempts: int = 0
    failures: int = 0
    throttles: int = 0
    first_try: int = 0
    last_try: int = 0
    receipt: str = ""
    reason: str = ""


@value
class Delivery:
    """A delivery as read. `seq` and `head` are its place in the ledger."""

    id: int
    tenant: str
    key: str
    reminder_id: int
    customer: str
    channel: Channel
    address_tag: str
    category: str
    group: str
    priority: int
    standing: Standing
    course: Course
    ended_at: int
    seq: int
    head: str


@value
class NewDelivery:
    """A delivery to be: inserted as SCHEDULED with its first ledger entry."""

    tenant: str
    key: str
    reminder_id: int
    customer: str
    channel: Channel
    address_tag: str
    category: str
    group: str
    priority: int
    due_at: int
    expires_at: int
    actor: str
    details: Mapping[str, Value]


@value
class Move:
    """One step of one delivery, as the table allowed it. `before` is the row as read in this unit.

    The last four are what a revision may change besides; None: as before.
    """

    before: Delivery
    event: Event
    standing: Standing
    course: Course
    actor: str
    details: Mapping[str, Value] = field(default_factory=dict)
    address_tag: str | None = None
    category: str | None = None
    group: str | None = None
    priority: int | None = None


@value
class Content:
    """What a delivery says: frozen at publication. `payload` is canonical JSON, `hash` its SHA-256, `mark`
    the beginning of its send key (`core.delivery.mark_of`), 0 where nobody will look for it."""

    delivery_id: int
    version: int
    address: str
    payload: str
    hash: str
    template: str
    template_version: int
    frozen_at: int
    mark: int = 0


@value
class OpenCall:
    """A lane in use. Steady instants."""

    delivery_id: int
    epoch: int
    account: str
    process: str
    claimed_at: int
    slot_at: int
    send_deadline: int


@value
class Outgoing:
    """A hint that waits in the outbox for the relay. `place`: its delivery's tag, by which hints leave in
    fair order."""

    delivery_id: int
    epoch: int
    account: str
    place: int


@value
class LostCall:
    """A call that nobody may settle any more. `gone`: its process has lost its lease, at `gone_since`
    (steady); else its own deadline has passed in a living process."""

    call: OpenCall
    gone: bool
    gone_since: int


@value
class Process:
    """A process that claims or schedules. `lease_until` is steady, the other times calendar."""

    id: str
    role: str
    channel: str
    host: str
    pid: int
    started_at: int
    beat_at: int
    lease_until: int
    stopped: bool


@value
class StoredTemplate:
    """One channel of one immutable template version."""

    tenant: str
    name: str
    version: int
    channel: Channel
    subject: str
    text: str
    html: str
    hash: str
    added_at: int


@value
class Pause:
    """A pause of a channel, a group or the scheduler. `until` is a calendar instant."""

    scope: str
    name: str
    until: int
    reason: str
    actor: str
    at: int


@value
class HandedIn:
    """What an application asked for inside its own transaction, and nobody has taken in yet.

    body      JSON: the reminder, as it was asked for
    asked_at  a calendar instant; `asked_by` is the application's database user
    """

    id: int
    tenant: str
    body: str
    asked_at: int
    asked_by: str


@value
class StoredEvent:
    """What a provider said, as it was taken in; see `core.provider_event` for what it means.

    account      "" for returned mail
    tenant       whose tag `address_tag` is; "" where there is none
    occurred_at  0: the provider does not say
    next_at      not looked at before this instant, while it waits; `tries`: how often it was looked at
    why          what it waits for, or why it is left to people; a coded word
    applied_at   0: not yet
    delivery_id  0: none is known
    """

    account: str
    identity: str
    kind: EventKind
    received_at: int
    tenant: str = ""
    receipt: str = ""
    send_key: str = ""
    address_tag: str = ""
    masked: str = ""
    occurred_at: int = 0
    code: str = ""
    text: str = ""
    look: EventLook = EventLook.WAITS
    next_at: int = 0
    tries: int = 0
    why: str = ""
    applied_at: int = 0
    delivery_id: int = 0
    id: int = 0

    @property
    def at(self) -> int:
        """When it happened, as far as we know."""
        return self.occurred_at or self.received_at


@value
class Sent:
    """A delivery that an event may be about, as it stood when it was looked for; not locked.

    version  the content version that the event names; 0: it does not say
    now      of the delivery: its content version, its account, its receipt
    """

    delivery_id: int
    tenant: str
    key: str
    channel: Channel
    address_tag: str
    state: State
    version: int
    version_now: int
    account_now: str
    attempts: int
    maybe: bool
    receipt_now: str


@value
class Answered:
    """What was asked under an Idempotency-Key. `status` 0: it is not answered yet, since `begun_at`."""

    fingerprint: str
    begun_at: int
    status: int
    answer: str


@value
class Batch:
    """What a person started and goes on by itself. `ended_at` 0: it runs, and was heard of at `told_at`."""

    id: str
    kind: str
    actor: str
    begun_at: int
    told_at: int
    ended_at: int
    progress: str


@value
class Erasure:
    """Somebody asked that a customer be erased. `may_write`: to the same addresses, if scheduled anew."""

    tenant: str
    customer: str
    asked_at: int
    actor: str
    reason: str
    may_write: bool


@value
class Removed:
    """A delivery that is to be removed, as read in this unit; `reminder` and `reminder_id` go with it."""

    id: int
    tenant: str
    reminder_id: int
    reminder: str
    customer: str
    due_at: int
    channel: Channel
    category: str
    account: str
    state: State
    seq: int
    head: str


class Deliveries(Protocol):
    def insert(self, new: Sequence[NewDelivery]) -> list[int]:
        """Insert as SCHEDULED, each with its first entry; returns ids in order."""
        ...

    def by_ids(self, ids: Sequence[int]) -> list[Delivery]:
        """Locked for this unit, in order of id; unknown ids are left out."""
        ...

    def by_keys(self, keys: Sequence[tuple[str, str]]) -> list[Delivery]:
        """By (tenant, key), locked, in order of id."""
        ...

    def doubts(self, ids: Sequence[int]) -> dict[int, frozenset[str]]:
        """For each of these ids, which of `unknown`, `doubted` and `rerouted` its ledger ever said."""
        ...

    def of_reminders(self, reminder_ids: Sequence[int]) -> list[Delivery]:
        """All channels of these reminders, locked, in order of id."""
        ...

    def matching(self, what: str, value: Mapping[str, int | str], limit: int, after: int) -> list[Delivery]:
        """A page of deliveries by one of the named selections, in order of id, above id `after`.

        `what`: "reminder", "customer", "group", "import" (what it created), "source_missing", "pending",
        "held_queued" (by a pause; always the first of them), "address", "address_open", "state", "receipt";
        `value` holds the parameters of that statement.
        """
        ...

    def open_at(self, addresses: Sequence[tuple[str, str, str]]) -> set[int]:
        """The ids of what has not ended to these (tenant, channel, address tag); locks nothing. May have some
        of another channel: who locks a row asks it again."""
        ...

    def due(self, now: int, limit: int, since: int = FIRST) -> list[Delivery]:
        """SCHEDULED rows whose `next_at` has come, earliest first, locked; rows locked by others are
        skipped. State and a partial index decide, never a mark: late rows are simply seen. `since`: only
        those whose `next_at` is not before it, for the next page of one pass."""
        ...

    def first_due(self, now: int) -> int | None:
        """The earliest `next_at` of the SCHEDULED rows whose `next_at` has come, of those too that somebody
        holds; locks nothing."""
        ...

    def wake(self, account: str, now: int) -> None:
        """Make waiting QUEUED rows ready whose `next_at` has come."""
        ...

    def wake_some(self, account: str, now: int, limit: int) -> list[Delivery]:
        """The same for up to `limit` of them, those that waited longest; those rows, locked."""
        ...

    def ready(self, account: str, *, retries: bool, limit: int, since: int = FIRST) -> list[Delivery]:
        """QUEUED rows that a worker may claim, in fair order, locked; others' locked rows are skipped.
        `since`: only those whose tag is not below it."""
        ...

    def line(self, account: str, *, retries: bool, after: tuple[int, int], limit: int) -> list[Delivery]:
        """A page of what `ready` gives, those above (tag, id) `after`, for who may take them out of the line;
        locked."""
        ...

    def next_wake(self, account: str) -> int | None:
        """The earliest `next_at` of the account's waiting rows."""
        ...

    def expired(self, now: int, limit: int) -> list[Delivery]:
        """SCHEDULED or QUEUED rows at or past their expiry, locked."""
        ...

    def attention(self, state: str, now: int, limit: int, account: str = "") -> list[Delivery]:
        """Rows in RECONCILING, UNCERTAIN, DEAD or REJECTED whose `next_at` has come, locked; of one account
        where it is named, so that nobody stands behind rows that are another's to look at."""
        ...

    def move(self, moves: Sequence[Move]) -> list[bool]:
        """Compare-and-set each on (state, epoch, seq) and append its entry; False where it lost.

        A row and its entry change together or not at all. Nothing else writes a state.
        """
        ...

    def advance(self, moves: Sequence[Move]) -> list[Delivery | None]:
        """`move`, and what each row is after it, so that its next move needs no reading; None where it
        lost."""
        ...

    def defer(self, deferrals: Sequence[tuple[Delivery, int]]) -> None:
        """Look again later (a new `next_at` each), for a reason that the ledger already tells.

        Rows that are ready for a worker are left alone.
        """
        ...

    def unpause(self, scope: str, name: str, accounts: Sequence[str], until: int, limit: int) -> int:
        """Look at once at up to `limit` rows each that a pause of this channel or group put off to an
        instant up to `until`: scheduled ones, and queued ones of these accounts. How many; 0: no more."""
        ...

    def note(self, notes: Sequence[Move]) -> list[bool]:
        """Append an entry that moves nothing; `standing` and `course` are as before."""
        ...


class Reminders(Protocol):
    def find(self, keys: Sequence[tuple[str, str, str]]) -> list[Reminder | None]:
        """By (tenant, reminder, customer), in the order asked for."""
        ...

    def by_ids(self, ids: Sequence[int]) -> dict[int, Reminder]: ...

    def insert(self, new: Sequence[Reminder]) -> list[int]:
        """Insert (the ids given are ignored); returns ids in order."""
        ...

    def revise(self, revised: Sequence[Reminder]) -> None:
        """Overwrite by id, keeping what it said before as a revision."""
        ...

    def reschedule(self, due: Mapping[int, int]) -> None:
        """Another due instant by reminder id, for the same wall time; the expiry moves with it."""
        ...

    def revisions(self, import_id: int, limit: int, after: int) -> list[Reminder]:
        """What reminders said before this import revised them, by reminder id above `after`, then version."""
        ...

    def touch(self, ids: Sequence[int], import_id: int) -> None:
        """Note that this import listed them too (for `--cancel-missing`)."""
        ...


class Contents(Protocol):
    def put(self, contents: Sequence[Content]) -> None:
        """Keep; a second put of the same (delivery, version) replaces the first."""
        ...

    def get(self, keys: Sequence[tuple[int, int]]) -> dict[int, Content]:
        """By (delivery id, content version); returned by delivery id."""
        ...


class Calls(Protocol):
    def count(self, account: str) -> int:
        """Open calls of the account, over all processes."""
        ...

    def since(self, account: str, claimed_at: int) -> tuple[int, int | None]:
        """The same of those that were claimed at this steady instant or later, and when the first of them
        was."""
        ...

    def open(self, calls: Sequence[OpenCall]) -> None: ...

    def close(self, keys: Sequence[tuple[str, int, int, int]]) -> None:
        """Free the lanes of these (account, claimed at, delivery id, epoch)."""
        ...

    def overdue(self, steady: int, limit: int, after: tuple[int, int] = (0, 0)) -> list[LostCall]:
        """Calls whose send deadline has passed, or whose process has lost its lease: a page in order of
        (delivery id, epoch), above `after`."""
        ...


class Gates(Protocol):
    def lock(self, account: str) -> Gate | None:
        """The gate, locked for this unit; None where there is none (and then nothing is sent)."""
        ...

    def save(self, gate: Gate) -> None: ...

    def create(self, account: str, limits: GateLimits) -> bool:
        """Make the gate where there is none; whether it did."""
        ...

    def seed(self, account: str, limits: GateLimits) -> bool:
        """Create, or take over limits whose configuration changed since they were last seeded; whether it
        did either."""
        ...

    def configured(self) -> dict[str, GateLimits]:
        """The limits of each account as they were last seeded, whatever was changed since."""
        ...

    def all(self) -> list[Gate]: ...

    def flows(self, account: str, flows: Sequence[str]) -> dict[str, int]:
        """The last tag of each flow that is known."""
        ...

    def save_flows(self, account: str, tags: Mapping[str, int], below: int) -> None:
        """Keep new tags, and forget flows whose tag lies below virtual time `below`."""
        ...


class Preferences(Protocol):
    def of(self, keys: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], list[Preference]]:
        """By (tenant, channel, address tag)."""
        ...

    def put(self, records: Sequence[Mapping[str, int | str]]) -> int:
        """Keep; the newest of one kind and category wins. Returns how many were new or newer."""
        ...

    def remove(self, tenant: str, channel: str, address_tag: str, category: str, kind: str) -> int: ...


class Templates(Protocol):
    def newest(self, tenant: str, name: str) -> list[StoredTemplate]:
        """All channels of the newest version; empty where there is none."""
        ...

    def version(self, tenant: str, name: str, version: int) -> list[StoredTemplate]: ...

    def put(self, templates: Sequence[StoredTemplate]) -> None: ...


class Processes(Protocol):
    def beat(self, process: Process) -> None:
        """Insert or renew."""
        ...

    def dead(self, steady: int) -> list[Process]:
        """Not stopped, and past their lease."""
        ...

    def mark_stopped(self, ids: Sequence[str]) -> None: ...

    def lead(self, role: str, process: str, lease_until: int) -> bool:
        """Take the lead of a role where it is free or its lease is over, or renew it: whether this process
        leads now, until this steady instant. Of several that ask, one is told yes."""
        ...

    def resign(self, role: str, process: str) -> None:
        """Give the lead back, if it is this process's."""
        ...

    def forget(self, before: int, limit: int) -> int:
        """Forget up to `limit` processes that ended, or lost their lease, and were last heard of before this
        calendar instant, but none with an open call. How many."""
        ...


class Intake(Protocol):
    """What applications handed in. Only a store inside an application's database is ever given any: on
    another one this is empty."""

    def waiting(self, limit: int) -> list[HandedIn]:
        """The first that wait, in order of id, not locked. By their state and by no mark: a transaction that
        commits late is seen, however low its ids are."""
        ...

    def lock(self, ids: Sequence[int]) -> set[int]:
        """Which of these still wait, locked for this unit; those that others hold are left out."""
        ...

    def remove(self, ids: Sequence[int]) -> None:
        """They are taken in: to be called in the unit that does it."""
        ...

    def park(self, parked: Sequence[tuple[int, str, str]]) -> None:
        """Put (id, field, why) aside: it waits no more, until somebody says so."""
        ...

    def retry(self, ids: Sequence[int]) -> int:
        """Let parked ones wait again; how many there were."""
        ...

    def drop(self, ids: Sequence[int]) -> int:
        """Forget parked ones; how many there were."""
        ...


class ProviderEvents(Protocol):
    """What providers said later, and what stands of it beside the deliveries."""

    def put(self, new: Sequence[StoredEvent]) -> list[bool]:
        """Keep (the ids given are ignored); whether each is new: not known by (account, identity, tenant)."""
        ...

    def waiting(self, now: int, limit: int) -> list[StoredEvent]:
        """Those whose `next_at` has come, the earliest first, locked; what others hold is passed over."""
        ...

    def lock(self, ids: Sequence[int]) -> list[StoredEvent]:
        """Those of these that wait, whenever their turn is, locked; what others hold is left out."""
        ...

    def by_marks(self, marks: Sequence[int]) -> list[list[Sent]]:
        """For each mark, the deliveries with such content, by content version."""
        ...

    def by_receipts(self, receipts: Sequence[str]) -> list[list[Sent]]:
        """For each receipt, the deliveries whose ledger tells it; at most ten."""
        ...

    def fold(self, facts: Sequence[tuple[int, Fact]]) -> None:
        """Add what was said, by delivery id, as `core.provider_event.fold` does. A kind that was not said of
        its delivery before gets a number, higher than those that were given before it, and stands behind
        all entries of the ledger that this unit sees."""
        ...

    def given(self) -> int:
        """The highest number that any of what `fold` added was given, as `Seals.given`."""
        ...

    def writers(self) -> frozenset[str]:
        """As `Numbered.writers`, for these numbers."""
        ...

    def end(self, ended: Sequence[tuple[int, EventLook, str, int]]) -> None:
        """These (id, look, why, delivery id) wait no more. What one with a delivery shows of the address is
        dropped: the delivery knows it."""
        ...

    def wait(self, later: Sequence[tuple[int, int, str]]) -> None:
        """Look at these again: (id, next_at, why)."""
        ...

    def retry(self, ids: Sequence[int]) -> int:
        """Let unmatched and faulty ones that were told by an adapter wait again, as if they had come now; how
        many there were."""
        ...

    def forget(self, before: int, limit: int) -> int:
        """Forget up to `limit` that were received before this instant, wait no more and belong to no
        delivery. How many."""
        ...

    def blank(self, delivery_ids: Sequence[int], addresses: Sequence[tuple[str, str]]) -> None:
        """Destroy what is personal in the events of these deliveries, and in those about these
        (tenant, address tag)."""
        ...


class Removals(Protocol):
    """What is taken away for good. Whether it may be, `pipeline.erasure` and `pipeline.retention` judge."""

    def ask(self, erasure: Erasure) -> None:
        """Remember that a customer is being erased; once is enough."""
        ...

    def asked(self, limit: int) -> list[Erasure]:
        """Those that are not finished."""
        ...

    def finish(self, erasure: Erasure) -> None: ...

    def empty(self, reminder_ids: Sequence[int], delivery_ids: Sequence[int], *, erased: bool) -> int:
        """Destroy what reminders say, to whom, and said before; and the texts of deliveries. How many texts.

        `erased`: also the hash of what was asked for, by which the same content is known again.
        """
        ...

    def blank(self, addresses: Sequence[tuple[str, str, str]]) -> int:
        """Destroy what records about (tenant, channel, address tag) show to people; they stay in force."""
        ...

    def handed_in(self, limit: int, after: int) -> list[HandedIn]:
        """A page of all that nobody has taken in, waiting or parked, above id `after`."""
        ...

    def next_from(self, after: int) -> int | None:
        """The first delivery above this id; None where there is none."""
        ...

    def old(self, before: int, after: int, upto: int, *, full: bool) -> list[int]:
        """Reminders of which a delivery with such an id ended before this instant, well or without a sending;
        `full`: only those that still say something. Not locked."""
        ...

    def newest(self) -> tuple[int, int, int, int]:
        """The highest numbers given so far: of a delivery, a reminder, an entry; and the delivery of which a
        provider said something last, 0: of none."""
        ...

    def numbers(self, delivery_ids: Sequence[int]) -> dict[int, list[tuple[int, int, str, str]]]:
        """The entries of each as (number in the store, seq, text, hash), in order."""
        ...

    def facet(self, delivery_ids: Sequence[int]) -> int:
        """The highest number of what providers said of these; 0: they said nothing."""
        ...

    def called(self, calls: Sequence[tuple[str, int]]) -> set[int]:
        """Which of these (account, delivery id) have an open call."""
        ...

    def last(self) -> Tombstone | None:
        """The newest tombstone."""
        ...

    def remove(self, stone: Tombstone, removed: Sequence[Removed]) -> bool:
        """Remove these deliveries and their reminders with all that hangs on them, and keep what is left.
        False where one had changed: then the unit must not go on."""
        ...

    def known(self, identities: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        """Which of these (tenant, reminder, customer) were removed."""
        ...

    def forget_imports(self, before: int, limit: int) -> int:
        """Forget up to `limit` imports that began before this and of which nothing is left; how many."""
        ...


class Runs(Protocol):
    """Passes, imports, pauses, the mark: what is remembered about runs."""

    def begin_pass(self, trigger: str, process: str, mark: int) -> int: ...

    def finish_pass(self, id_: int, mark: int, counts: Mapping[str, int], *, complete: bool) -> None: ...

    def forget_passes(self, before: int, limit: int) -> int:
        """Forget passes that began before this calendar instant, of the oldest `limit`. How many."""
        ...

    def begin_import(self, tenant: str, source: str, file: str, actor: str) -> int: ...

    def finish_import(self, id_: int, counts: Mapping[str, int]) -> None: ...

    def undo_import(self, id_: int) -> None: ...

    def pauses(self) -> list[Pause]: ...

    def pause(self, pause: Pause) -> None: ...

    def resume(self, scope: str, name: str) -> int: ...

    def audit(self, actor: str, action: str, target: str, reason: str, body: Mapping[str, Value]) -> None:
        """Keep what a person changed outside any one delivery."""
        ...


class ApiKeys(Protocol):
    """Who may use the HTTP API."""

    def put(self, keys: Sequence[ApiKey]) -> None:
        """Keep new ones, as never used and not revoked."""
        ...

    def get(self, prefix: str) -> ApiKey | None: ...

    def all(self, tenant: str = "") -> list[ApiKey]:
        """Of one tenant where it is named; the oldest first."""
        ...

    def revoke(self, prefix: str, at: int) -> bool:
        """From now on it holds no more; False where it is unknown or was revoked before."""
        ...

    def expire(self, prefix: str, at: int) -> bool:
        """Let it end at this instant; False where it is unknown or ends before."""
        ...

    def touch(self, prefix: str, at: int, before: int) -> bool:
        """Note that it was used, unless it is noted since `before`; whether it did."""
        ...


class Answers(Protocol):
    """What was asked over HTTP under an Idempotency-Key, by (tenant, key)."""

    def begin(
        self, tenant: str, name: str, fingerprint: str, *, at: int, stale: int, keep_until: int
    ) -> bool:
        """Begin to answer; False where somebody else has, with whatever result. One who asks the same takes
        over what was begun before `stale` and never answered."""
        ...

    def get(self, tenant: str, name: str) -> Answered | None: ...

    def finish(
        self, tenant: str, name: str, begun_at: int, *, status: int, answer: str, keep_until: int
    ) -> bool:
        """Keep the answer; False where somebody else took over meanwhile."""
        ...

    def drop(self, tenant: str, name: str, begun_at: int) -> None:
        """Forget that it was begun: nothing was done, and it may be asked again."""
        ...

    def forget(self, now: int, limit: int) -> int:
        """Forget up to `limit` that need not be kept any longer. How many."""
        ...


class Batches(Protocol):
    """What a person started and goes on by itself, one at a time for a tenant, by (tenant, id)."""

    def begin(
        self, tenant: str, id_: str, kind: str, *, actor: str, at: int, stale: int, progress: str
    ) -> str:
        """Begin it, unless one runs; the id of the one that runs now. One that was not heard of since `stale`
        counts as ended."""
        ...

    def get(self, tenant: str, id_: str) -> Batch | None: ...

    def note(self, tenant: str, id_: str, progress: str, *, at: int, ended: bool = False) -> bool:
        """Say how far it is; False where it counts as ended."""
        ...

    def forget(self, before: int, limit: int) -> int:
        """Forget up to `limit` that were last heard of before. How many."""
        ...


class Numbered(Protocol):
    """Rows that get the next number when they are written, before their commit."""

    def given(self) -> int:
        """The highest number that any row was given, committed or not; 0: none yet."""
        ...

    def writers(self) -> frozenset[str]:
        """The transactions that may hold rows which others cannot see yet.

        Where it is asked after `given`, every row up to that number is committed or will never be, once
        none of these is among those that a later answer names.
        """
        ...


class Acts(Numbered, Protocol):
    """What people did outside of any one delivery, as the audit has it."""

    def between(self, after: int, upto: int, limit: int) -> list[Act]:
        """Those with numbers above `after` up to `upto`, in order, at most `limit`."""
        ...


class Seals(Numbered, Protocol):
    """Blocks of sealed entries and acts (`core.seal`), and what may be sealed. Numbered are the entries."""

    @property
    def acts(self) -> Acts: ...

    def entries(self, after: int, upto: int, limit: int) -> list[Entry]:
        """The entries with numbers above `after` up to `upto`, in order, at most `limit`."""
        ...

    def last(self) -> SealedBlock | None:
        """The newest block, without its leaves."""
        ...

    def page(self, after: int, limit: int) -> list[SealedBlock]:
        """Blocks with a number above this one, in order."""
        ...

    def tombstone(self) -> tuple[int, str]:
        """The number and the hash of the newest tombstone; (0, "") where there is none."""
        ...

    def append(self, block: SealedBlock) -> None:
        """Keep one more. Of two with one number, one fails."""
        ...

    def text_of(self, entry: Entry) -> str:
        """The entry's text, to name what it belongs to; "" where it is not there."""
        ...


class Tx(Protocol):
    """One unit's view of the store. Valid inside the unit only."""

    @property
    def now(self) -> int:
        """The calendar at the start of the unit."""
        ...

    @property
    def steady(self) -> int:
        """The store's steady clock at the start of the unit."""
        ...

    @property
    def held(self) -> bool:
        """Whether the store may have lost what was written last, and nobody has released it: nothing may be
        claimed, published, ended by the clock or found absent. Asked of the server that this unit runs on."""
        ...

    @property
    def epoch(self) -> int:
        """The store epoch, one more with each release: what was claimed in another one is evidence only."""
        ...

    @property
    def deliveries(self) -> Deliveries: ...
    @property
    def reminders(self) -> Reminders: ...
    @property
    def contents(self) -> Contents: ...
    @property
    def calls(self) -> Calls: ...
    @property
    def gates(self) -> Gates: ...
    @property
    def preferences(self) -> Preferences: ...
    @property
    def templates(self) -> Templates: ...
    @property
    def processes(self) -> Processes: ...
    @property
    def runs(self) -> Runs: ...
    @property
    def intake(self) -> Intake: ...
    @property
    def events(self) -> ProviderEvents: ...
    @property
    def removals(self) -> Removals: ...
    @property
    def api_keys(self) -> ApiKeys: ...
    @property
    def answers(self) -> Answers: ...
    @property
    def batches(self) -> Batches: ...
    @property
    def seals(self) -> Seals: ...

    def meta(self, name: str) -> str | None: ...

    def set_meta(self, name: str, value: str) -> None: ...

    def hint(self, hints: Sequence[Outgoing]) -> None:
        """Put hints into the relay's outbox. One that is there already is there once."""
        ...

    def hint_ready(self, account: str, limit: int) -> int:
        """Put hints of up to `limit` ready rows of an account into it, the first in its order; how many."""
        ...

    def hints(self, limit: int, account: str = "") -> list[Outgoing]:
        """A page of an account's outbox in fair order; of all of it, in order of id, where none is named."""
        ...

    def hinted(self, hints: Sequence[tuple[int, int]]) -> None:
        """Take relayed hints out of the outbox."""
        ...

    def announce(self, topic: str) -> None:
        """Tell whoever listens, once this unit has committed and only then, that there may be work.

        One topic is told once for a unit, and once for the units that share a commit. `core.news` has the
        topics. Where nobody hears it, nothing is lost but time: everyone looks for work besides.
        """
        ...

    def rows(self, view: str, **parameters: int | str) -> list[Row]:
        """A named read-only statement, for views and reports; rows as mappings."""
        ...


class Listening(Protocol):
    """Somebody listens."""

    def close(self) -> None:
        """Hear nothing any more from here on, also not what is on its way. Idempotent."""
        ...


class Store(Protocol):
    """One store, as one process uses it. Thread-safe."""

    @property
    def secret(self) -> bytes:
        """This store's own secret: send keys and address tags hang on it. Never shown."""
        ...

    @property
    def one_writer(self) -> bool:
        """While a unit writes, all other processes wait: long work must come in short units."""
        ...

    def write(self, unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        """Run a unit; the future resolves when it is durable. Raises nothing itself.

        The future carries `StoreUnavailable` when the database was locked, full or away: then
        nothing of the unit happened. Units run in the order in which they came. Those that are written
        `beside` the others keep an order among themselves only: where the database lets several write,
        they wait for none of the rest.
        """
        ...

    def read(self, query: Callable[[Tx], T]) -> T:
        """Run a read-only query on a connection of its own, in the calling thread."""
        ...

    def listen(self, hear: Callable[[str], None]) -> Listening:
        """Have `hear(topic)` called for what units announce, until one of the two is closed. Returns at once;
        raises nothing.

        `hear` is called in a thread of the store's, or in that of whoever wrote, so it hands the topic on and
        returns: it asks the store for nothing. What it raises is told, and harms nobody.

        On PostgreSQL it hears all processes of the store; from when on is not said, nor what was missed while
        a connection was lost, and behind a pooler it hears nothing. On SQLite it hears the units of this very
        store object: a file tells no other process anything.
        """
        ...

    def steady(self) -> int:
        """The steady clock now, for judging slots and deadlines that this store gave out."""
        ...

    def close(self) -> None:
        """Finish what was handed in, then close. Idempotent."""
        ...
