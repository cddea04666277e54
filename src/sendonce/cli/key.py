"""`key`: who may use the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.screen import CARE, GOOD, QUIET, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.core.access import RATE_DEFAULT, Scope, write_scopes
from sendonce.core.duration import parse_duration

if TYPE_CHECKING:
    from sendonce.core.access import ApiKey
    from sendonce.pipeline.api_keys import Made

Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Of the key, as `key list` shows it.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Keys of the HTTP API: add, list, rotate, revoke.", no_args_is_help=True)
    command(group)(add)
    command(group, "list")(list_)
    command(group)(rotate)
    command(group)(revoke)
    app.add_typer(group, name="key", rich_help_panel="Operate")


def add(
    shell: Shell,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses it, such as shop-backend.")],
    scope: Annotated[
        list[Scope],
        typer.Option("--scope", help="What it is for; again for more. None implies another."),
    ],
    rate: Annotated[int, typer.Option("--rate", help="Requests a second.")] = RATE_DEFAULT,
    expires: Annotated[
        str,
        typer.Option("--expires", metavar="TIME", help='How long it holds, such as "90d"; else for ever.'),
    ] = "",
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """Make a key for one tenant. It is shown this once: only a hash of it is kept."""
    from sendonce.pipeline import api_keys

    life_s = parse_duration(expires, field="--expires") if expires else 0.0
    made = api_keys.add(shell.store, name, scope, actor=shell.actor, tenant=tenant, rate=rate, life_s=life_s)
    _show_made(shell, made)


def list_(
    shell: Shell,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose; otherwise everybody's.")] = "",
) -> None:
    """All keys, by their prefixes: what for, until when, and when last used."""
    from sendonce.pipeline import api_keys

    now = shell.now
    keys = api_keys.list_keys(shell.store, tenant=tenant)
    shell.screen.document({"keys": [key_document(key, now) for key in keys]})
    if not keys:
        shell.screen.say("no keys yet: `sendonce key add NAME --scope schedule`")
        return
    shell.screen.table(
        ("prefix", "name", "tenant", "scopes", "#a second", "expires", "last used", "state"),
        [
            (
                key.prefix,
                key.name,
                key.tenant,
                write_scopes(key.scopes),
                key.rate,
                when(key.expires_at) if key.expires_at else "-",
                when(key.used_at) if key.used_at else "-",
                _state(key, now),
            )
            for key in keys
        ],
    )


def rotate(
    shell: Shell,
    prefix: Prefix,
    reason: Reason,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="How long the old one goes on.")
    ] = "24h",
) -> None:
    """Make a new key in the place of one, which goes on for a while. The new one is shown this once."""
    from sendonce.pipeline import api_keys

    overlap_s = parse_duration(overlap, field="--overlap")
    made = api_keys.rotate(shell.store, prefix, reason=reason, actor=shell.actor, overlap_s=overlap_s)
    _show_made(shell, made)


def revoke(shell: Shell, prefix: Prefix, reason: Reason) -> None:
    """End a key. Processes that serve the API know it within a second."""
    from sendonce.pipeline import api_keys

    key = api_keys.revoke(shell.store, prefix, reason=reason, actor=shell.actor)
    shell.screen.document(key_document(key, shell.now))
    shell.screen.say(f"key {prefix} ({key.name}) holds no more", style=GOOD)


def key_document(key: ApiKey, now: int) -> dict[str, object]:
    return {
        "prefix": key.prefix,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": write_scopes(key.scopes).split(","),
        "rate": key.rate,
        "state": _state(key, now),
        "created_at": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "used_at": key.used_at,
        "revoked_at": key.revoked_at,
    }


def _state(key: ApiKey, now: int) -> str:
    if key.revoked_at:
        return "revoked"
    return "valid" if key.is_valid(now) else "expired"


def _show_made(shell: Shell, made: Made) -> None:
    shell.screen.document({"token": made.token, **key_document(made.key, shell.now)})
    shell.screen.say(made.token)
    shell.screen.say(
        f"{made.key.name}, tenant {made.key.tenant}: {write_scopes(made.key.scopes)}", style=QUIET
    )
    shell.screen.say("it cannot be shown again: keep it where secrets are kept", style=CARE)
