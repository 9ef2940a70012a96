"""`memory forget|reindex|status`: the whole of it looked at, made anew, and forgotten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from vibe_llms.cli.memory.opening import json_option, open_memory, print_json, scope_option
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import is_terminal, note, one_line, write
from vibe_llms.exceptions import RequestError
from vibe_llms.memory.core import ScopeStatus
from vibe_llms.memory.entries import Scope


@click.command("forget")
@click.argument("words", nargs=-1, required=True)
@scope_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def forget(words: tuple[str, ...], scope: str | None, yes: bool) -> int:
    """Remove for good whatever holds these words, what was given up too.

    Without --scope in all scopes.
    """

    async def work() -> int:
        async with open_memory() as (store, _):
            scopes = None if scope is None else [Scope.parse(scope)]
            if not yes:
                _confirm(" ".join(words))
            gone = await store.forget(" ".join(words), scopes=scopes)
        note(f"forgot {len(gone)} {'entry' if len(gone) == 1 else 'entries'}")
        return 0

    return run(work())


@click.command("reindex")
def reindex() -> int:
    """Make the index anew from the files."""

    async def work() -> int:
        async with open_memory() as (store, _):
            count = await store.reindex()
        note(f"indexed {count} {'entry' if count == 1 else 'entries'}")
        return 0

    return run(work())


@click.command("status")
@json_option
def status(as_json: bool) -> int:
    """Print where the files lie, what there is, and what cannot be read."""

    async def work() -> int:
        async with open_memory() as (store, _):
            scopes = await store.status()
            folder = store.folder
        if as_json:
            print_json({"folder": str(folder), "scopes": [_encode_status(one) for one in scopes]})
            return 0
        write(sys.stdout, f"{folder}\n")
        for one in scopes:
            write(sys.stdout, f"{one.scope}: {one.entries} remembered, {one.deleted} given up\n")
            for damaged in one.damaged:
                note(f"vibe-llms: {one_line(str(damaged))}")
        return 0

    return run(work())


def _confirm(words: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RequestError("there is nobody to be asked; to forget for good: --yes")
    click.confirm(f"Remove for good what holds {words!r}?", abort=True, err=True)


def _encode_status(one: ScopeStatus) -> dict[str, Any]:
    damaged: Sequence[str] = [str(error) for error in one.damaged]
    return {
        "scope": str(one.scope),
        "entries": one.entries,
        "deleted": one.deleted,
        "damaged": damaged,
    }
