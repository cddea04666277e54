"""`events`: what came back from providers and mail servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import CARE, GOOD, QUIET, Screen, counted, when
from sendonce.cli.shell import Shell, command
from sendonce.cli.values import STDIN
from sendonce.core.errors import InvalidInput
from sendonce.ports.store import EventLook

if TYPE_CHECKING:
    from sendonce.pipeline.returned_mail import Returned
    from sendonce.ports.store import StoredEvent

MEANS: Final = {
    EventLook.UNMATCHED: "no delivery of ours is known for it; `sendonce events retry` looks once more",
    EventLook.FAULTY: "it could not be read, or says nothing that can be acted on",
    EventLook.UNCLEAR: "a customer's words that may mean no: read them with `sendonce events show`",
}
WHY: Final = {
    "receipt": "no delivery has its receipt",
    "send_key": "no delivery was sent under its reference",
    "names_nothing": "it names no message and nobody",
    "no_address": "it says of whom, and that is no address",
    "unclear": "it may mean no",
}

MEANINGS: Final = {
    "report": "reports and complaints about messages of ours",
    "unreadable": "about messages of ours and no report: kept as unknown",
    "automatic": "automatic answers: nothing follows",
    "foreign": "without a token of ours: not believed",
    "oversized": "too large, or in too many parts: not read",
}


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="What came back from providers and mail servers: bounces, complaints, answers.",
        no_args_is_help=True,
    )
    command(group, "list")(list_)
    command(group)(show)
    command(group)(retry)
    command(group, "import-mail")(import_mail)
    app.add_typer(group, name="events", rich_help_panel="Operate")


def list_(
    shell: Shell,
    look: Annotated[
        str, typer.Option("--only", help="unmatched, faulty or unclear; otherwise all.", metavar="WORD")
    ] = "",
    after: Annotated[int, typer.Option("--after", help="Go on where the last page ended.", min=0)] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many of each at most.")] = 50,
) -> None:
    """What is left to people: events of no delivery, what could not be read, and replies that may mean no."""
    from sendonce.pipeline.events import left_to_people
    from sendonce.pipeline.record import counts_of_events

    chosen = _looks(look)
    total = shell.read(counts_of_events)
    found = [
        one
        for each in chosen
        for one in shell.read(partial(left_to_people, look=each, after=after, limit=limit))
    ]
    shell.screen.document(
        {
            "counts": {each.name.lower(): total.get(each, 0) for each in EventLook if each != EventLook.DONE},
            "events": [event_document(one) for one in found],
        }
    )
    if found:
        shell.screen.table(
            ("#id", "received", "account", "said", "about", "left because"),
            [
                (
                    one.id,
                    when(one.received_at),
                    one.account or "returned mail",
                    f"{one.kind} {one.code}".strip() if one.code != one.kind else one.kind.value,
                    one.masked or one.receipt or one.send_key[:12] or "nobody",
                    WHY.get(one.why, one.why),
                )
                for one in found
            ],
        )
    left = {each: total.get(each, 0) for each in chosen if total.get(each, 0)}
    for each, count in left.items():
        shell.screen.say(f"{count:,} {each.name.lower()}: {MEANS[each]}", style=CARE)
    if not left:
        shell.screen.say("nothing is left to people")
    if total.get(EventLook.WAITS):
        shell.screen.say(f"{counted(total[EventLook.WAITS], 'event')} to be applied", style=QUIET)


def show(
    shell: Shell,
    id_: Annotated[int, typer.Argument(metavar="ID", help="Its number, as `events list` shows it.")],
) -> None:
    """One event as it was taken in, and what became of it."""
    from sendonce.core.errors import NotFound
    from sendonce.pipeline.events import event

    one = shell.read(lambda tx: event(tx, id_))
    if one is None:
        raise NotFound(f"there is no event {id_}: see `sendonce events list`")
    document = event_document(one)
    shell.screen.document(document)
    for name, value in document.items():
        told = when(value) if name.endswith("_at") and isinstance(value, int) and value else str(value or "-")
        shell.screen.say(f"{name:<12}  {told}")


def retry(
    shell: Shell,
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID...]", help="Their numbers; otherwise all that are unmatched."),
    ] = None,
) -> Exit:
    """Look for the deliveries of events once more. What could not be read has nothing to look for."""
    from sendonce.pipeline.events import SHOWN_MAX, left_to_people
    from sendonce.pipeline.events import retry as again

    done, after = 0, 0
    if ids:
        done = again(shell.store, list(dict.fromkeys(ids)), actor=shell.actor)
    else:
        look = partial(left_to_people, look=EventLook.UNMATCHED, limit=SHOWN_MAX)
        while page := shell.read(partial(look, after=after)):
            after = page[-1].id
            done += again(shell.store, [one.id for one in page], actor=shell.actor)
    shell.screen.document({"retried": done})
    shell.screen.say(
        f"{counted(done, 'event')} to be looked for again" if done else "none of them can be looked for",
        style=GOOD if done else "",
    )
    return Exit.OK if done or not ids else Exit.NOT_FOUND


def event_document(one: StoredEvent) -> dict[str, object]:
    """An event for programs and people. No address is in it that anybody could write to."""
    return {
        "id": one.id,
        "account": one.account,
        "identity": one.identity,
        "kind": one.kind.value,
        "code": one.code,
        "receipt": one.receipt,
        "send_key": one.send_key,
        "tenant": one.tenant,
        "address": one.masked,
        "text": one.text,
        "occurred_at": one.occurred_at,
        "received_at": one.received_at,
        "applied_at": one.applied_at,
        "state": one.look.name.lower(),
        "why": one.why,
        "tries": one.tries,
        "delivery_id": one.delivery_id,
    }


def _looks(word: str) -> list[EventLook]:
    known = {each.name.lower(): each for each in MEANS}
    if not word:
        return list(MEANS)
    if word not in known:
        raise InvalidInput(f"--only {word!r:.40} is none of these: {', '.join(known)}", field="--only")
    return [known[word]]


def import_mail(
    shell: Shell,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A mail, an mbox, a Maildir or a folder of mails; - for standard input."
        ),
    ],
) -> Exit:
    """Take in bounces and complaints that came as mail. Nothing is changed there, and again does no harm."""
    from sendonce.pipeline.returned_mail import take

    done = take(_mails(path), shell.app.read_mail, shell.app.take_in_mail)
    shell.screen.document(
        {"mails": done.mails, "found": dict(done.found), "events": dict(sorted(done.events.items()))}
    )
    _show(shell.screen, done)
    return Exit.OK if done.mails else Exit.NOT_FOUND


def _mails(path: str) -> Iterator[bytes]:
    from sendonce.providers.mail_files import mails_in, mails_of

    if path == STDIN:
        yield from mails_of(sys.stdin.buffer)
        return
    for _, raw in mails_in(Path(path)):
        yield raw


def _show(screen: Screen, done: Returned) -> None:
    if not done.mails:
        screen.say("no mail there", style=CARE)
        return
    screen.say(f"{counted(done.mails, 'mail')} read")
    for found, meaning in MEANINGS.items():
        if count := done.found[found]:
            screen.say(f"  {count:>6}  {meaning}", style=CARE if found in ("unreadable", "oversized") else "")
    if done.events:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(done.events.items()))
        screen.say(f"they say: {said}")
