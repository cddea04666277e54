"""peers: the same work, done by sendonce and by what a user would pick instead, measured in the same run.

Everybody goes through the same rounds (`rounds`), sends to the same door, which takes 20 ms, and stands on
servers that flush to disk (`service`). Each peer has a program of its own in `programs/`, written as its
documentation recommends for throughput, in an environment of its own in `.bench/`. The settings that matter:

    pace    the peer's own limiter; where that is one for each process, each gets its share
    kill    what tells that a worker is dead at 10 s, the lease of ours, where that can be set
    future  a look for what is due every second, where that can be set

What cannot be had on a machine (Redis, RabbitMQ, Node, the network) keeps its row, with the reason. None of
the peers keeps a ledger, asks for consent, or knows what a lost answer means.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from bench import machine
from bench.door import no_cheap_door
from bench.measurement import Scale
from bench.peers.contender import Contender, Work
from bench.peers.own import contenders
from bench.peers.program import PEERS
from bench.peers.rounds import BOUNDED, FULL, LIMIT, ROUNDS, Round, Taken
from bench.peers.table import Comparison, Line

QUIET_S: Final = 3.0
NAMES: Final = tuple(peer.name for peer in PEERS)

__all__ = ["NAMES", "ROUNDS", "Comparison", "compare"]


def compare(
    scale: Scale, stores: Sequence[str], *, rounds: Sequence[str], names: Sequence[str]
) -> Iterator[Comparison]:
    """Each of these rounds with sendonce on these stores and the peers of these names."""
    all_of_them: list[Contender] = [*contenders(stores), *(peer for peer in PEERS if peer.name in names)]
    for name in rounds:
        one = ROUNDS[name]
        who = [contender for contender in all_of_them if name in contender.rounds]
        yield Comparison(one, [_line(one, contender, scale) for contender in who])


def _line(one: Round, contender: Contender, scale: Scale) -> Line:
    print(f"{one.name}: {contender.title}", file=sys.stderr, flush=True)
    line = partial(Line, contender.name, contender.title, contender.is_ours)
    work = Work("", limit=LIMIT if one.name == "pace" else 0)
    why_not = no_cheap_door() or contender.why_not(work)
    if why_not:
        return line(why_not=why_not)
    runs: list[Taken] = []
    for _ in range(scale.runs):
        machine.wait_until_quiet(QUIET_S)
        try:
            runs.append(one.take(contender, FULL if scale.full else BOUNDED))
        except Exception as error:  # whatever one of them does, the others are measured
            return line(runs=runs, why_not=f"{type(error).__name__}: {error}")
    return line(runs=runs)
