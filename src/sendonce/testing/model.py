"""A model of one delivery, walked to the end: every order in which the world can go wrong.

The walk uses the very table that the product runs (`core.lifecycle`) and puts it into the smallest
world that can hurt it: claims by several workers, a network that loses requests and answers, a
provider of one class, crashes, a reaper that gives up calls at any moment, a look-up that lags, people
who cancel, revise, redrive and resolve, and a clock that lets slots, keys, settle times and expiry
pass. With `failover`, another server takes over, once, that lacks what was written last. Breadth first, so
that a violation comes with the shortest story that leads to it.

    walk(Kind.KEY).violation is None
    print(walk(Kind.LOOKUP, guarded=GUARDED - {Guarded.FINDING}).violation)  # the shortest story

What must hold (`violation_of`): at most one effect at the provider, and one more for each time that a
person allowed the risk; ACCEPTED has an effect; CANCELLED, SUPPRESSED, EXPIRED, DEAD and REJECTED have
none and are never `maybe`; what was proven to be sent is ACCEPTED, however late the proof; nothing is
claimed after a cancel or an opt-out was answered, nor expired.

What the world is taken to promise, and nothing more: a call starts in its slot or not at all; a
provider forgets a key only after every request that has left under it has arrived or is lost (window and
margin of class K); a settle time ends only when every request has arrived or is lost and the look-up shows
what arrived (class L). Everything else happens at any moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from sendonce.core import lifecycle
from sendonce.core.lifecycle import Ending, Event, Facts, Moved, NotMoved, Rule, Standing, State


class Kind(StrEnum):
    """What the provider offers against a lost answer."""

    KEY = "K"
    KEY_AND_LOOKUP = "K+L"
    LOOKUP = "L"
    NEITHER = "N"

    @property
    def has_key(self) -> bool:
        return self in (Kind.KEY, Kind.KEY_AND_LOOKUP)

    @property
    def has_lookup(self) -> bool:
        return self in (Kind.LOOKUP, Kind.KEY_AND_LOOKUP)


class Guarded(StrEnum):
    """What the stages add to the table. Take one away, and the walk finds what it was for."""

    CLAIM = "a claim is a compare-and-set on the state"
    OUTCOME = "an outcome counts only under the epoch of its claim"
    SLOT = "a call that has missed its slot is not started"
    KEY_AGE = "no byte leaves under a key that is dying"
    FINDING = "absent counts only when it was asked after the settle time of the last claim"
    HOLD = "nothing is claimed, published, ended or found absent while the store is held"
    DOUBT = (
        "a held store doubts what may have been tried: before anybody withdraws it, and before its release"
    )
    LINE = "an outcome counts only in the store epoch of its claim, and not while the store is held"


GUARDED: Final = frozenset(Guarded)


class Wire(IntEnum):
    """How far the request of a call has come."""

    NONE = 0  # not started
    FLYING = 1
    ACCEPTED = 2
    NOTHING = 3  # lost, or refused in some way: no effect, and which it was shows when it is settled


class Key(IntEnum):
    """The age of the idempotency key, counted from the first claim."""

    UNUSED = 0
    ALIVE = 1
    MARGIN = 2  # we no longer use it, the provider still honours it
    FORGOTTEN = 3


class Call(NamedTuple):
    """One claim's call. `watched`: its worker lives and will settle it. `late`: its slot has passed.
    `old`: it is of another store epoch than today's."""

    epoch: int
    version: int
    wire: Wire = Wire.NONE
    watched: bool = True
    late: bool = False
    keyed: bool = False
    old: bool = False


class Line(IntEnum):
    """Which server has the delivery, where another one may take over."""

    ONLY = 0
    HELD = 1  # another took over, and nobody has released it
    RELEASED = 2


class Copy(NamedTuple):
    """The delivery as the server has it that will take over, and what had been answered by then."""

    standing: Standing
    stopped: bool


class World(NamedTuple):
    """Everything that matters about one delivery, in the store and outside.

    effects   the content version of each message that the customer got
    absent    a look-up said "absent" and its answer is on the way back; True: it was asked after the
              settle time of the last claim
    indexed   the look-up shows what has arrived
    settled   the settle time of the last claim is over
    claims    how many there were
    permits   how often a person or policy allowed the risk of a second effect
    stopped   a cancel or opt-out was answered: "it will not be tried again"
    copy      how far the server has come that will take over; None: it keeps up
    broken    what a move did that must never be done
    """

    standing: Standing = Standing(State.SCHEDULED)
    calls: tuple[Call, ...] = ()
    effects: tuple[int, ...] = ()
    key: Key = Key.UNUSED
    absent: bool | None = None
    indexed: bool = True
    settled: bool = True
    expired: bool = False
    claims: int = 0
    permits: int = 0
    stopped: bool = False
    copy: Copy | None = None
    line: Line = Line.ONLY
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold, and the shortest story that leads there: (what happened, the world after)."""

    what: str
    story: tuple[tuple[str, World], ...]

    def __str__(self) -> str:
        lines = [f"{self.what}, after"]
        for number, (action, world) in enumerate(self.story, start=1):
            lines.append(f"{number:3}. {action:42} {_in_words(world)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk saw. `fired`: the rules of the table that moved something."""

    worlds: int
    fired: frozenset[Rule]
    violation: Violation | None


def walk(
    kind: Kind, *, claims: int = 3, guarded: frozenset[Guarded] = GUARDED, failover: bool = False
) -> Walk:
    """Visit every world that can be reached, nearest first; stop at the first violation."""
    model = _Model(kind, claims, guarded, failover)
    start = World()
    came_from: dict[World, tuple[str, World, World]] = {}
    seen = {model.essence(start)}
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        for action, after in model.next_worlds(world):
            essence = model.essence(after)
            if essence in seen:
                continue
            seen.add(essence)
            came_from[after] = (action, after, world)
            if what := violation_of(after):
                return Walk(len(seen), frozenset(model.fired), Violation(what, _story(after, came_from)))
            waiting.append(after)
    return Walk(len(seen), frozenset(model.fired), None)


def violation_of(world: World) -> str:
    """Which promise this world breaks; "" where all hold."""
    if world.broken:
        return world.broken
    state = world.standing.state
    if len(world.effects) > 1 + world.permits:
        return f"{len(world.effects)} effects with {world.permits} permits"
    if state is State.ACCEPTED and not world.effects:
        return "ACCEPTED without an effect"
    if state in _PROVES_UNSENT and world.effects:
        return f"{state} with an effect"
    if state in _PROVES_UNSENT and world.standing.maybe:
        return f"{state} while it may have been sent"
    if state in lifecycle.UNSENT and world.standing.ending is not Ending.NONE:
        return f"{state} though a cancel or opt-out is pending"
    return ""


_PROVES_UNSENT: Final = lifecycle.SAYS_NOT_SENT - {State.NOT_SENT}  # that one is an operator's word
_ANSWERS: Final[dict[Wire, tuple[Event, ...]]] = {
    Wire.NONE: (Event.RELEASED,),
    Wire.FLYING: (Event.UNKNOWN,),
    Wire.ACCEPTED: (Event.UNKNOWN, Event.ACCEPTED),
    Wire.NOTHING: (Event.UNKNOWN, Event.REJECTED, Event.THROTTLED, Event.HELD, Event.FAILED),
}
_POSSIBLE: Final = {(rule.event, state) for rule in lifecycle.TABLE for state in rule.sources}
_SPENDS_BUDGET: Final = frozenset({Event.FAILED, Event.THROTTLED, Event.UNKNOWN, Event.ABSENT})
_BY_PEOPLE: Final = (
    Event.CANCELLED,
    Event.SUPPRESSED,
    Event.REVISED,
    Event.RESTORED,
    Event.REDRIVEN,
    Event.PERMITTED,
    Event.ASSUMED_SENT,
    Event.NOT_SENT,
)
_AS_A_FAILURE: Final = frozenset({Event.THROTTLED, Event.HELD})
_AT_A_FAILOVER: Final = (Event.CANCELLED, Event.REVISED, Event.PERMITTED)
"""What is walked around a failover, where there are so many more worlds: an opt-out is like a cancel, what
else people say ends a story, a provider that is too busy is like one that fails, and an expiry does the same
to what has a key as to what has none."""

Steps = Iterator[tuple[str, World]]


@dataclass(slots=True)
class _Model:
    """One kind of provider, and what may happen around it."""

    kind: Kind
    claims: int
    guarded: frozenset[Guarded]
    failover: bool
    fired: set[Rule] = field(default_factory=set)
    _known: dict[tuple[Standing, Event, Facts], Standing | None] = field(default_factory=dict)

    def next_worlds(self, world: World) -> Steps:
        """Everything that can happen next."""
        if world.standing.state is State.ACCEPTED and not world.calls:
            return  # the end of every story
        for actor in (
            self._scheduler,
            self._claimer,
            self._workers,
            self._network,
            self._crash,
            self._reaper,
            self._reconciler,
            self._provider_event,
            self._people,
            self._clock,
            self._servers,
        ):
            yield from actor(world)

    # In the order of a delivery's life.

    def _scheduler(self, world: World) -> Steps:
        if self._is_held(world):
            return
        for event in (Event.PUBLISHED, Event.DEFERRED, Event.KEY_DIED):
            yield from self._move(world, event)
        for action, after in self._move(world, Event.REROUTED):
            # The other account knows no key of ours, and is not asked about what the first one got.
            yield action, after._replace(key=Key.UNUSED)
        for action, after in self._move(world, Event.UNRENDERABLE):
            # A permit that no claim has used allowed no effect.
            unused = world.standing.permit and not after.standing.permit
            yield action, after._replace(permits=world.permits - unused)
        if world.expired:
            yield from self._move(world, Event.EXPIRED)

    def _claimer(self, world: World) -> Steps:
        if world.claims == self.claims or self._is_held(world):
            return
        read = world
        if Guarded.CLAIM not in self.guarded and world.standing.state is State.SENDING:
            # Read before another worker's claim, written after it.
            read = world._replace(standing=_with_state(world.standing, State.QUEUED))
        before = read.standing
        for _, after in self._move(read, Event.CLAIMED):
            now = after.standing
            keyed = self.kind.has_key and before.maybe and not before.permit
            broken = ""
            if world.stopped:
                broken = "claimed after a cancel or opt-out was answered"
            elif world.expired:
                broken = "claimed after its expiry"
            yield (
                "a worker claims it",
                after._replace(
                    calls=(*world.calls, Call(now.epoch, now.version, keyed=keyed)),
                    key=max(world.key, Key.ALIVE),
                    absent=None if world.absent is None else False,
                    settled=not self.kind.has_lookup,
                    claims=world.claims + 1,
                    broken=broken,
                ),
            )

    def _workers(self, world: World) -> Steps:
        for call in world.calls:
            if not call.watched:
                continue
            if call.wire is Wire.NONE and self._may_start(world, call):
                yield (
                    f"call {call.epoch} starts",
                    _put(world, call, call._replace(wire=Wire.FLYING, late=False, keyed=False)),
                )
            for event in _ANSWERS[call.wire]:
                if not (self.failover and event in _AS_A_FAILURE):
                    yield from self._settle(world, call, event)

    def _may_start(self, world: World, call: Call) -> bool:
        if Guarded.SLOT in self.guarded and call.late:
            return False
        return not call.keyed or world.key <= Key.ALIVE or Guarded.KEY_AGE not in self.guarded

    def _settle(self, world: World, call: Call, event: Event) -> Steps:
        over = _put(world, call, call._replace(watched=False))
        standing = world.standing
        current = standing.state is State.SENDING and (
            standing.epoch == call.epoch or Guarded.OUTCOME not in self.guarded
        )
        if (call.old or world.line is Line.HELD) and Guarded.LINE in self.guarded:
            current = False
        if current:
            yield from self._move(over, event, f"call {call.epoch} is settled: {event}")
        elif event is Event.ACCEPTED:
            yield from self._prove(over, f"call {call.epoch} is settled late: accepted")
        else:
            yield f"call {call.epoch} is settled late: {event}", over

    def _network(self, world: World) -> Steps:
        for call in world.calls:
            if call.wire is not Wire.FLYING:
                continue
            yield (
                f"request {call.epoch} comes to nothing",
                _put(world, call, call._replace(wire=Wire.NOTHING)),
            )
            after = _put(world, call, call._replace(wire=Wire.ACCEPTED))
            if not self._absorbed(world, call):
                effects = (*world.effects, call.version)
                after = after._replace(effects=effects, indexed=not self.kind.has_lookup)
            yield f"request {call.epoch} is accepted", after

    def _absorbed(self, world: World, call: Call) -> bool:
        """The provider knows the key: it answers as before and sends nothing."""
        return self.kind.has_key and world.key < Key.FORGOTTEN and call.version in world.effects

    def _prove(self, world: World, action: str) -> Steps:
        """Evidence that it was sent: whatever the record says, from here on it says so."""
        proven = list(self._move(world, Event.PROVEN, action))
        state = world.standing.state
        broken = "" if state is State.ACCEPTED else f"proven to be sent, and {state} all the same"
        yield from proven or [(action, world._replace(broken=broken))]

    def _crash(self, world: World) -> Steps:
        for call in world.calls:
            if call.watched:
                yield f"the worker of call {call.epoch} dies", _put(world, call, call._replace(watched=False))

    def _reaper(self, world: World) -> Steps:
        if world.standing.state is State.SENDING:
            epoch = world.standing.epoch
            yield from self._move(world, Event.UNKNOWN, f"the reaper gives up call {epoch}")

    def _reconciler(self, world: World) -> Steps:
        if world.standing.state is State.RECONCILING:
            if world.effects and world.indexed:
                yield from self._prove(world, "a look-up finds it")
            else:
                yield "a look-up finds nothing", world._replace(absent=world.settled)
            if world.expired:
                yield from self._move(world, Event.UNRESOLVED)
        if world.absent is not None:
            back = world._replace(absent=None)
            believed = world.absent if Guarded.FINDING in self.guarded else world.settled
            yield "the answer of the look-up is lost", back
            if self._is_held(world):
                return
            for action, after in self._move(back, Event.ABSENT, '"absent" is applied', settled=believed):
                yield action, after._replace(key=Key.UNUSED)

    def _provider_event(self, world: World) -> Steps:
        if world.effects:
            yield from self._prove(world, "an event proves that it was sent")

    def _people(self, world: World) -> Steps:
        for event in _AT_A_FAILOVER if self.failover else _BY_PEOPLE:
            if event in (Event.CANCELLED, Event.SUPPRESSED) and world.standing.ending is not Ending.NONE:
                continue  # asked before: the same answer, and nothing is written
            for action, after in self._move(self._doubted_first(world, event), event):
                stopped = event is not Event.RESTORED and world.stopped
                yield (
                    action,
                    after._replace(
                        permits=world.permits + (event is Event.PERMITTED),
                        stopped=stopped or event in (Event.CANCELLED, Event.SUPPRESSED),
                    ),
                )

    def _clock(self, world: World) -> Steps:
        for call in world.calls:
            if call.wire is Wire.NONE and not call.late:
                yield f"the slot of call {call.epoch} passes", _put(world, call, call._replace(late=True))
        quiet = all(
            call.wire is not Wire.FLYING and (call.wire is not Wire.NONE or call.late) for call in world.calls
        )
        if world.key is Key.ALIVE and self.kind.has_key:
            yield "the key comes into its margin", world._replace(key=Key.MARGIN)
        # A call under an ageing key may be held up between its claim and its first byte for as long as it
        # likes: that is what the last look at the age is for. The first call of a key has its slot.
        landed = all(
            call.wire is not Wire.FLYING and (call.wire is not Wire.NONE or call.late or call.keyed)
            for call in world.calls
        )
        if world.key is Key.MARGIN and landed:
            yield "the provider forgets the key", world._replace(key=Key.FORGOTTEN)
        if not world.indexed:
            yield "the look-up shows what arrived", world._replace(indexed=True)
        if not world.settled and quiet and world.indexed:
            yield "the settle time is over", world._replace(settled=True)
        if not world.expired and not (self.failover and self.kind.has_key):
            yield "its expiry passes", world._replace(expired=True)

    def _servers(self, world: World) -> Steps:
        """Another server takes over that lacks what was written since it last kept up."""
        if world.line is Line.HELD:
            for after in self._doubted(world):
                calls = tuple(call._replace(old=True) for call in after.calls)
                yield "the store is released", after._replace(calls=calls, line=Line.RELEASED)
        if world.line is not Line.ONLY or not self.failover:
            return
        standing = world.standing
        if world.copy is None:
            yield "the other server falls behind", world._replace(copy=Copy(standing, world.stopped))
            return
        copy = world.copy
        # What a person did in the lost span that put another text on its way, or a dead letter, cannot be
        # known again (docs/operate/backup.md says so).
        if copy.standing.state in lifecycle.OPEN and copy.standing.version == standing.version:
            yield (
                "the other server takes over",
                world._replace(
                    standing=copy.standing,
                    stopped=copy.stopped,
                    copy=None,
                    line=Line.HELD,
                    absent=None if world.absent is None else False,
                ),
            )

    def _is_held(self, world: World) -> bool:
        return world.line is Line.HELD and Guarded.HOLD in self.guarded

    def _doubted(self, world: World) -> Iterator[World]:
        """The world after what may have been tried was doubted; as it is where nothing can have been."""
        if Guarded.DOUBT not in self.guarded:
            yield world
            return
        key = max(
            world.key, Key.ALIVE
        )  # counted from the last commit that is still there: it can only be older
        after = world._replace(key=key, settled=not self.kind.has_lookup)
        moved = [doubted for _, doubted in self._move(after, Event.DOUBTED)]
        yield from moved or [world]

    def _doubted_first(self, world: World, event: Event) -> World:
        """Who takes something back, or changes it, in a held store, finds it in doubt."""
        if world.line is not Line.HELD or event not in (Event.CANCELLED, Event.SUPPRESSED, Event.REVISED):
            return world
        return next(self._doubted(world)) if world.standing.state in lifecycle.UNSENT else world

    def _move(self, world: World, event: Event, action: str = "", *, settled: bool = False) -> Steps:
        """Apply an event by the table; with and without budget left where that matters."""
        if (event, world.standing.state) not in _POSSIBLE:
            return
        for budget in (True, False) if event in _SPENDS_BUDGET else (True,):
            facts = Facts(
                key_alive=self.kind.has_key and world.key <= Key.ALIVE,
                lookup=self.kind.has_lookup,
                budget=budget,
                expired=world.expired,
                settled=settled,
            )
            after = self._step(world.standing, event, facts)
            if after is not None:
                yield action or str(event), world._replace(standing=after)

    def _step(self, standing: Standing, event: Event, facts: Facts) -> Standing | None:
        question = (standing, event, facts)
        if question not in self._known:
            match lifecycle.step(standing, event, facts):
                case Moved(after, rule):
                    self.fired.add(rule)
                    self._known[question] = after
                case NotMoved():
                    self._known[question] = None
        return self._known[question]

    def _is_stale(self, world: World, call: Call) -> bool:
        """Whether its outcome can never count again."""
        if self.failover and world.line is Line.ONLY:
            return False  # the other server may know it as the current one
        if call.old or world.line is Line.HELD:
            return Guarded.LINE in self.guarded
        return call.epoch != world.standing.epoch or world.standing.state is not State.SENDING

    def essence(self, world: World) -> World:
        """The world without what makes no difference to any future: two worlds with the same essence
        are visited once. Without it the walk would be the same, and hundreds of times longer.

        Epochs and versions count by their order only. A stale call that has landed can do no more than
        a provider event does; one still under way needs no worker.
        """
        standing = world.standing
        if standing.state is State.ACCEPTED:
            world = world._replace(absent=None, indexed=True, settled=True, expired=True)
        calls = []
        for call in world.calls:
            stale = self._is_stale(world, call)
            if call.wire is not Wire.NONE and Guarded.OUTCOME in self.guarded and stale:
                call = call._replace(watched=False)
                if call.wire is not Wire.FLYING:
                    continue
            calls.append(call if call.watched else call._replace(epoch=0, old=False))
        copy = world.copy
        kept = [standing] if copy is None else [standing, copy.standing]
        epochs = sorted({call.epoch for call in calls} | {one.epoch for one in kept})
        versions = sorted({one.version for one in kept})
        if self.kind.has_key:
            versions = sorted({call.version for call in calls} | {*world.effects, *versions})
        calls = [
            call._replace(epoch=epochs.index(call.epoch), version=_rank(versions, call.version))
            for call in calls
        ]
        return world._replace(
            standing=_ranked(standing, epochs, versions),
            copy=None if copy is None else Copy(_ranked(copy.standing, epochs, versions), copy.stopped),
            calls=tuple(sorted(calls)),
            effects=tuple(sorted(_rank(versions, version) for version in world.effects)),
        )


def _ranked(standing: Standing, epochs: list[int], versions: list[int]) -> Standing:
    return Standing(
        standing.state,
        epochs.index(standing.epoch),
        _rank(versions, standing.version),
        standing.maybe,
        standing.permit,
        standing.ending,
    )


def _rank(versions: list[int], version: int) -> int:
    return versions.index(version) if version in versions else 0


def _put(world: World, call: Call, after: Call) -> World:
    """The world with this call changed; one that nobody watches and that is not under way is gone."""
    gone = not after.watched and after.wire is not Wire.FLYING
    others = (other if other is not call else after for other in world.calls)
    return world._replace(calls=tuple(other for other in others if not (gone and other is after)))


def _with_state(standing: Standing, state: State) -> Standing:
    return Standing(state, standing.epoch, standing.version, standing.maybe, standing.permit, standing.ending)


def _story(world: World, came_from: dict[World, tuple[str, World, World]]) -> tuple[tuple[str, World], ...]:
    steps: list[tuple[str, World]] = []
    while world in came_from:
        action, after, world = came_from[world]
        steps.append((action, after))
    return tuple(reversed(steps))


def _in_words(world: World) -> str:
    standing = world.standing
    marks = [
        (standing.maybe, "maybe"),
        (standing.permit, "permit"),
        (standing.ending is not Ending.NONE, f"{standing.ending} pending"),
        (bool(world.effects), f"effects {len(world.effects)}"),
    ]
    return " ".join([f"{standing.state} epoch {standing.epoch}", *(text for so, text in marks if so)])
