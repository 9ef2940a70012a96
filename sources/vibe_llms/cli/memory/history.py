"""`memory log|forget`: what became of entries, and what is to be known no more."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from vibe_llms.cli.memory.opening import (
    encode_entry,
    json_option,
    local_time,
    open_memory,
    print_json,
    scope_of,
    scope_option,
    short_identity,
)
from vibe_llms.cli.memory.pending import drop_pending
from vibe_llms.cli.running import interruptible, run
from vibe_llms.cli.terminal import is_terminal, note, one_line, shown, write
from vibe_llms.configuration import load_configuration
from vibe_llms.exceptions import RequestError, StorageError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.history import Change, survey_changes
from vibe_llms.memory.purging import Held, describe_held, find_held, find_surrounding, purge
from vibe_llms.memory.repository import Repository


@click.command("log")
@click.argument("identity", required=False, default="")
@scope_option
@json_option
def log(identity: str, scope: str | None, as_json: bool) -> int:
    """Print what became of entries, or of one, the newest last.

    With versions in git every change is known; without them what the files tell: when each was
    made, changed last, and given up.
    """

    async def work() -> int:
        async with open_memory() as (store, settings):
            scopes = None if identity and scope is None else [scope_of(scope, settings)]
            changes = await survey_changes(store, scopes=scopes, identity=identity)
        if as_json:
            print_json([_encode_change(one) for one in changes])
            return 0
        for one in changes:
            words = shown(one_line(one.entry.content))
            kind = str(one.kind)
            if one.entry.replaced_by and kind == "given up":
                words += f" (for {one.entry.replaced_by[-12:]})"
            time = local_time(one.time)
            write(sys.stdout, f"{time}  {kind:<12}  {short_identity(one.entry)}  {words}\n")
        if not changes:
            note("nothing is remembered yet; vibe-llms memory add TEXT")
        return 0

    return run(work())


@click.command("forget")
@click.argument("words", nargs=-1, required=True)
@scope_option
@click.option("--history", is_flag=True, help="Remove it from the versions in git, too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def forget(words: tuple[str, ...], scope: str | None, history: bool, yes: bool) -> int:
    """Remove for good whatever holds these words, what was given up too.

    Without --scope in all scopes. What git holds still is named; --history writes its history anew
    without it, so that commits get other names.
    """

    async def work() -> int:
        text = " ".join(words)
        async with open_memory() as (store, _):
            scopes = None if scope is None else [Scope.parse(scope)]
            if not yes:
                _confirm(text)
            gone = await store.forget(text, scopes=scopes)
            note(f"forgot {len(gone)} {'entry' if len(gone) == 1 else 'entries'}")
            await drop_pending(load_configuration(), text)
            await _look_into_history(store, text, scope, history=history)
        return 0

    return run(work())


async def _look_into_history(store: Memory, text: str, scope: str | None, *, history: bool) -> None:
    scopes = None if scope is None else [Scope.parse(scope)]
    repository = Repository(store.folder) if store.versions is None else store.versions.repository
    if history:
        held = await purge(repository, text, scopes=scopes)
        if held:
            note(f"git held it in {describe_held(held)}, and holds it no more")
        return
    try:
        held = await find_held(repository, text, scopes=scopes)
    except StorageError as error:
        note(f"note: whether git holds it still cannot be told: {one_line(str(error))}")
        return
    if held:
        _name_history(held, text, scope)
    if (above := find_surrounding(store.folder)) is not None:
        note(f"note: the git repository in {above} may hold copies; it is not touched")


def _name_history(held: Sequence[Held], text: str, scope: str | None) -> None:
    parts = ["vibe-llms", "memory", "forget", "--yes", "--history"]
    if scope is not None:
        parts += ["--scope", scope]
    command = shlex.join([*parts, "--", text])
    note(f"git holds it still in {describe_held(held)}; to remove it there, too:")
    note(f"    {command}")


def _confirm(words: str) -> None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RequestError("there is nobody to be asked; to forget for good: --yes")
    with interruptible():
        click.confirm(f"Remove for good what holds {words!r}?", abort=True, err=True)


def _encode_change(one: Change) -> dict[str, Any]:
    return {
        "time": one.time.isoformat(),
        "change": str(one.kind),
        "commit": one.commit,
        "entry": encode_entry(one.entry),
    }
