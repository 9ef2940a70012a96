"""`memory export|import`: what is remembered as one file, and what such a file holds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from vibe_llms.cli.memory.opening import (
    STANDARD,
    json_option,
    keeping,
    open_memory,
    print_json,
    scope_of,
    scope_option,
)
from vibe_llms.cli.running import interruptible, run
from vibe_llms.cli.terminal import is_terminal, note, one_line
from vibe_llms.exceptions import AttachmentUnreadable, MemoryInvalid, SecretRefused
from vibe_llms.files import read_file
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.transfer import (
    LARGEST_BYTES,
    Fault,
    Parcel,
    Taken,
    export_memory,
    read_export,
    take_in,
)
from vibe_llms.storage.files import replace_file, storage_errors

_SHOWN_FAULTS = 10


@click.command("export", short_help="Write what is remembered into one file.")
@click.argument("file", default=STANDARD)
@scope_option
@click.option("--all", "everything", is_flag=True, help="Everything, of all scopes.")
def export(file: str, scope: str | None, everything: bool) -> int:
    """Write what is remembered into one JSON FILE, or to standard output.

    `memory import` takes it in again, here or elsewhere.
    """
    if everything and scope is not None:
        raise click.UsageError("--all and --scope exclude each other.")

    async def work() -> int:
        async with open_memory() as (store, settings):
            wanted = None if everything else scope_of(scope, settings)
            data, count = await export_memory(store, wanted)
        if file == STANDARD:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            return 0
        _write(Path(file), data)
        note(f"exported {_count(count)} to {file}")
        return 0

    return run(work())


@click.command("import", short_help="Import facts from a file.")
@click.argument("file")
@scope_option
@click.option("--dry-run", is_flag=True, help="Only print what would be imported.")
@click.option("--skip-bad", is_flag=True, help="Leave out what cannot be remembered.")
@click.option("-y", "--yes", is_flag=True, help="Import entries that look like secrets, too.")
@json_option
def take(
    file: str, scope: str | None, dry_run: bool, skip_bad: bool, yes: bool, as_json: bool
) -> int:
    """Remember what a FILE of `memory export` holds, or the like of another program.

    Each entry comes into the scope that the file tells, else into yours; with --scope all of them
    come into that one. What is there already stays as it is. Nothing is imported from a file with
    an item that cannot be remembered, unless --skip-bad leaves it out. Entries that look like a
    password, a key or a card number are imported only if you confirm it, or with --yes; --skip-bad
    leaves them out.
    """

    async def work() -> int:
        async with open_memory() as (store, settings):
            home = scope_of(scope, settings)
            name = "standard input" if file == STANDARD else file
            parcel = read_export(_read(file), home, everything=scope is not None, name=name)
            stopped = bool(parcel.faults) and not skip_bad and not dry_run
            if stopped and not as_json:
                _tell_faults(parcel)
            if stopped:
                raise MemoryInvalid(
                    f"nothing was imported: {len(parcel.faults)} of "
                    f"{len(parcel.faults) + len(parcel.entries)} items of {name} cannot be "
                    f"remembered, the first one {_describe(parcel.faults[0])}; "
                    "leave such out: --skip-bad"
                )
            entries = parcel.entries
            if not yes and skip_bad:
                entries = [one for one in entries if one.identity not in parcel.secrets]
            elif parcel.secrets and not yes and not dry_run and not _confirm_secrets(parcel, name):
                note("nothing was imported")
                return 1
            taken = await _take_in(store, parcel, entries, dry_run=dry_run)
        if as_json:
            faults, secrets = (
                [msgspec.to_builtins(one) for one in some]
                for some in (parcel.faults, parcel.secrets.values())
            )
            counts = {"new": taken.new, "known": taken.known}
            print_json({**counts, "bad": faults, "secrets": secrets, "dry_run": dry_run})
            return 0
        _tell_faults(parcel)
        if parcel.secrets and dry_run:
            _tell_secrets(parcel)
        verb = "would import" if dry_run else "imported"
        for name, number in taken.new.items():
            note(f"{verb} {_count(number)} into {name}")
        if taken.known or not taken.new:
            note(f"{_count(taken.known)} there already")
        return 0

    return run(work())


def _write(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():
        raise MemoryInvalid(f"{path} is no file; to standard output: -")
    with storage_errors(path):
        replace_file(path, data)


def _read(file: str) -> bytes:
    if file == STANDARD:
        with interruptible():
            return sys.stdin.buffer.read(LARGEST_BYTES + 1)
    try:
        return read_file(file, LARGEST_BYTES)
    except OSError as error:
        raise AttachmentUnreadable(f"{file}: {error.strerror}") from error


def _tell_faults(parcel: Parcel) -> None:
    for fault in parcel.faults[:_SHOWN_FAULTS]:
        note(_describe(fault))
    if len(parcel.faults) > _SHOWN_FAULTS:
        note(f"and {len(parcel.faults) - _SHOWN_FAULTS} more; all of them: --dry-run --json")


def _confirm_secrets(parcel: Parcel, name: str) -> bool:
    """Whether the person at the terminal wants the secrets of a file imported, too."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        first = next(iter(parcel.secrets.values()))
        raise SecretRefused(
            f"{_describe(first)}; {len(parcel.secrets)} of {len(parcel.entries)} entries of {name} "
            "look like secrets, and nothing was imported; to import them: --yes; to leave them "
            "out: --skip-bad"
        )
    _tell_secrets(parcel)
    with interruptible():
        return click.confirm("Import them anyway?", err=True)


def _tell_secrets(parcel: Parcel) -> None:
    count = len(parcel.secrets)
    note(f"{_count(count)} {'looks like a secret' if count == 1 else 'look like secrets'}:")
    for fault in list(parcel.secrets.values())[:_SHOWN_FAULTS]:
        note(f"  {_describe(fault)}")
    if count > _SHOWN_FAULTS:
        note(f"  and {count - _SHOWN_FAULTS} more; all of them: --dry-run --json")


def _describe(fault: Fault) -> str:
    return f"memories[{fault.index}], line {fault.line}: {one_line(fault.reason)}"


async def _take_in(
    store: Memory, parcel: Parcel, entries: Sequence[Entry], *, dry_run: bool
) -> Taken:
    """Remember entries; tells on a terminal how far it is, and what was kept where it ends early.

    What is there stays there: the same once more goes on.
    """
    total, taken = len(entries), 0

    def tell_progress(done: int) -> None:
        nonlocal taken
        taken = done
        if 0 < done < total and is_terminal(sys.stderr):
            note(f"{done} of {total}", dim=True)

    def describe() -> str:
        return f"imported {taken} of {total} so far; the same command once more goes on"

    try:
        with keeping(describe):
            return await take_in(
                store,
                entries,
                dry_run=dry_run,
                keep_secrets=True,
                vectors=parcel.vectors,
                last_deduplicated=parcel.last_deduplicated,
                progress=tell_progress,
            )
    except asyncio.CancelledError:
        if not dry_run:
            note(describe())
        raise


def _count(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
