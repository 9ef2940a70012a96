"""The command `memory`: what is remembered, added, found, changed, given up and forgotten."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec

from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import is_terminal, note, one_line, shown, visible, write
from vibe_llms.configuration import load_configuration
from vibe_llms.exceptions import RequestError
from vibe_llms.memory.core import Memory, ScopeStatus
from vibe_llms.memory.entries import GLOBAL, Entry, Scope
from vibe_llms.memory.retrieval import Recollection
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings

_HELP = {"help_option_names": ["-h", "--help"]}
#: The random half of an identity; its beginning is the time.
_SHORT = 12


@click.group("memory", context_settings=_HELP)
def memory() -> None:
    """Remember facts, find them, change them, give them up and forget them.

    Each is a Markdown file that you may read and edit; `vibe-llms memory status` tells where.
    """


_scope = click.option(
    "--scope",
    metavar="SCOPE",
    help="global, user-NAME or conversation-ID; yours, user-NAME by [memory] user, if not given.",
)
_json = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


@memory.command("add")
@click.argument("text", nargs=-1, required=True)
@_scope
@click.option(
    "--importance",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="How much it matters.",
)
@click.option("--category", default="", help="What kind of fact it is, in a word.")
@click.option("--topic", "topics", multiple=True, help="What it is about; several times.")
@_json
def add(
    text: tuple[str, ...],
    scope: str | None,
    importance: float,
    category: str,
    topics: tuple[str, ...],
    as_json: bool,
) -> int:
    """Remember a fact. The same again changes nothing."""

    async def work() -> int:
        async with _open() as (store, settings):
            entry = await store.add(
                " ".join(text),
                scope=_scope_of(scope, settings),
                importance=importance,
                category=category,
                topics=topics,
            )
        if as_json:
            _print_json(_encode(entry))
        else:
            note(f"remembered as {entry.identity[-_SHORT:]}")
        return 0

    return run(work())


@memory.command("search")
@click.argument("question", nargs=-1, required=True)
@_scope
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--explain", is_flag=True, help="Tell the score of each, and what it is made of.")
@_json
def search(
    question: tuple[str, ...],
    scope: str | None,
    limit: int | None,
    explain: bool,
    as_json: bool,
) -> int:
    """Print what fits a question, the best first; yours and what is global."""

    async def work() -> int:
        async with _open() as (store, settings):
            scopes = [_scope_of(scope, settings)]
            if scope is None:
                scopes.append(GLOBAL)
            chosen = settings if limit is None else msgspec.structs.replace(settings, limit=limit)
            found = await store.search(" ".join(question), scopes=scopes, settings=chosen)
        if as_json:
            _print_json([_encode_found(one) for one in found])
            return 0
        for one in found:
            _print(one.entry)
            if explain:
                parts = ", ".join(f"{name} {value:.2f}" for name, value in one.reasons.items())
                note(f"    {one.score:.2f}: {parts}", dim=True)
        if not found:
            note("nothing that is remembered fits")
        return 0

    return run(work())


@memory.command("list")
@_scope
@_json
def list_entries(scope: str | None, as_json: bool) -> int:
    """Print everything of a scope, the oldest first."""

    async def work() -> int:
        async with _open() as (store, settings):
            entries = await store.survey(_scope_of(scope, settings))
        if as_json:
            _print_json([_encode(entry) for entry in entries])
            return 0
        for entry in entries:
            _print(entry)
        if not entries:
            note("nothing is remembered yet; vibe-llms memory add TEXT")
        return 0

    return run(work())


@memory.command("show")
@click.argument("identity")
@_json
def show(identity: str, as_json: bool) -> int:
    """Print one entry whole, with what is known of it."""

    async def work() -> int:
        async with _open() as (store, _):
            entry = await store.access(identity)
        if as_json:
            _print_json(_encode(entry))
            return 0
        write(sys.stdout, visible(entry.content) + "\n")
        for name, value in _encode(entry).items():
            if name != "content" and value not in ("", [], {}):
                words = ", ".join(value) if isinstance(value, list) else value
                note(f"{name}: {one_line(str(words))}", dim=True)
        return 0

    return run(work())


@memory.command("edit")
@click.argument("identity")
@click.argument("text", nargs=-1)
def edit(identity: str, text: tuple[str, ...]) -> int:
    """Change what an entry says: to TEXT, or in your editor."""

    async def work() -> int:
        async with _open() as (store, _):
            entry = await store.access(identity)
            words = " ".join(text) or click.edit(entry.content) or entry.content
            if words.strip() == entry.content:
                note("it says that already")
                return 0
            await store.revise(entry.identity, content=words.strip())
            note(f"changed {entry.identity[-_SHORT:]}")
        return 0

    return run(work())


@memory.command("rm")
@click.argument("identities", nargs=-1, required=True)
def remove(identities: tuple[str, ...]) -> int:
    """Give entries up: they are found no more; their files lie among the deleted ones."""

    async def work() -> int:
        async with _open() as (store, _):
            for identity in identities:
                entry = await store.remove(identity)
                note(f"gave up {entry.identity[-_SHORT:]}: {shown(entry.content)}")
        return 0

    return run(work())


@memory.command("forget")
@click.argument("words", nargs=-1, required=True)
@_scope
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def forget(words: tuple[str, ...], scope: str | None, yes: bool) -> int:
    """Remove for good whatever holds these words, what was given up too.

    Without --scope in all scopes.
    """

    async def work() -> int:
        async with _open() as (store, _):
            scopes = None if scope is None else [Scope.parse(scope)]
            if not yes:
                _confirm(" ".join(words))
            gone = await store.forget(" ".join(words), scopes=scopes)
        note(f"forgot {len(gone)} {'entry' if len(gone) == 1 else 'entries'}")
        return 0

    return run(work())


@memory.command("reindex")
def reindex() -> int:
    """Make the index anew from the files."""

    async def work() -> int:
        async with _open() as (store, _):
            count = await store.reindex()
        note(f"indexed {count} {'entry' if count == 1 else 'entries'}")
        return 0

    return run(work())


@memory.command("status")
@_json
def status(as_json: bool) -> int:
    """Print where the files lie, what there is, and what cannot be read."""

    async def work() -> int:
        async with _open() as (store, _):
            scopes = await store.status()
            folder = store.folder
        if as_json:
            _print_json({"folder": str(folder), "scopes": [_encode_status(one) for one in scopes]})
            return 0
        write(sys.stdout, f"{folder}\n")
        for one in scopes:
            write(sys.stdout, f"{one.scope}: {one.entries} remembered, {one.deleted} given up\n")
            for damaged in one.damaged:
                note(f"vibe-llms: {one_line(str(damaged))}")
        return 0

    return run(work())


COMMANDS: dict[str, click.Command] = {"memory": memory}


@asynccontextmanager
async def _open() -> AsyncIterator[tuple[Memory, MemorySettings]]:
    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    store = produce_memory(configuration, settings)
    try:
        yield store, settings
    finally:
        await store.close()


def _scope_of(scope: str | None, settings: MemorySettings) -> Scope:
    return Scope.of_user(settings.user) if scope is None else Scope.parse(scope)


def _confirm(words: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RequestError("there is nobody to be asked; to forget for good: --yes")
    click.confirm(f"Remove for good what holds {words!r}?", abort=True, err=True)


def _print(entry: Entry) -> None:
    time = entry.created.astimezone().strftime("%Y-%m-%d %H:%M")
    speaker = f"{entry.speaker}: " if entry.speaker else ""
    words = shown(f"{speaker}{one_line(entry.content)}")
    write(sys.stdout, f"{entry.identity[-_SHORT:]}  {time}  {words}\n")


def _print_json(value: Any) -> None:
    write(sys.stdout, json.dumps(value) + "\n")


def _encode(entry: Entry) -> dict[str, Any]:
    encoded: dict[str, Any] = msgspec.to_builtins(entry)
    return {**encoded, "scope": str(entry.scope)}


def _encode_found(one: Recollection) -> dict[str, Any]:
    return {**_encode(one.entry), "score": round(one.score, 4), "reasons": dict(one.reasons)}


def _encode_status(one: ScopeStatus) -> dict[str, Any]:
    damaged: Sequence[str] = [str(error) for error in one.damaged]
    return {
        "scope": str(one.scope),
        "entries": one.entries,
        "deleted": one.deleted,
        "damaged": damaged,
    }
