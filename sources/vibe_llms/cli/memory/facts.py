"""`memory add|search|list|show|edit|rm`: one fact, or those that fit."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from vibe_llms.cli.memory.opening import (
    encode_entry,
    json_option,
    open_memory,
    print_entry,
    print_json,
    scope_of,
    scope_option,
    short_identity,
)
from vibe_llms.cli.running import deaf, run
from vibe_llms.cli.terminal import note, one_line, shown, visible, write
from vibe_llms.memory.entries import GLOBAL
from vibe_llms.memory.retrieval import Recollection


@click.command("add")
@click.argument("text", nargs=-1, required=True)
@scope_option
@click.option(
    "--importance",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="How much it matters.",
)
@click.option("--category", default="", help="What kind of fact it is, in a word.")
@click.option("--topic", "topics", multiple=True, help="What it is about; several times.")
@json_option
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
        async with open_memory() as (store, settings):
            entry = await store.add(
                " ".join(text),
                scope=scope_of(scope, settings),
                importance=importance,
                category=category,
                topics=topics,
            )
            # Before anything is closed, which may take a while, or fail.
            if as_json:
                print_json(encode_entry(entry))
            else:
                note(f"remembered as {short_identity(entry)}")
        return 0

    return run(work())


@click.command("search")
@click.argument("question", nargs=-1, required=True)
@scope_option
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--explain", is_flag=True, help="Tell the score of each, and what it is made of.")
@json_option
def search(
    question: tuple[str, ...],
    scope: str | None,
    limit: int | None,
    explain: bool,
    as_json: bool,
) -> int:
    """Print what fits a question, the best first; yours and what is global."""

    async def work() -> int:
        async with open_memory() as (store, settings):
            scopes = [scope_of(scope, settings)]
            if scope is None:
                scopes.append(GLOBAL)
            chosen = settings if limit is None else msgspec.structs.replace(settings, limit=limit)
            found = await store.search(" ".join(question), scopes=scopes, settings=chosen)
        if as_json:
            print_json([_encode_found(one) for one in found])
            return 0
        for one in found:
            print_entry(one.entry)
            if explain:
                parts = ", ".join(f"{name} {value:.2f}" for name, value in one.reasons.items())
                note(f"    {one.score:.2f}: {parts}", dim=True)
        if not found:
            note("nothing that is remembered fits")
        return 0

    return run(work())


@click.command("list")
@scope_option
@json_option
def list_entries(scope: str | None, as_json: bool) -> int:
    """Print everything of a scope, the oldest first."""

    async def work() -> int:
        async with open_memory() as (store, settings):
            entries = await store.survey(scope_of(scope, settings))
        if as_json:
            print_json([encode_entry(entry) for entry in entries])
            return 0
        for entry in entries:
            print_entry(entry)
        if not entries:
            note("nothing is remembered yet; vibe-llms memory add TEXT")
        return 0

    return run(work())


@click.command("show")
@click.argument("identity")
@json_option
def show(identity: str, as_json: bool) -> int:
    """Print one entry whole, with what is known of it."""

    async def work() -> int:
        async with open_memory() as (store, _):
            entry = await store.access(identity)
        if as_json:
            print_json(encode_entry(entry))
            return 0
        write(sys.stdout, visible(entry.content) + "\n")
        for name, value in encode_entry(entry).items():
            if name != "content" and value not in ("", (), {}):
                words = ", ".join(value) if isinstance(value, tuple) else value
                note(f"{name}: {one_line(str(words))}", dim=True)
        return 0

    return run(work())


@click.command("edit")
@click.argument("identity")
@click.argument("text", nargs=-1)
def edit(identity: str, text: tuple[str, ...]) -> int:
    """Change what an entry says: to TEXT, or in your editor."""

    async def work() -> int:
        async with open_memory() as (store, _):
            entry = await store.access(identity)
            words = " ".join(text) if text else _ask_editor(entry.content)
            if words.strip() == entry.content:
                note("it says that already")
                return 0
            await store.revise(entry.identity, content=words.strip())
            note(f"changed {short_identity(entry)}")
        return 0

    return run(work())


@click.command("rm")
@click.argument("identities", nargs=-1, required=True)
def remove(identities: tuple[str, ...]) -> int:
    """Give entries up: they are found no more; their files lie among the deleted ones."""

    async def work() -> int:
        async with open_memory() as (store, _):
            for identity in identities:
                entry = await store.remove(identity)
                note(f"gave up {short_identity(entry)}: {shown(entry.content)}")
        return 0

    return run(work())


def _ask_editor(content: str) -> str:
    """What the editor makes of it. Ctrl-C is for it alone, and nothing gets lost."""
    with deaf():
        return click.edit(content) or content


def _encode_found(one: Recollection) -> dict[str, Any]:
    return {**encode_entry(one.entry), "score": round(one.score, 4), "reasons": dict(one.reasons)}
