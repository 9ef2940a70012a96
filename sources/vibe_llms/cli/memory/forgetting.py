"""`memory forget`: what is to be known no more, shown before and removed for good."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import click
from msgspec import Struct

from vibe_llms.cli.memory.drafts import forget_drafts
from vibe_llms.cli.memory.opening import (
    describe_entry,
    encode_entry,
    fit,
    json_option,
    keeping,
    only_scope_option,
    open_memory,
    print_json,
    progress,
    read_words,
    scope_of,
    short_identity,
    tell,
)
from vibe_llms.cli.memory.pending import drop_pending, find_pending
from vibe_llms.cli.running import interruptible, run
from vibe_llms.cli.terminal import is_terminal, note, one_line, write
from vibe_llms.configuration import Configuration, load_configuration
from vibe_llms.exceptions import RequestError, StorageError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.forgetting import Trace, survey_offspring, survey_traces
from vibe_llms.memory.journal import Left
from vibe_llms.memory.purging import Held, describe_held, find_held, find_surrounding, purge
from vibe_llms.memory.repository import Repository
from vibe_llms.memory.traces import fold

#: So many of the entries are shown before somebody is asked.
_SHOWN = 5
_NAMES = {
    "fact": "facts",
    "turn": "turns",
    "summary": "summaries",
    "file that is no entry": "files that are no entries",
}


class _What(Struct, frozen=True):
    """The words that are to be forgotten, where, and the scope of who asks for that.

    Without words it is all of the one scope.
    """

    words: str | None
    scopes: Sequence[Scope] | None
    own: Scope


class _Found(Struct, frozen=True):
    """What would go: files, and turns that are still to be remembered."""

    traces: Sequence[Trace]
    pending: Sequence[Left]


@click.command("forget", short_help="Remove for good all that holds some words.")
@click.argument("words", nargs=-1)
@only_scope_option
@click.option("--all", "whole", is_flag=True, help="Remove all of the scope, instead of words.")
@click.option("--history", is_flag=True, help="Remove it from the versions in git, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def forget(
    words: tuple[str, ...],
    scope: str | None,
    whole: bool,
    history: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove for good all that holds these words, deleted entries too.

    You see how much that is before you are asked. Without --scope it goes in all scopes; - stands
    for the text of standard input. What git holds still is named; --history writes its history anew
    without it, so that commits get other names. With --scope and --all nothing of that scope stays.
    """
    if whole and (words or scope is None):
        raise click.UsageError("--all forgets a scope: give --scope, and no words")
    if not whole and not words:
        raise click.UsageError("say what is to be forgotten: words, or --scope with --all")
    text = None if whole else read_words(words)

    async def work() -> int:
        scopes = None if scope is None else [Scope.parse(scope)]
        configuration = load_configuration()
        async with open_memory() as (store, settings):
            what = _What(text, scopes, scope_of(None, settings))
            if dry_run:
                await _preview(store, configuration, what, as_json=as_json)
                return 0
            if not yes and not await _confirm(store, configuration, what, history=history):
                note("nothing was forgotten")
                return 1
            with keeping(lambda: "not all of it was forgotten, so do it again"):
                with progress("forgetting"):
                    gone, drafts = await _forget(store, configuration, what)
                    pending = await find_pending(configuration, text, scopes=scopes)
                if not as_json:
                    note(f"forgot {len(gone)} {'entry' if len(gone) == 1 else 'entries'}")
                left = await survey_offspring(store, gone)
                if left and not as_json:
                    _name_left(left, what.own)
                if drafts:
                    tell("what was left of an edit held it, too, and is removed")
                drop_pending(configuration, pending)
            held = await _look_into_history(store, what, scope, history=history, quiet=as_json)
        if as_json:
            print_json(_encode(gone, pending, held, left, dry_run=False))
        return 0

    return run(work())


async def _forget(
    store: Memory, configuration: Configuration, what: _What
) -> tuple[Sequence[Entry], int]:
    """The entries that went, and how many drafts did."""
    if what.words is not None:
        gone = await store.forget(what.words, scopes=what.scopes)
        return gone, forget_drafts(configuration.places, fold(what.words))
    every: list[Entry] = []
    drafts = 0
    for scope in what.scopes or ():
        every += await store.forget_scope(scope)
        drafts += forget_drafts(configuration.places, "", scope=scope)
    return every, drafts


async def _find(store: Memory, configuration: Configuration, what: _What) -> _Found:
    with progress("looking for it"):
        return _Found(
            await survey_traces(store.folder, what.words, scopes=what.scopes),
            await find_pending(configuration, what.words, scopes=what.scopes),
        )


async def _preview(
    store: Memory, configuration: Configuration, what: _What, *, as_json: bool
) -> None:
    """Print what would go."""
    found = await _find(store, configuration, what)
    held = await _find_held(store, what.words, what.scopes)
    entries = [one.entry for one in found.traces]
    left = await survey_offspring(store, entries)
    if as_json:
        print_json(_encode(entries, found.pending, held, left, dry_run=True))
        return
    for line in _describe(found, what.own, sys.stdout):
        write(sys.stdout, f"{line}\n")
    note(f"would forget {_count(found)}; nothing was changed")
    if left:
        _name_left(left, what.own)
    if held:
        note(f"git holds it in {describe_held(held)}")


async def _confirm(
    store: Memory, configuration: Configuration, what: _What, *, history: bool
) -> bool:
    """Whether somebody wants this, who has seen what it is."""
    found = await _find(store, configuration, what)
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RequestError(
            f"not a terminal; use --yes to forget {_count(found)} for good, or --dry-run to see "
            "what it would be"
        )
    if what.words is None:
        note(f"{', '.join(map(str, what.scopes or ()))} has {_count(found)}")
    else:
        note(f"'{what.words}' is in {_count(found)}")
    for line in _describe(found, what.own, sys.stderr, most=_SHOWN):
        note(f"  {line}")
    if len(found.traces) > _SHOWN:
        note(f"  and {len(found.traces) - _SHOWN} more; all of them: --dry-run")
    if history and (held := await _find_held(store, what.words, what.scopes)):
        note(f"git holds it in {describe_held(held)}; all that came after gets other names")
    elif not found.traces and not found.pending:
        # Nothing is to be lost; what git holds still is told.
        return True
    with interruptible():
        return click.confirm("Remove it for good?", err=True)


def _describe(
    found: _Found, own: Scope, stream: TextIO, *, most: int | None = None
) -> Iterator[str]:
    """A line for each file that would go, or for the first ones; whose it is, if not one's own."""
    for one in found.traces[:most]:
        entry = one.entry
        head = "" if entry.scope == own else f"{entry.scope}: "
        if entry.identity:
            yield describe_entry(entry, stream, indent=head)
        else:
            yield fit(f"{head}{one.place}", stream)


def _count(found: _Found) -> str:
    """How much it is, in words."""
    numbers = dict.fromkeys(_NAMES, 0)
    for one in found.traces:
        numbers[_name(one)] += 1
    parts = [
        f"{number} {name if number == 1 else _NAMES[name]}"
        for name, number in numbers.items()
        if number
    ]
    if found.pending:
        turns = "turn" if len(found.pending) == 1 else "turns"
        parts.append(f"{len(found.pending)} {turns} still to be remembered")
    words = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]])) or "nothing"
    given_up = sum(one.given_up for one in found.traces)
    return f"{words} ({given_up} of them deleted)" if given_up else words


def _name(trace: Trace) -> str:
    if not trace.entry.identity:
        return "file that is no entry"
    match trace.entry.role:
        case Role.FACT:
            return "fact"
        case Role.SUMMARY:
            return "summary"
        case _:
            return "turn"


def _name_left(left: Sequence[Entry], own: Scope) -> None:
    """A line about the facts that stay of turns that do not."""
    scope = () if left[0].scope == own else ("--scope", str(left[0].scope))
    command = shlex.join(["vibe-llms", "memory", "show", *scope, short_identity(left[0])])
    if len(left) == 1:
        note(f"1 fact from what was said there stays, in words of its own; to see it: {command}")
        return
    names = ", ".join(map(short_identity, left))
    note(
        f"{len(left)} facts from what was said there stay, in words of their own: {names}; "
        f"to see one: {command}"
    )


async def _find_held(
    store: Memory, text: str | None, scopes: Sequence[Scope] | None
) -> Sequence[Held]:
    """What git holds of it; where that cannot be told, that is told."""
    try:
        with progress("looking into the past"):
            return await find_held(_repository_of(store), text, scopes=scopes)
    except StorageError as error:
        tell(f"whether git holds it still cannot be told: {one_line(str(error))}")
        return ()


async def _look_into_history(
    store: Memory, what: _What, scope: str | None, *, history: bool, quiet: bool
) -> Sequence[Held]:
    """What git holds of it still, or held before it was purged."""
    text, scopes = what.words, what.scopes
    if history:
        with progress("writing the history of git anew"):
            held = await purge(_repository_of(store), text, scopes=scopes)
        if held and not quiet:
            note(f"git held it in {describe_held(held)}, and holds it no more")
        return held
    held = await _find_held(store, text, scopes)
    if held and not quiet:
        _name_history(held, text, scope)
    if (above := find_surrounding(store.folder)) is not None:
        tell(f"the git repository in {above} may hold copies; it is not touched")
    return held


def _repository_of(store: Memory) -> Repository:
    return Repository(store.folder) if store.versions is None else store.versions.repository


def _name_history(held: Sequence[Held], text: str | None, scope: str | None) -> None:
    parts = ["vibe-llms", "memory", "forget", "--yes", "--history"]
    if scope is not None:
        parts += ["--scope", scope]
    command = shlex.join([*parts, "--all"] if text is None else [*parts, "--", text])
    note(f"git holds it still in {describe_held(held)}; to remove it there, too:")
    note(f"    {command}")


def _encode(
    entries: Sequence[Entry],
    pending: Sequence[Left],
    held: Sequence[Held],
    left: Sequence[Entry],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "forgotten": [encode_entry(one) for one in entries],
        "pending": len(pending),
        "left": [encode_entry(one) for one in left],
        "held": [
            {"commit": one.commit, "time": None if one.time is None else one.time.isoformat()}
            for one in held
        ],
        "dry_run": dry_run,
    }
