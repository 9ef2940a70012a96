"""`memory export|import`: memory as one file, and facts from such files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click
import msgspec

from vibe_llms.base.exceptions import AttachmentUnreadable, MemoryInvalid, SecretRefused
from vibe_llms.base.files import read_file
from vibe_llms.base.folders import replace_file, storage_errors
from vibe_llms.cli.memory.common import (
    STANDARD,
    count_entries,
    keeping,
    print_json,
    scope_of,
    scope_option,
    with_memory,
)
from vibe_llms.cli.running import interruptible
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import is_terminal, note
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.settings import MemorySettings
from vibe_llms.memory.transfer import (
    LARGEST_BYTES,
    Fault,
    ImportFile,
    ImportResult,
    export_memory,
    import_memory,
    read_export,
)
from vibe_llms.messages.hidden import one_line

_SHOWN_FAULTS = 10


@click.command("export", short_help="Export memory to one file.")
@click.argument("file", default=STANDARD)
@scope_option
@click.option("--all", "everything", is_flag=True, help="Export all scopes.")
@with_memory
async def export(
    memory: Memory, settings: MemorySettings, file: str, scope: str | None, everything: bool
) -> None:
    """Export memory to one JSON FILE, or to standard output, for `memory import`."""
    if everything and scope is not None:
        raise click.UsageError("--all and --scope exclude each other.")
    wanted = None if everything else scope_of(scope, settings)
    data, count = await export_memory(memory, wanted)
    if file == STANDARD:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    _write(Path(file), data)
    note(f"exported {count_entries(count)} to {file}")


@click.command("import", short_help="Import facts from a file.")
@click.argument("file")
@scope_option
@click.option("--dry-run", is_flag=True, help="Show what would be imported; change nothing.")
@click.option("--skip-bad", is_flag=True, help="Skip invalid items and secrets.")
@click.option("-y", "--yes", is_flag=True, help="Import entries that look like secrets too.")
@json_option
@with_memory
async def take(
    memory: Memory,
    settings: MemorySettings,
    file: str,
    scope: str | None,
    dry_run: bool,
    skip_bad: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Import facts from a FILE of `memory export`, or of another program; - reads standard input.

    Each entry goes to its scope in the file, or else to yours; --scope overrides both. Existing
    entries are not changed. If an item is invalid, nothing is imported, unless --skip-bad skips it.
    Entries that look like a password, a key or a card number are imported only if you confirm it,
    or with --yes; --skip-bad skips them.
    """
    home = scope_of(scope, settings)
    name = "standard input" if file == STANDARD else file
    source = read_export(_read(file), home, everything=scope is not None, name=name)
    stopped = bool(source.faults) and not skip_bad and not dry_run
    if stopped and not as_json:
        _print_faults(source.faults)
    if stopped:
        raise MemoryInvalid(
            f"nothing was imported: {len(source.faults)} of "
            f"{len(source.faults) + len(source.entries)} items of {name} cannot be "
            f"remembered, the first one {_describe(source.faults[0])}; "
            "to skip them: --skip-bad"
        )
    entries = source.entries
    if not yes and skip_bad:
        entries = [one for one in entries if one.identity not in source.secrets]
    elif source.secrets and not yes and not dry_run and not _confirm_secrets(source, name):
        note("nothing was imported")
        return 1
    taken = await _import_entries(memory, source, entries, dry_run=dry_run)
    if as_json:
        faults, secrets = (
            [msgspec.to_builtins(one) for one in some]
            for some in (source.faults, source.secrets.values())
        )
        counts = {"new": taken.new, "known": taken.known}
        print_json({**counts, "bad": faults, "secrets": secrets, "dry_run": dry_run})
        return 0
    _print_faults(source.faults)
    if source.secrets and dry_run:
        _print_secrets(source)
    verb = "would import" if dry_run else "imported"
    for name, number in taken.new.items():
        note(f"{verb} {count_entries(number)} into {name}")
    if taken.known or not taken.new:
        note(f"{count_entries(taken.known)} already known")
    return 0


def _write(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():
        raise MemoryInvalid(f"{path} is not a file; for standard output: -")
    with storage_errors(path):
        replace_file(path, data, LARGEST_BYTES)


def _read(file: str) -> bytes:
    if file == STANDARD:
        with interruptible():
            return sys.stdin.buffer.read(LARGEST_BYTES + 1)
    try:
        return read_file(file, LARGEST_BYTES)
    except OSError as error:
        raise AttachmentUnreadable(f"{file}: {error.strerror}") from error


def _print_faults(faults: Collection[Fault], indent: str = "") -> None:
    for fault in list(faults)[:_SHOWN_FAULTS]:
        note(f"{indent}{_describe(fault)}")
    if len(faults) > _SHOWN_FAULTS:
        note(f"{indent}and {len(faults) - _SHOWN_FAULTS} more; to see all: --dry-run --json")


def _confirm_secrets(source: ImportFile, name: str) -> bool:
    """Ask at the terminal whether to import entries that look like secrets."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        first = next(iter(source.secrets.values()))
        raise SecretRefused(
            f"{_describe(first)}; {len(source.secrets)} of {len(source.entries)} entries of {name} "
            "look like secrets, and nothing was imported; to import them: --yes; to skip them: "
            "--skip-bad"
        )
    _print_secrets(source)
    with interruptible():
        return click.confirm("Import them anyway?", err=True)


def _print_secrets(source: ImportFile) -> None:
    count = len(source.secrets)
    look = "looks like a secret" if count == 1 else "look like secrets"
    note(f"{count_entries(count)} {look}:")
    _print_faults(source.secrets.values(), "  ")


def _describe(fault: Fault) -> str:
    return f"memories[{fault.index}], line {fault.line}: {one_line(fault.reason)}"


async def _import_entries(
    memory: Memory, source: ImportFile, entries: Sequence[Entry], *, dry_run: bool
) -> ImportResult:
    """Import entries; show the progress on a terminal, and report it if the import ends early."""
    total, taken = len(entries), 0

    def show_progress(done: int) -> None:
        nonlocal taken
        taken = done
        if 0 < done < total and is_terminal(sys.stderr):
            note(f"{done} of {total}", dim=True)

    def describe() -> str:
        return f"imported {taken} of {total} so far; run it again to continue"

    try:
        with keeping(describe):
            return await import_memory(
                memory,
                entries,
                dry_run=dry_run,
                keep_secrets=True,
                vectors=source.vectors,
                last_deduplicated=source.last_deduplicated,
                progress=show_progress,
            )
    except asyncio.CancelledError:
        if not dry_run:
            note(describe())
        raise
