"""`erase`: a customer who asked to be forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import CARE, GOOD, QUIET, Screen, counted
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.core.errors import Refused

if TYPE_CHECKING:
    from sendonce.pipeline.erasure import Erased


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Reminders")(erase)


def erase(
    shell: Shell,
    customer: Annotated[str, typer.Argument(metavar="CUSTOMER", help="The id that their reminders name.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept, so name nobody in it.")],
    may_write: Annotated[
        bool, typer.Option("--may-write", help="Do not suppress their addresses: they may be scheduled anew.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", "--dry-run", help="Say what would happen, change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="That it cannot be undone is understood.")] = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Forget a customer: end what is not sent, destroy texts, addresses and data, suppress the addresses.

    The ledger keeps ids, times and codes, and still verifies. What is on its way or in doubt ends first, and
    the rest follows by itself. Backups keep what they hold.
    """
    from sendonce.pipeline import erasure

    policy, store = shell.policy, shell.store
    if preview:
        _show(
            shell.screen,
            erasure.preview(store, customer, policy=policy, tenant=tenant, may_write=may_write),
            customer,
        )
        return Exit.OK
    if not yes:
        raise Refused(
            "erasing cannot be undone: look at it with --preview, then say --yes", code="not_confirmed"
        )
    with shell.screen.progress("erasing") as bar:
        done = erasure.erase(
            store,
            customer,
            policy=policy,
            tenant=tenant,
            reason=reason,
            actor=shell.actor,
            may_write=may_write,
            progress=lambda so_far: bar.to(so_far.deliveries),
        )
    overwritten = shell.app.empty_log()
    _show(shell.screen, done, customer, overwritten=overwritten)
    return Exit.PARTLY if done.waiting else Exit.OK


def _show(screen: Screen, done: Erased, customer: str, *, overwritten: bool | None = None) -> None:
    screen.document(
        {
            "customer": customer,
            "preview": done.preview,
            "deliveries": done.deliveries,
            "answers": dict(done.answers),
            "reminders": done.reminders,
            "texts": done.texts,
            "dropped": done.dropped,
            "addresses": done.addresses,
            "others": done.others,
            "waiting": done.waiting,
            "overwritten": overwritten,
        }
    )
    for word, count in sorted(done.answers.items()):
        screen.say(f"{counted(count, 'delivery', 'deliveries')}: {word}")
    would = "would be " if done.preview else ""
    screen.say(
        f"{counted(done.reminders, 'reminder')} and {counted(done.texts, 'text')} {would}destroyed, "
        f"{done.dropped:,} {would}dropped from the outbox, {counted(done.addresses, 'address', 'addresses')} "
        f"{would}suppressed"
    )
    if done.others:
        screen.say(
            f"{counted(done.others, 'delivery', 'deliveries')} of other customers to the same addresses "
            f"{would}suppressed with them; --may-write suppresses none",
            style=CARE,
        )
    if done.waiting:
        screen.say(
            f"{counted(done.waiting, 'delivery is', 'deliveries are')} on the way or in doubt: what they say "
            "goes when they have ended; a scheduler sees to it, or this command again",
            style=CARE,
        )
    if "@" in customer:
        screen.say(
            "the customer's id looks like an address: it stays in delivery keys and in the ledger until "
            "retention removes them (docs/privacy.md)",
            style=CARE,
        )
    if done.preview:
        screen.say("nothing was changed", style=QUIET)
    elif not done.waiting:
        screen.say("erased" if done.changed else "nothing of theirs was left to erase", style=GOOD)
        if overwritten is False:
            screen.say(
                "old copies may still lie in the database's own files: docs/privacy.md says what to do",
                style=QUIET,
            )
