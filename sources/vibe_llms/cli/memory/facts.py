"""`memory add|search|list|show|rm`: one fact, or those that fit."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from vibe_llms.cli.completion import complete_facts
from vibe_llms.cli.memory.opening import (
    ask_before_secrets,
    describe_given_up,
    encode_entry,
    json_option,
    keeping,
    only_scope_option,
    open_memory,
    print_entry,
    print_json,
    progress,
    read_words,
    scope_of,
    scope_option,
    secrets_option,
    short_identity,
    visible_scopes,
)
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import note, one_line, shown, write
from vibe_llms.memory.entries import GLOBAL, Entry
from vibe_llms.memory.retrieval import Recollection


@click.command("add", short_help="Remember a fact.")
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
@secrets_option
@json_option
def add(
    text: tuple[str, ...],
    scope: str | None,
    importance: float,
    category: str,
    topics: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> int:
    """Remember a fact; - reads standard input. Adding the same fact again changes nothing.

    Text that looks like a password, a key or a card number is stored only if you confirm it, or
    with --yes.
    """
    words = read_words(text)

    async def work() -> int:
        async with open_memory() as (store, settings):

            async def add_entry(keep_secrets: bool) -> Entry:
                with keeping(lambda: "nothing was remembered"), progress("remembering"):
                    return await store.add(
                        words,
                        scope=scope_of(scope, settings),
                        importance=importance,
                        category=category,
                        topics=topics,
                        keep_secrets=keep_secrets,
                    )

            entry = await ask_before_secrets(add_entry, yes=yes)
            # Before anything is closed, which may take a while, or fail.
            if as_json:
                print_json(encode_entry(entry))
            else:
                note(f"remembered as {short_identity(entry)}")
        return 0

    return run(work())


@click.command("search", short_help="Print what fits a question, the best first.")
@click.argument("question", nargs=-1, required=True)
@scope_option
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--explain", is_flag=True, help="Print the score of each, and its parts.")
@json_option
def search(
    question: tuple[str, ...],
    scope: str | None,
    limit: int | None,
    explain: bool,
    as_json: bool,
) -> int:
    """Print what fits a question, the best first; yours and what is global."""
    asked = read_words(question)

    async def work() -> int:
        async with open_memory() as (store, settings):
            scopes = [scope_of(scope, settings)]
            if scope is None:
                scopes.append(GLOBAL)
            chosen = settings if limit is None else msgspec.structs.replace(settings, limit=limit)
            with progress("searching") as tell_embedded:
                await store.embed(scopes, progress=tell_embedded)
                found = await store.search(asked, scopes=scopes, settings=chosen)
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


@click.command("list", short_help="Print everything of a scope, the oldest first.")
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


@click.command("show", short_help="Print one entry whole.")
@click.argument("identity", shell_complete=complete_facts)
@only_scope_option
@json_option
def show(identity: str, scope: str | None, as_json: bool) -> int:
    """Print one entry whole, with what is known of it."""

    async def work() -> int:
        async with open_memory() as (store, settings):
            scopes = await visible_scopes(store, settings, scope)
            entry = await store.access(identity, scopes=scopes)
        if as_json:
            print_json(encode_entry(entry))
            return 0
        write(sys.stdout, shown(entry.content) + "\n")
        for name, value in encode_entry(entry).items():
            if name != "content" and value not in ("", (), {}):
                words = ", ".join(value) if isinstance(value, tuple) else value
                note(f"{name}: {one_line(str(words))}", dim=True)
        return 0

    return run(work())


@click.command("rm", short_help="Delete entries.")
@click.argument("identities", nargs=-1, required=True, shell_complete=complete_facts)
@only_scope_option
@json_option
def remove(identities: tuple[str, ...], scope: str | None, as_json: bool) -> int:
    """Delete entries: they are no longer found; their files are kept among the deleted ones.

    If one of them does not exist, nothing is deleted.
    """

    async def work() -> int:
        async with open_memory() as (store, settings):
            scopes = await visible_scopes(store, settings, scope)
            found = [await store.access(one, scopes=scopes) for one in identities]
            gone: list[Entry] = []
            for entry in {one.identity: one for one in found}.values():
                with keeping(lambda: f"gave up {len(gone)} of {len(found)}"), progress("giving up"):
                    gone.append(await store.remove(entry.identity, scopes=[entry.scope]))
                if not as_json:
                    note(describe_given_up(entry))
        if as_json:
            print_json([encode_entry(entry) for entry in gone])
        return 0

    return run(work())


def _encode_found(one: Recollection) -> dict[str, Any]:
    return {**encode_entry(one.entry), "score": round(one.score, 4), "reasons": dict(one.reasons)}
