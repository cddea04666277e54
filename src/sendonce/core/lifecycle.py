"""The life cycle of a delivery: one table, and nothing else moves a state.

    SCHEDULED ── published ──> QUEUED ── claimed ──> SENDING ── accepted ──> ACCEPTED
                                  ^                     │
                                  └── failed, throttled ┤── rejected ──> REJECTED
                                                        │── failed too often ──> DEAD
                                                        └── unknown ──> QUEUED (by key), RECONCILING
                                                                        (by look-up), else UNCERTAIN

`TABLE` is the whole of it: each `Rule` says on which event, from which states, under which guards a
delivery goes where, and what else changes with it. The first rule that fits wins; where none fits,
the request is refused with a reason. The product, the model check and `docs/lifecycle.md` all read
this table; none of them types it again.

`maybe` is the mark that carries the promise: an earlier attempt may have reached the provider. It is
set by an unknown outcome, or where the store may have lost an attempt, and cleared only by a believable
"absent", never by a wish. While it
stands, a delivery cannot be called cancelled, expired, suppressed, rejected or dead.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from sendonce.core.value import value


class State(StrEnum):
    """Where a delivery stands."""

    SCHEDULED = "SCHEDULED"  # known, not due yet
    QUEUED = "QUEUED"  # published: content frozen, waiting for a worker
    SENDING = "SENDING"  # a worker holds it, the intent is durable
    RECONCILING = "RECONCILING"  # may be sent; the provider is being asked
    UNCERTAIN = "UNCERTAIN"  # may be sent; nobody can tell by itself
    ACCEPTED = "ACCEPTED"  # the provider took it
    REJECTED = "REJECTED"  # the provider refused it for good; nothing was sent
    DEAD = "DEAD"  # every attempt failed; nothing was sent
    CANCELLED = "CANCELLED"
    SUPPRESSED = "SUPPRESSED"
    EXPIRED = "EXPIRED"
    ASSUMED_SENT = "ASSUMED_SENT"  # an operator's or a policy's word, not ours
    NOT_SENT = "NOT_SENT"  # an operator's word, not ours


UNSENT: Final = frozenset({State.SCHEDULED, State.QUEUED})
OPEN: Final = UNSENT | {State.SENDING, State.RECONCILING, State.UNCERTAIN}
ENDED: Final = frozenset(State) - OPEN
SAYS_NOT_SENT: Final = frozenset(
    {State.REJECTED, State.DEAD, State.CANCELLED, State.SUPPRESSED, State.EXPIRED, State.NOT_SENT}
)
DEAD_LETTERS: Final = frozenset({State.DEAD, State.REJECTED})


class Event(StrEnum):
    """What happened to a delivery. The words stand in the ledger."""

    SCHEDULED = "scheduled"
    PUBLISHED = "published"
    DEFERRED = "deferred"
    REROUTED = "rerouted"
    REVISED = "revised"
    UNRENDERABLE = "unrenderable"
    CLAIMED = "claimed"
    RELEASED = "released"
    ACCEPTED = "accepted"
    FAILED = "failed"
    THROTTLED = "throttled"
    HELD = "held"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    KEY_DIED = "key_died"
    CANCELLED = "cancelled"
    SUPPRESSED = "suppressed"
    RESTORED = "restored"
    EXPIRED = "expired"
    PROVEN = "proven"
    ABSENT = "absent"
    UNRESOLVED = "unresolved"
    PERMITTED = "permitted"
    ASSUMED_SENT = "assumed_sent"
    NOT_SENT = "not_sent"
    REDRIVEN = "redriven"
    DOUBTED = "doubted"
    # Recorded, moving nothing:
    DUPLICATE_OBSERVED = "duplicate_observed"
    LATE_OUTCOME = "late_outcome"


class Ending(StrEnum):
    """How a delivery is to end once it is known whether it was sent; "" while nobody asked."""

    NONE = ""
    CANCEL = "cancel"
    OPT_OUT = "opt_out"


@value
class Standing:
    """The part of a delivery that the table reads and writes.

    epoch    fences claims: an outcome counts only under the epoch of its claim
    version  content version: counts revisions made before any attempt
    maybe    an earlier attempt may have reached the provider
    permit   one more attempt is allowed in spite of `maybe`, by policy or operator
    ending   a cancel or opt-out that arrived too late to be certain
    """

    state: State
    epoch: int = 0
    version: int = 1
    maybe: bool = False
    permit: bool = False
    ending: Ending = Ending.NONE


@value
class Facts:
    """What the guards ask of the world, decided by the caller at the moment of the move.

    key_alive    class K, and the provider still honours the key, counted from the first attempt
    lookup       the provider can be asked by our reference
    budget       failures (or throttles) left after this one
    expired      now is at or past the expiry
    settled      longer ago than a request can still arrive and a look-up can still miss it
    """

    key_alive: bool = False
    lookup: bool = False
    budget: bool = True
    expired: bool = False
    settled: bool = False


class Guard(StrEnum):
    """A named condition of a rule; see `GUARDS` for what each means."""

    NOT_MAYBE = "not maybe"
    MAYBE = "maybe"
    RETRIABLE = "retriable"
    KEY_ALIVE = "key alive"
    KEY_DEAD = "key dead"
    LOOKUP = "look-up"
    BUDGET = "budget left"
    NOT_EXPIRED = "not expired"
    EXPIRED = "expired"
    SETTLED = "settled"
    NO_ENDING = "no cancel"
    CANCEL = "cancel pending"
    OPT_OUT = "opt-out pending"


GUARDS: Final[dict[Guard, Callable[[Standing, Facts], bool]]] = {
    Guard.NOT_MAYBE: lambda s, f: not s.maybe,
    Guard.MAYBE: lambda s, f: s.maybe,
    # Another call cannot make a second effect: none was made, or the key absorbs it, or a person
    # or a policy took the risk.
    Guard.RETRIABLE: lambda s, f: not s.maybe or f.key_alive or s.permit,
    Guard.KEY_ALIVE: lambda s, f: f.key_alive,
    Guard.KEY_DEAD: lambda s, f: s.maybe and not f.key_alive and not s.permit,
    Guard.LOOKUP: lambda s, f: f.lookup,
    Guard.BUDGET: lambda s, f: f.budget,
    Guard.NOT_EXPIRED: lambda s, f: not f.expired,
    Guard.EXPIRED: lambda s, f: f.expired,
    Guard.SETTLED: lambda s, f: f.settled,
    Guard.NO_ENDING: lambda s, f: s.ending is Ending.NONE,
    Guard.CANCEL: lambda s, f: s.ending is Ending.CANCEL,
    Guard.OPT_OUT: lambda s, f: s.ending is Ending.OPT_OUT,
}


class Effect(StrEnum):
    """What changes beside the state."""

    EPOCH = "epoch + 1"
    VERSION = "version + 1"
    MAYBE = "set maybe"
    CLEAR_MAYBE = "clear maybe"
    PERMIT = "give permit"
    SPEND_PERMIT = "spend permit"
    CANCEL = "cancel pending"
    OPT_OUT = "opt-out pending"
    CLEAR_ENDING = "nothing pending"
    ALARM = "alarm"  # the record said "not sent", and it was sent


@value
class Rule:
    """One line of the table. `to` None: the state stays."""

    event: Event
    sources: frozenset[State]
    guards: tuple[Guard, ...]
    to: State | None
    effects: tuple[Effect, ...] = ()

    def fits(self, standing: Standing, facts: Facts) -> bool:
        if standing.state not in self.sources:
            return False
        for guard in self.guards:  # noqa: SIM110 (this runs for every move; `all` costs twice as much)
            if not GUARDS[guard](standing, facts):
                return False
        return True


@value
class Moved:
    """The table said yes: the standing after the event, by which rule."""

    standing: Standing
    rule: Rule

    @property
    def alarm(self) -> bool:
        return Effect.ALARM in self.rule.effects


@value
class NotMoved:
    """The table said no; `why` is a sentence for the person who asked."""

    why: str


def step(standing: Standing, event: Event, facts: Facts) -> Moved | NotMoved:
    """Apply one event by the table. Pure; the caller makes it durable by compare-and-set."""
    for rule in _BY_EVENT[event]:
        if rule.fits(standing, facts):
            return Moved(_apply(standing, rule), rule)
    return NotMoved(_refusal(standing, event, facts))


def _apply(standing: Standing, rule: Rule) -> Standing:
    effects = rule.effects
    maybe, permit, ending = standing.maybe, standing.permit, standing.ending
    for effect in effects:
        match effect:
            case Effect.MAYBE:
                maybe = True
            case Effect.CLEAR_MAYBE:
                maybe = False
            case Effect.PERMIT:
                permit = True
            case Effect.SPEND_PERMIT:
                permit = False
            case Effect.CANCEL:
                ending = Ending.CANCEL
            case Effect.OPT_OUT:
                ending = Ending.OPT_OUT
            case Effect.CLEAR_ENDING:
                ending = Ending.NONE
            case Effect.EPOCH | Effect.VERSION | Effect.ALARM:
                pass
    return Standing(
        state=standing.state if rule.to is None else rule.to,
        epoch=standing.epoch + (Effect.EPOCH in effects),
        version=standing.version + (Effect.VERSION in effects),
        maybe=maybe,
        permit=permit,
        ending=ending,
    )


def _refusal(standing: Standing, event: Event, facts: Facts) -> str:
    state = standing.state
    if event in (Event.CANCELLED, Event.SUPPRESSED, Event.REVISED) and state is State.ACCEPTED:
        return "already sent: the provider accepted it"
    if event is Event.REVISED and (standing.maybe or state in OPEN - UNSENT):
        return f"may already be sent ({state}): its content can no longer change"
    if event is Event.REROUTED and state is State.QUEUED and standing.maybe:
        return "it may be sent already: it stays with the account that may have it"
    if event is Event.REDRIVEN and state not in DEAD_LETTERS:
        return f"only dead letters (DEAD, REJECTED) are redriven; this one is {state}"
    if event is Event.REDRIVEN and facts.expired:
        return "its expiry has passed: send it again as a new reminder, or redrive with a later expiry"
    if event in (Event.PERMITTED, Event.ASSUMED_SENT, Event.NOT_SENT) and state is not State.UNCERTAIN:
        return f"only UNCERTAIN deliveries are resolved; this one is {state}"
    if event is Event.PERMITTED and standing.ending is not Ending.NONE:
        return "it was cancelled or opted out meanwhile: it must not be sent again"
    if event is Event.PERMITTED and facts.expired:
        return "its expiry has passed: it must not be sent again"
    if state in ENDED:
        return f"it has ended: {state}"
    return f"{event} does not apply to {state}"


def _rules() -> list[Rule]:
    """The table, in the order of a delivery's life."""
    states = State
    sending = frozenset({states.SENDING})
    reconciling = frozenset({states.RECONCILING})
    uncertain = frozenset({states.UNCERTAIN})
    queued = frozenset({states.QUEUED})
    scheduled = frozenset({states.SCHEDULED})
    g, e = Guard, Effect

    def proven_unsent(event: Event, sources: frozenset[State], *effects: Effect) -> list[Rule]:
        """A pending cancel or opt-out is answered once it is proven that nothing was sent."""
        return [
            Rule(event, sources, (g.CANCEL, g.NOT_MAYBE), states.CANCELLED, (*effects, e.CLEAR_ENDING)),
            Rule(event, sources, (g.OPT_OUT, g.NOT_MAYBE), states.SUPPRESSED, (*effects, e.CLEAR_ENDING)),
        ]

    def in_doubt(
        event: Event, sources: frozenset[State], guards: tuple[Guard, ...] = (), *effects: Effect
    ) -> list[Rule]:
        """It may be sent and must not be tried: ask the provider, or say so. What is not published yet has no
        account that could be asked."""
        return [
            Rule(event, sources - scheduled, (*guards, g.LOOKUP), states.RECONCILING, effects),
            Rule(event, sources, guards, states.UNCERTAIN, effects),
        ]

    def ended_before_sending(event: Event, end: State, *pending: Effect) -> list[Rule]:
        return [
            Rule(event, UNSENT, (g.NOT_MAYBE,), end, (e.EPOCH,)),
            *in_doubt(event, UNSENT, (g.MAYBE,), e.EPOCH, e.SPEND_PERMIT, *pending),
        ]

    def asked_too_late(event: Event, pending: Effect) -> list[Rule]:
        return [Rule(event, sending | reconciling | uncertain, (), None, (pending,))]

    def back_to_queue(event: Event, *effects: Effect, budget: tuple[Guard, ...] = ()) -> list[Rule]:
        """After a call that provably was not accepted."""
        return [
            *proven_unsent(event, sending, *effects),
            Rule(event, sending, (g.NO_ENDING, g.RETRIABLE, *budget), states.QUEUED, effects),
        ]

    return [
        Rule(Event.DEFERRED, UNSENT, (), None),
        # To another account, which is asked by no key and no look-up what the first one got: only what nobody
        # can have got may go there.
        Rule(Event.REROUTED, queued, (g.NOT_MAYBE, g.NOT_EXPIRED), None, (e.EPOCH,)),
        Rule(Event.REVISED, UNSENT, (g.NOT_MAYBE,), states.SCHEDULED, (e.VERSION, e.EPOCH)),
        Rule(Event.PUBLISHED, scheduled, (g.NOT_EXPIRED,), states.QUEUED),
        Rule(Event.UNRENDERABLE, scheduled, (g.NOT_MAYBE,), states.REJECTED),
        # What was frozen can no longer be sent: damaged, or larger than a quota that was lowered since.
        Rule(Event.UNRENDERABLE, queued, (g.NOT_MAYBE,), states.REJECTED, (e.EPOCH,)),
        *in_doubt(Event.UNRENDERABLE, UNSENT, (g.MAYBE,), e.EPOCH, e.SPEND_PERMIT),
        # The claim is the durable intent to send.
        Rule(
            Event.CLAIMED,
            queued,
            (g.RETRIABLE, g.NOT_EXPIRED, g.NO_ENDING),
            states.SENDING,
            (e.EPOCH,),
        ),
        # Never started: nothing spent, not even the permit.
        *back_to_queue(Event.RELEASED),
        *in_doubt(Event.RELEASED, sending, (g.MAYBE,), e.SPEND_PERMIT),
        Rule(Event.ACCEPTED, sending, (), states.ACCEPTED, (e.SPEND_PERMIT, e.CLEAR_ENDING)),
        # The provider never processed these, so a permit is kept.
        *back_to_queue(Event.THROTTLED, budget=(g.BUDGET,)),
        Rule(Event.THROTTLED, sending, (g.NOT_MAYBE,), states.DEAD),
        *in_doubt(Event.THROTTLED, sending, (g.MAYBE,), e.SPEND_PERMIT),
        *back_to_queue(Event.HELD),
        *in_doubt(Event.HELD, sending, (g.MAYBE,), e.SPEND_PERMIT),
        # A failure spends the permit: only a key makes a `maybe` retriable after it.
        *proven_unsent(Event.FAILED, sending),
        Rule(Event.FAILED, sending, (g.NO_ENDING, g.BUDGET, g.NOT_MAYBE), states.QUEUED, (e.SPEND_PERMIT,)),
        Rule(Event.FAILED, sending, (g.NO_ENDING, g.BUDGET, g.KEY_ALIVE), states.QUEUED, (e.SPEND_PERMIT,)),
        Rule(Event.FAILED, sending, (g.NOT_MAYBE,), states.DEAD, (e.SPEND_PERMIT,)),
        *in_doubt(Event.FAILED, sending, (g.MAYBE,), e.SPEND_PERMIT),
        *proven_unsent(Event.REJECTED, sending),
        Rule(Event.REJECTED, sending, (g.NOT_MAYBE,), states.REJECTED, (e.SPEND_PERMIT,)),
        *in_doubt(Event.REJECTED, sending, (g.MAYBE,), e.SPEND_PERMIT),
        Rule(
            Event.UNKNOWN,
            sending,
            (g.KEY_ALIVE, g.BUDGET, g.NO_ENDING, g.NOT_EXPIRED),
            states.QUEUED,
            (e.MAYBE, e.SPEND_PERMIT),
        ),
        *in_doubt(Event.UNKNOWN, sending, (), e.MAYBE, e.SPEND_PERMIT),
        *in_doubt(Event.KEY_DIED, queued, (g.KEY_DEAD,), e.EPOCH),
        *ended_before_sending(Event.CANCELLED, states.CANCELLED, e.CANCEL),
        *asked_too_late(Event.CANCELLED, e.CANCEL),
        # "Stop when paid" also holds for what died: no later redrive may send it.
        Rule(Event.CANCELLED, DEAD_LETTERS, (g.NOT_MAYBE,), states.CANCELLED, (e.EPOCH,)),
        *ended_before_sending(Event.SUPPRESSED, states.SUPPRESSED, e.OPT_OUT),
        *asked_too_late(Event.SUPPRESSED, e.OPT_OUT),
        *ended_before_sending(Event.EXPIRED, states.EXPIRED),
        # Evidence that it was sent wins over every other word, also over ours.
        Rule(
            Event.PROVEN,
            OPEN | {states.ASSUMED_SENT},
            (),
            states.ACCEPTED,
            (e.SPEND_PERMIT, e.CLEAR_ENDING),
        ),
        Rule(Event.PROVEN, SAYS_NOT_SENT, (), states.ACCEPTED, (e.SPEND_PERMIT, e.CLEAR_ENDING, e.ALARM)),
        Rule(
            Event.ABSENT,
            reconciling,
            (g.SETTLED, g.CANCEL),
            states.CANCELLED,
            (e.CLEAR_MAYBE, e.CLEAR_ENDING),
        ),
        Rule(
            Event.ABSENT,
            reconciling,
            (g.SETTLED, g.OPT_OUT),
            states.SUPPRESSED,
            (e.CLEAR_MAYBE, e.CLEAR_ENDING),
        ),
        Rule(Event.ABSENT, reconciling, (g.SETTLED, g.EXPIRED), states.EXPIRED, (e.CLEAR_MAYBE,)),
        Rule(Event.ABSENT, reconciling, (g.SETTLED, g.BUDGET), states.QUEUED, (e.CLEAR_MAYBE,)),
        Rule(Event.ABSENT, reconciling, (g.SETTLED,), states.DEAD, (e.CLEAR_MAYBE,)),
        Rule(Event.UNRESOLVED, reconciling, (), states.UNCERTAIN),
        Rule(Event.PERMITTED, uncertain, (g.NO_ENDING, g.NOT_EXPIRED), states.QUEUED, (e.PERMIT,)),
        Rule(Event.ASSUMED_SENT, uncertain, (), states.ASSUMED_SENT, (e.CLEAR_ENDING,)),
        Rule(Event.NOT_SENT, uncertain, (), states.NOT_SENT, (e.CLEAR_ENDING,)),
        # An import that was undone may be put right and imported again under the same ids.
        Rule(
            Event.RESTORED,
            frozenset({states.CANCELLED}),
            (g.NOT_MAYBE,),
            states.SCHEDULED,
            (e.VERSION, e.EPOCH),
        ),
        # A dead letter whose template or data was mended is published anew, as another content.
        Rule(
            Event.RESTORED,
            DEAD_LETTERS,
            (g.NOT_MAYBE, g.NOT_EXPIRED),
            states.SCHEDULED,
            (e.VERSION, e.EPOCH),
        ),
        Rule(Event.REDRIVEN, DEAD_LETTERS, (g.NOT_MAYBE, g.NOT_EXPIRED), states.QUEUED, (e.EPOCH,)),
        # The store may have lost what was written last, an attempt among it. What is not published yet gets
        # its text first, since nobody can be asked, and nothing decided, without one.
        Rule(Event.DOUBTED, scheduled, (), None, (e.EPOCH, e.MAYBE)),
        Rule(Event.DOUBTED, queued, (g.KEY_ALIVE,), None, (e.EPOCH, e.MAYBE, e.SPEND_PERMIT)),
        *in_doubt(Event.DOUBTED, queued, (), e.EPOCH, e.MAYBE, e.SPEND_PERMIT),
        Rule(Event.DOUBTED, sending | reconciling, (), None, (e.MAYBE,)),
    ]


TABLE: Final[tuple[Rule, ...]] = tuple(_rules())
_BY_EVENT: Final[dict[Event, tuple[Rule, ...]]] = {
    event: tuple(rule for rule in TABLE if rule.event is event) for event in Event
}
