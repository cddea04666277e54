"""console: how long a page takes beside millions of rows, what it weighs, what lookers-on cost the workers.

The store holds what a year leaves behind: finished deliveries, as many each day, a share of them dead letters
and a share one campaign of the last day, and waiting ones, some due within the day and some queued. Pages are
asked for over HTTP by somebody who signed in with a key, so the times hold the way there and back. What
stands behind the overview is looked up every two seconds at most, so it is also timed by itself, each time
anew. Then one worker drains the queue, in turns with and without people who look: some watch the overview,
others search and read.
"""

from __future__ import annotations

import http.client
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final
from urllib.parse import urlencode

from bench import machine
from bench.api import served
from bench.crowd import beside, make_crowd
from bench.door import Door, cheap_door
from bench.future import claim_all, settle_all
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, Subject, publish, sendonce
from sendonce.app import App
from sendonce.core.access import Scope
from sendonce.core.outcome import Accepted, Outcome, Reason, Rejected
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.forecast import forecast
from sendonce.pipeline.gauges import gauges
from sendonce.pipeline.minutes import minutes
from sendonce.pipeline.overview import overview
from sendonce.ports.store import Tx

FINISHED: Final = 200_000
WAITING: Final = 50_000
FULL: Final = 10
"""The sizes of the targets are so many times those."""
DEAD_SHARE: Final = 0.01
GROUP_SHARE: Final = 0.01
QUEUED_SHARE: Final = 0.8
DAY_S: Final = 86_400
YEAR_S: Final = 365 * DAY_S
GROUP: Final = "autumn"
ASKED: Final = 60
"""Requests of each page; of those that count, as many as of what is looked up anew."""
LOOKS: Final = 20
TURNS: Final = 3
TURN_S: Final = 0.5
"""Short enough that the queue outlasts all turns."""
FULL_TURN_S: Final = 8.0
WATCHERS: Final = 10
REFRESH_S: Final = 5.0
READERS: Final = 2
READ_S: Final = 1.0
PAGE_MS: Final = 100
FIND_MS: Final = 50
WEIGHT_KB: Final = 150

_PAGES: Final[Mapping[str, str]] = {
    "overview": "the overview",
    "story": "the story of a delivery",
    "customer": "a customer",
    "group": "a group, 1 % of the finished",
    "dead": "dead letters by reason",
    "dead_list": "dead letters of one reason",
    "accounts": "accounts",
}
_COUNTED: Final[Mapping[str, str]] = {"report": "the report of the day, which counts all that was due"}
"""Pages that take as long as there is to count: told, and held to no bound."""
_KEYS: Final = ("reminder", "delivery", "customer", "phone", "receipt", "nothing")
_BEHIND: Final[Mapping[str, Callable[[App, Tx], object]]] = {
    "look": lambda app, tx: (overview(tx, app.policy), minutes(tx)),
    "ahead": lambda app, tx: forecast(tx, app.policy),
    "gauges": lambda app, tx: gauges(tx, app.policy),
}

FIGURES: Final = (
    Figure("finished", "", "finished deliveries in the store"),
    Figure("waiting", "", "waiting ones"),
    *(
        Figure(f"{name}_p95", "ms", f"{what}: 95 of 100 within", digits=1, at_most=PAGE_MS)
        for name, what in _PAGES.items()
    ),
    *(Figure(f"{name}_p95", "ms", f"{what}: 95 of 100 within", digits=1) for name, what in _COUNTED.items()),
    *(
        Figure(f"find_{name}_p95", "ms", f"search by {name}: 95 of 100 within", digits=1, at_most=FIND_MS)
        for name in _KEYS
    ),
    Figure("look", "ms", "behind the overview, each time anew: the median", digits=1),
    Figure("ahead", "ms", "the forecast of a day, each time anew: the median", digits=1),
    Figure("gauges", "ms", "what stands in the store for /metrics: the median", digits=1),
    Figure("weight", "KB", "the heaviest page with its style, script and icon", digits=1, at_most=WEIGHT_KB),
    Figure("alone", "/s", "deliveries a second of one worker, nobody looks"),
    Figure("cost", "%", f"of it lost while {WATCHERS} watch and {READERS} read", digits=1, at_most=2),
    Figure("others", "cores", "used by others while the worker was timed", digits=2, worst=True),
)


def run(scale: Scale) -> Mapping[str, float]:
    times = FULL if scale.full else 1
    with cheap_door() as door, sendonce(Account(door.url), scale.store) as subject:
        _fill(subject, FINISHED * times, WAITING * times)
        with served(subject, scopes=(Scope.READ, Scope.OPERATE)) as (_, port, token):
            figures = _pages(port, token)
            with subject.open() as app:
                figures |= {name: _behind(app, work) for name, work in _BEHIND.items()}
            figures |= _beside_workers(
                subject, door, port, token, turn_s=FULL_TURN_S if scale.full else TURN_S
            )
    return {"finished": FINISHED * times, "waiting": WAITING * times, **figures}


# The store


def _fill(subject: Subject, finished: int, waiting: int) -> None:
    accepted, campaign, dead, scheduled, queued = _patterns(subject)
    database = beside(subject)
    deaths, grouped = round(finished * DEAD_SHARE), round(finished * GROUP_SHARE)
    rest = round(waiting * QUEUED_SHARE)
    make_crowd(database, accepted, finished - deaths - grouped, first=10_000_000, spread_s=-YEAR_S)
    make_crowd(database, campaign, grouped, first=50_000_000)
    make_crowd(database, dead, deaths, first=20_000_000, spread_s=-YEAR_S)
    make_crowd(database, scheduled, waiting - rest, first=30_000_000, spread_s=DAY_S)
    make_crowd(database, queued, rest, first=40_000_000)
    database.done()
    database.close()


def _patterns(subject: Subject) -> Sequence[int]:
    """The ids of real deliveries: accepted, accepted in a campaign, dead, due within the day, and queued."""
    outcomes: Mapping[str, Outcome] = {
        "sent": Accepted("m1", "http_202"),
        "campaign": Accepted("m2", "http_202"),
        "dead": Rejected(Reason.BLOCKED, "550"),
    }
    with subject.open() as app:
        for name, outcome in outcomes.items():
            _take_in(subject, app, name)
            publish(app)
            claims: list[Claim] = []
            claim_all(app, claims)
            settle_all(app, claims, outcome)
        _take_in(subject, app, "queued")
        publish(app)
        _take_in(subject, app, "later", due="in 10m")
        return [_id(app, name) for name in ("sent", "campaign", "dead", "later", "queued")]


def _take_in(subject: Subject, app: App, name: str, due: str = "now") -> None:
    path = subject.folder / "pattern.csv"
    path.write_text(
        "reminder,customer,phone,due,template,group,name,parcel\n"
        f"{name},{name},+12025550123,{due},parcel,{GROUP if name == 'campaign' else ''},Ada Example,1\n",
        "utf-8",
    )
    report = subject.take_in(app, path)
    assert report.deliveries == 1, report.problems


def _id(app: App, name: str) -> int:
    named = {"tenant": "default", "reminder": name}
    (found,) = app.store.read(lambda tx: tx.deliveries.matching("reminder", named, 1, 0))
    return found.id


# Pages


class Person:
    """Somebody who is signed in with a key."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._cookies: dict[str, str] = {}
        form = self.get("/console/sign-in")
        found = re.search(r'name="token" value="([^"]+)"', form)
        assert found is not None, form[:300]
        self._ask("POST", "/console/sign-in", urlencode({"token": found[1], "key": token}), 303)

    def get(self, path: str) -> str:
        return self._ask("GET", path, None, 200)

    def timed(self, path: str) -> float:
        """Milliseconds."""
        begun = time.perf_counter()
        self.get(path)
        return (time.perf_counter() - begun) * 1_000

    def weight(self, path: str) -> int:
        """The bytes of a page and of what it loads from us."""
        text = self.get(path)
        parts = set(re.findall(r'(?:href|src)="(/console/static/[^"]+)"', text))
        return len(text.encode()) + sum(len(self.get(part).encode()) for part in parts)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: str | None, status: int) -> str:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        assert answer.status == status, (path, answer.status, text[:300])
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                own, _, rest = value.partition("=")
                self._cookies[own] = rest.partition(";")[0]
        return text


def _pages(port: int, token: str) -> dict[str, float]:
    person = Person(port, token)
    figures: dict[str, float] = {}
    for name in (*_PAGES, *_COUNTED):
        person.get(_page(name, 0))  # the first one of a process compiles its template
        asked = ASKED if name in _PAGES else LOOKS
        figures[f"{name}_p95"] = _p95([person.timed(_page(name, number)) for number in range(asked)])
    for name in _KEYS:
        figures[f"find_{name}_p95"] = _p95([person.timed(_search(name, number)) for number in range(ASKED)])
    figures["weight"] = max(person.weight(_page(name, 1)) for name in _PAGES) / 1_024
    person.close()
    return figures


def _page(name: str, number: int) -> str:
    crowd = f"crowd-{10_000_001 + number * 97}"
    query = {
        "story": {"of": f"{crowd}:{crowd}:sms"},
        "customer": {"id": crowd},
        "group": {"name": GROUP},
        "dead_list": {"template": "parcel"},
    }.get(name, {})
    return f"/console/{name.removesuffix('_list')}?{urlencode(query)}"


def _search(name: str, number: int) -> str:
    crowd = f"crowd-{10_000_001 + number * 89}"
    asked = {
        "delivery": f"{crowd}:{crowd}:sms",
        "phone": f"+1202555{number:04}",
        "nothing": f"there-is-no-{number}",
    }
    return f"/console/find?{urlencode({'q': asked.get(name, crowd)})}"


def _behind(app: App, work: Callable[[App, Tx], object]) -> float:
    took = []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        app.store.read(partial(work, app))
        took.append((time.perf_counter() - begun) * 1_000)
    return statistics.median(took)


def _p95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20)[18]


# Beside the workers


def _beside_workers(
    subject: Subject, door: Door, port: int, token: str, *, turn_s: float
) -> dict[str, float]:
    alone, looked_at = [], []
    people = [Person(port, token) for _ in range(WATCHERS + READERS)]  # before anything is timed
    with subject.workers(1) as (worker,):
        while not door.count():
            time.sleep(0.05)
        time.sleep(1.0)  # it has found its pace
        watched = machine.Span([worker, *([door.process] if door.process else [])])
        for _ in range(TURNS):
            alone.append(_rate(door, turn_s))
            with _looking(people):
                looked_at.append(_rate(door, turn_s))
        watched.end()
    for person in people:
        person.close()
    if min(alone) <= 0 or min(looked_at) <= 0:
        raise RuntimeError("the queue ran dry before the last turn: make more of it wait, or turns shorter")
    rate = statistics.median(alone)
    return {
        "alone": rate,
        "cost": (1.0 - statistics.median(looked_at) / rate) * 100,
        "others": watched.others_cores,
    }


def _rate(door: Door, span_s: float) -> float:
    before, begun = door.count(), time.perf_counter()
    time.sleep(span_s)
    return (door.count() - before) / (time.perf_counter() - begun)


@contextmanager
def _looking(people: Sequence[Person]) -> Iterator[None]:
    """They look until it ends, each at its own pace and none at the same moment."""
    over = threading.Event()
    faults: list[BaseException] = []

    def looks(person: Person, every_s: float, after_s: float, paths: Callable[[int], str]) -> None:
        try:
            over.wait(after_s)
            number = 0
            while not over.is_set():
                person.get(paths(number))
                number += 1
                over.wait(every_s)
        except (AssertionError, OSError) as error:
            faults.append(error)

    def reads(number: int) -> str:
        return _search("customer", number) if number % 2 else _page("story", number)

    paces = [
        *((REFRESH_S, REFRESH_S * n / WATCHERS, partial(_page, "overview")) for n in range(WATCHERS)),
        *((READ_S, READ_S * n / READERS, reads) for n in range(READERS)),
    ]
    work = [(person, *pace) for person, pace in zip(people, paces, strict=True)]
    threads = [threading.Thread(target=looks, args=each) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not faults, faults[0]


MEASUREMENT: Final = Measurement(
    "console",
    f"pages beside {FINISHED:,} finished and {WAITING:,} waiting deliveries (with --full {FULL} times them)",
    FIGURES,
    run,
)
