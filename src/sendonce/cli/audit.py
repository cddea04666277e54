"""`audit`: the key that signs the ledger's blocks, and sealing by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, Screen, counted
from sendonce.cli.shell import Shell, command
from sendonce.core.errors import InvalidInput

if TYPE_CHECKING:
    from sendonce.pipeline.sealed import Sealed

PATIENCE_S: Final = 5.0
"""How long `seal` waits for somebody who writes."""
LOOK_S: Final = 0.1
UNSIGNED: Final = "whoever can write the store can make such blocks; a key under [audit] signs those to come"


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="The seals of the ledger: key, seal.", no_args_is_help=True)
    command(group)(key)
    command(group)(seal)
    app.add_typer(group, name="audit", rich_help_panel="Operate")


def key(
    shell: Shell,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
) -> None:
    """Make a key that signs the ledger's blocks, and show its public half."""
    from sendonce.core.seal import spell_public_key
    from sendonce.signing import make_key

    pem, signer = make_key()
    _write_private(file, pem)
    public = spell_public_key(signer.public)
    shell.screen.document({"file": str(file), "key": signer.key, "public_key": public})
    shell.screen.say(f"{file}: a private key, for its owner alone", style=GOOD)
    shell.screen.say(f'write key = "file:{file}" under [audit] in sendonce.toml')
    shell.screen.say(f"public key {public} (key {signer.key})")
    shell.screen.say(
        "keep the public key where this machine cannot write: who has it can prove what was signed",
        style=QUIET,
    )


def seal(shell: Shell) -> None:
    """Seal now what may be sealed, and make a checkpoint. For those who run no scheduler all day."""
    from sendonce.core.seal import read

    sealer = shell.app.sealer()
    blocks = entries = 0
    until = time.monotonic() + PATIENCE_S
    with shell.screen.progress("sealing") as bar:
        while True:
            if sealed := sealer.seal_one():
                blocks += 1
                entries += read(sealed.header).count
                bar.to(entries)
            elif sealer.waits and time.monotonic() < until:
                time.sleep(LOOK_S)  # a transaction is over in milliseconds
            else:
                break
    sealer.check_point()
    signed = shell.app.signer is not None
    shell.screen.document({"blocks": blocks, "entries": entries, "signed": signed, "waits": sealer.waits})
    shell.screen.say(
        f"{counted(entries, 'entry', 'entries')} sealed in {counted(blocks, 'block')}", style=GOOD
    )
    if sealer.waits:
        shell.screen.say("somebody is writing for long: the rest is sealed when that has ended", style=CARE)
    if not signed:
        shell.screen.say(UNSIGNED, style=CARE)


def prove(shell: Shell, checkpoints: Path | None) -> Sealed:
    """Check the seals, for `verify`. `checkpoints`: another file than the configured one."""
    from sendonce.checkpoints import lines_of
    from sendonce.pipeline.sealed import check_seals

    file = checkpoints or shell.settings.audit.checkpoint_file
    lines = lines_of(file) if file is not None and (checkpoints or file.exists()) else ()
    with shell.screen.progress("verifying the seals") as bar:
        return check_seals(
            shell.store, shell.app.verifier(), lines, progress=lambda so_far: bar.to(so_far.entries)
        )


def document_of(proof: Sealed) -> dict[str, object]:
    return {
        "blocks": proof.blocks,
        "unsigned": proof.unsigned,
        "entries": proof.entries,
        "deleted": proof.deleted,
        "unsealed": proof.unsealed,
        "acts": proof.acts,
        "unsealed_acts": proof.unsealed_acts,
        "checkpoints": proof.checkpoints,
        "faulty": proof.faulty,
        "faults": proof.faults,
    }


def show(screen: Screen, proof: Sealed, *, keys: bool) -> None:
    """`keys`: whether signatures could be checked."""
    blocks = counted(proof.blocks, "block")
    signed = proof.blocks - proof.unsigned
    inside = f"{counted(proof.entries, 'entry', 'entries')} and {counted(proof.acts, 'act')} of people"
    said = f"{blocks} with {inside}, {signed:,} signed"
    points = counted(proof.checkpoints, "checkpoint")
    if proof.ok:
        screen.say(f"{said}, {points}: every seal holds", style=GOOD)
    else:
        screen.say(f"{said}, {points}: {counted(proof.faulty, 'fault')} in the seals", style=BAD)
        screen.table(
            ("where", "#entry", "fault"), [(each.key, each.seq, each.what) for each in proof.faults[:50]]
        )
    if proof.deleted:
        screen.say(
            f"{counted(proof.deleted, 'entry', 'entries')} removed since, each named by a tombstone",
            style=QUIET,
        )
    if proof.unsealed:
        screen.say(f"{counted(proof.unsealed, 'entry', 'entries')} not sealed yet", style=QUIET)
    if signed and not keys:
        screen.say("signatures were not checked: name a key under [audit]", style=CARE)
    if proof.unsigned:
        screen.say(f"{counted(proof.unsigned, 'block')} unsigned: {UNSIGNED}", style=QUIET)


def _write_private(file: Path, text: str) -> None:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InvalidInput(f"{file} exists: a key is never overwritten; name another file") from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written ({error.strerror}): name another file") from None
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(text)
