"""`memory add|search|list|show|rm|log`: single facts, and their changes."""

from __future__ import annotations

import sys

import click
import msgspec

from vibe_llms.cli.completion import complete_facts
from vibe_llms.cli.memory.common import (
    ask_before_secrets,
    describe_deleted,
    encode_entry,
    fit,
    keeping,
    local_time,
    only_scope_option,
    print_entry,
    print_json,
    print_note,
    progress,
    scope_of,
    scope_option,
    secrets_option,
    short_identity,
    visible_scopes,
    with_memory,
    words_argument,
)
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, write, write_lines
from vibe_llms.memory.core import Memory
from vibe_llms.memory.descriptions import FoundEntry, MemoryChange
from vibe_llms.memory.entries import GLOBAL, Entry
from vibe_llms.memory.history import survey_changes
from vibe_llms.memory.settings import MemorySettings
from vibe_llms.messages.hidden import one_line


@click.command("add", short_help="Remember a fact.")
@words_argument("text")
@scope_option
@click.option(
    "--importance",
    type=click.FloatRange(0, 1),
    metavar="NUMBER",
    default=0.5,
    show_default=True,
    help="Set how much it matters.",
)
@click.option("--category", default="", help="Set its category, one word.")
@click.option("--topic", "topics", multiple=True, help="Add a topic; can be repeated.")
@secrets_option
@json_option
@with_memory
async def add(
    memory: Memory,
    settings: MemorySettings,
    text: str,
    scope: str | None,
    importance: float,
    category: str,
    topics: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Remember a fact; - reads standard input. Adding a fact again changes nothing.

    Text that looks like a password, a key or a card number is stored only if you confirm it, or
    with --yes.
    """

    async def add_entry(keep_secrets: bool) -> Entry:
        with keeping(lambda: "nothing was remembered"), progress("remembering"):
            return await memory.add(
                text,
                scope=scope_of(scope, settings),
                importance=importance,
                category=category,
                topics=topics,
                keep_secrets=keep_secrets,
            )

    entry = await ask_before_secrets(add_entry, yes=yes)
    # Printed before memory is closed, which may take a while, or fail.
    if as_json:
        print_json(encode_entry(entry))
    else:
        note(f"remembered as {short_identity(entry)}")


@click.command("search", short_help="Search memory.")
@words_argument("question")
@scope_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print at most N entries.")
@click.option("--explain", is_flag=True, help="Print the parts of each score.")
@json_option
@with_memory
async def search(
    memory: Memory,
    settings: MemorySettings,
    question: str,
    scope: str | None,
    limit: int | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Search your entries and global ones; prints the best match first."""
    scopes = [scope_of(scope, settings)]
    if scope is None:
        scopes.append(GLOBAL)
    chosen = settings if limit is None else msgspec.structs.replace(settings, limit=limit)
    with progress("searching"):
        found = await memory.search(question, scopes=scopes, settings=chosen)
    if as_json:
        print_json([msgspec.to_builtins(FoundEntry.of_recollection(one)) for one in found])
        return
    for one in found:
        print_entry(one.entry)
        if explain:
            parts = ", ".join(f"{name} {value:.2f}" for name, value in one.reasons.items())
            note(f"    {one.score:.2f}: {parts}", dim=True)
    if not found:
        note("no matching entries")


@click.command("list", short_help="List entries, oldest first.")
@scope_option
@json_option
@with_memory
async def list_entries(
    memory: Memory, settings: MemorySettings, scope: str | None, as_json: bool
) -> None:
    """List the entries of a scope, oldest first."""
    entries = await memory.survey(scope_of(scope, settings))
    if as_json:
        print_json([encode_entry(entry) for entry in entries])
        return
    for entry in entries:
        print_entry(entry)
    if not entries:
        note("no entries yet; add one: vibe-llms memory add TEXT")


@click.command("show", short_help="Show an entry.")
@click.argument("identity", metavar="ID", shell_complete=complete_facts)
@only_scope_option
@json_option
@with_memory
async def show(
    memory: Memory, settings: MemorySettings, identity: str, scope: str | None, as_json: bool
) -> None:
    """Show an entry and its metadata."""
    scopes = await visible_scopes(memory, settings, scope)
    entry = await memory.access(identity, scopes=scopes)
    if as_json:
        print_json(encode_entry(entry))
        return
    write_lines(entry.content)
    for name, value in encode_entry(entry).items():
        if name != "content" and value not in ("", (), {}):
            words = ", ".join(value) if isinstance(value, tuple) else value
            note(f"{name}: {one_line(str(words))}", dim=True)


@click.command("rm", short_help="Delete entries.")
@click.argument(
    "identities", nargs=-1, required=True, metavar="ID...", shell_complete=complete_facts
)
@only_scope_option
@json_option
@with_memory
async def remove(
    memory: Memory,
    settings: MemorySettings,
    identities: tuple[str, ...],
    scope: str | None,
    as_json: bool,
) -> None:
    """Delete entries: they are no longer found, but their files are kept as deleted.

    If an entry does not exist, nothing is deleted. To remove entries completely, use `forget`.
    """
    scopes = await visible_scopes(memory, settings, scope)
    found = [await memory.access(one, scopes=scopes) for one in identities]
    gone: list[Entry] = []
    for entry in {one.identity: one for one in found}.values():
        with keeping(lambda: f"deleted {len(gone)} of {len(found)}"), progress("deleting"):
            gone.append(await memory.remove(entry.identity, scopes=[entry.scope]))
        if not as_json:
            note(describe_deleted(entry))
    if as_json:
        print_json([encode_entry(entry) for entry in gone])


@click.command("log", short_help="Print the changes of entries.")
@click.argument(
    "identity", metavar="[ID]", required=False, default="", shell_complete=complete_facts
)
@scope_option
@json_option
@with_memory
async def log(
    memory: Memory, settings: MemorySettings, identity: str, scope: str | None, as_json: bool
) -> None:
    """Print the changes of all entries, or of one, newest last.

    With versions in git, prints all changes; without them, only when each entry was created,
    last changed and deleted.
    """
    scopes = [scope_of(scope, settings)]
    if identity:
        scopes = [*await visible_scopes(memory, settings, scope)]
    with progress("reading the history"):
        changes = await survey_changes(memory, scopes=scopes, identity=identity, notify=print_note)
    if as_json:
        print_json([msgspec.to_builtins(MemoryChange.of(one)) for one in changes])
        return
    for one in changes:
        words = one_line(one.entry.content)
        kind = str(one.kind)
        if one.entry.replaced_by and kind == "deleted":
            words += f" (for {one.entry.replaced_by[-12:]})"
        head = f"{local_time(one.time)}  {kind:<12}  {short_identity(one.entry)}  "
        write(sys.stdout, fit(f"{head}{words}", sys.stdout, least=len(head)) + "\n")
    if not changes:
        note("no entries yet; add one: vibe-llms memory add TEXT")
