"""Every page and every form of the console, with the scope that it takes: the map of the console.

A form is sent to the path that its token is for. What a page links to stands under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.forms import Done
from sendonce.console.page import ROOT, Page
from sendonce.console.views import (
    accounts,
    audit,
    customer,
    dead,
    find,
    groups,
    keys,
    overview,
    passes,
    preferences,
    story,
    templates,
    uncertain,
    work,
)
from sendonce.core.access import Scope

View = Callable[[Asked], Page | Done]


@dataclass(frozen=True, slots=True)
class Route:
    """`watches`: it shows or changes what concerns the whole installation."""

    view: View
    scope: Scope
    watches: bool = False


_READ: Final[Mapping[str, Route]] = {
    "overview": Route(overview.show, Scope.READ, watches=True),
    "find": Route(find.show, Scope.READ),
    "story": Route(story.show, Scope.READ),
    "customer": Route(customer.show, Scope.READ),
    "group": Route(groups.show, Scope.READ),
    "dead": Route(dead.show, Scope.READ),
    "dead-letter": Route(dead.one, Scope.READ),
    "redrive": Route(dead.preview, Scope.OPERATE),
    "work": Route(work.show, Scope.OPERATE),
    "uncertain": Route(uncertain.show, Scope.READ),
    "resolution": Route(uncertain.preview, Scope.OPERATE),
    "accounts": Route(accounts.show, Scope.READ, watches=True),
    "account": Route(accounts.one, Scope.READ, watches=True),
    "move": Route(accounts.preview, Scope.ADMIN, watches=True),
    "passes": Route(passes.show, Scope.READ, watches=True),
    "report": Route(passes.report, Scope.READ),
    "templates": Route(templates.show, Scope.READ),
    "template": Route(templates.one, Scope.READ),
    "preferences": Route(preferences.show, Scope.READ),
    "audit": Route(audit.show, Scope.ADMIN, watches=True),
    "keys": Route(keys.show, Scope.ADMIN),
}

_CHANGE: Final[Mapping[str, Route]] = {
    "unmask": Route(story.unmask, Scope.CANCEL),
    "cancel": Route(customer.cancel, Scope.CANCEL),
    "again": Route(story.again, Scope.SCHEDULE),
    "correct": Route(customer.correct, Scope.SCHEDULE),
    "redrive": Route(dead.redrive, Scope.OPERATE),
    "resolve": Route(uncertain.resolve, Scope.OPERATE),
    "resolution": Route(uncertain.resolve_all, Scope.OPERATE),
    "pause": Route(accounts.pause, Scope.OPERATE),
    "resume": Route(accounts.resume, Scope.OPERATE),
    "move": Route(accounts.move, Scope.ADMIN, watches=True),
    "limits": Route(accounts.limits, Scope.ADMIN, watches=True),
    "pass": Route(passes.run, Scope.OPERATE, watches=True),
    "preference": Route(preferences.record, Scope.CANCEL),
    "preference-removal": Route(preferences.remove, Scope.CANCEL),
    "key": Route(keys.add, Scope.ADMIN),
    "key-revocation": Route(keys.revoke, Scope.ADMIN),
}

ROUTES: Final[Mapping[tuple[str, str], Route]] = {
    **{("GET", f"{ROOT}/{name}"): route for name, route in _READ.items()},
    **{("POST", f"{ROOT}/{name}"): route for name, route in _CHANGE.items()},
}
"""By method and path. Reading changes nothing."""
