"""`memory forget`: removes words or scopes completely, after a preview."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import click
from msgspec import Struct

from vibe_llms.base.configuration import LOCAL, Configuration, load_configuration
from vibe_llms.base.exceptions import ConversationNotFound, StorageError
from vibe_llms.cli.memory.common import (
    count_entries,
    describe_entry,
    encode_entry,
    fit,
    keeping,
    only_scope_option,
    opened_journal,
    print_json,
    print_note,
    progress,
    scope_of,
    short_identity,
    with_memory,
    words_argument,
)
from vibe_llms.cli.memory.editing import forget_drafts
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import is_terminal, note, write_lines
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.forgetting import Trace, survey_offspring, survey_traces
from vibe_llms.memory.hook import load_texts
from vibe_llms.memory.purging import Held, describe_held, find_held, find_surrounding, purge
from vibe_llms.memory.repository import Repository
from vibe_llms.memory.settings import MemorySettings
from vibe_llms.memory.text_search import fold
from vibe_llms.memory.tickets import PendingTicket, Ticket
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.hidden import one_line
from vibe_llms.storage.backends import opened_backend
from vibe_llms.storage.interfaces import Archive

#: Number of entries that are shown before the question.
_SHOWN = 5
_NAMES = {
    "fact": "facts",
    "turn": "turns",
    "summary": "summaries",
    "unreadable file": "unreadable files",
}


class _Found(Struct, frozen=True):
    """Files and queued turns that would be removed."""

    traces: Sequence[Trace]
    pending: Sequence[PendingTicket]


class _Gone(Struct, frozen=True, kw_only=True):
    """Removed entries, or those that would be; facts that stay; and commits with the words."""

    forgotten: Sequence[Entry]
    pending: Sequence[PendingTicket]
    left: Sequence[Entry]
    held: Sequence[Held]
    dry_run: bool = False

    def encode(self) -> dict[str, Any]:
        return {
            "forgotten": [encode_entry(one) for one in self.forgotten],
            "pending": len(self.pending),
            "left": [encode_entry(one) for one in self.left],
            "held": [
                {"commit": one.commit, "time": None if one.time is None else one.time.isoformat()}
                for one in self.held
            ],
            "dry_run": self.dry_run,
        }


@click.command("forget", short_help="Permanently remove what contains some words.")
@words_argument("words", required=False)
@only_scope_option
@click.option("--all", "whole", is_flag=True, help="Forget a whole scope instead of words.")
@click.option("--history", is_flag=True, help="Remove it from the versions in git too.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@yes_option
@json_option
@with_memory
async def forget(
    memory: Memory,
    settings: MemorySettings,
    words: str | None,
    scope: str | None,
    whole: bool,
    history: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Permanently remove everything that contains WORDS, deleted entries too.

    Reads WORDS from standard input if they are -. Shows what it will remove and asks. Without
    --scope, all scopes are searched. Versions in git that still contain it are reported; --history
    rewrites them, so commits get new ids. With --scope and --all, everything in the scope is
    removed.
    """
    if whole and (words is not None or scope is None):
        raise click.UsageError("--all needs --scope, and no WORDS.")
    if not whole and words is None:
        raise click.UsageError("Give WORDS, or --scope with --all.")
    forgetting = _Forgetting(memory, words, scope, own=scope_of(None, settings), quiet=as_json)
    if dry_run:
        gone = await forgetting.preview()
    elif yes or await forgetting.confirm(history=history):
        gone = await forgetting.carry_out(history=history)
    else:
        note("nothing was forgotten")
        return 1
    if as_json:
        print_json(gone.encode())
    return 0


class _Forgetting:
    """One removal of words, or of a whole scope."""

    def __init__(
        self, memory: Memory, words: str | None, scope: str | None, *, own: Scope, quiet: bool
    ) -> None:
        self._memory = memory
        self._words = words
        self._scopes = None if scope is None else [Scope.parse(scope)]
        self._own = own
        self._quiet = quiet
        self._configuration = load_configuration()
        self._repository: Repository | None = None
        if memory.store.has_files:
            versions = memory.versions
            self._repository = Repository(memory.folder) if not versions else versions.repository

    async def preview(self) -> _Gone:
        """Print everything that would be removed."""
        found = await self._find()
        held = await self._find_held()
        entries = [one.entry for one in found.traces]
        left = await survey_offspring(self._memory, entries)
        if not self._quiet:
            for line in _describe(found, self._own, sys.stdout):
                write_lines(line, "    ")
            note(f"would forget {_count(found)}; nothing was changed")
            _name_left(left, self._own)
            if held:
                note(f"git contains it in {describe_held(held)}")
        return _Gone(forgotten=entries, pending=found.pending, left=left, held=held, dry_run=True)

    async def confirm(self, *, history: bool) -> bool:
        """Show everything that would be removed, and ask."""
        found = await self._find()
        if self._words is None:
            about = [f"{', '.join(map(str, self._scopes or ()))} has {_count(found)}"]
        else:
            about = [f"'{self._words}' is in {_count(found)}"]
        about += [f"  {line}" for line in _describe(found, self._own, sys.stderr, most=_SHOWN)]
        if len(found.traces) > _SHOWN:
            about.append(f"  and {len(found.traces) - _SHOWN} more; to see all: --dry-run")
        held = await self._find_held() if history else ()
        if held:
            about.append(f"git contains it in {describe_held(held)}; later commits get new ids")
        remedy = f"use --yes to forget {_count(found)}, or --dry-run to list it"
        if not (found.traces or found.pending or held) and is_terminal(sys.stdin):
            # Nothing will be removed, so don't ask.
            note(about[0])
            return True
        return confirm("Remove it permanently?", about=about, remedy=remedy)

    async def carry_out(self, *, history: bool) -> _Gone:
        """Forget, and report it."""
        with keeping(lambda: "not everything was forgotten; run it again"):
            with progress("forgetting"):
                gone, drafts = await self._forget()
                pending = await find_pending(self._configuration, self._words, self._scopes)
            if not self._quiet:
                note(f"forgot {count_entries(len(gone))}")
            left = await survey_offspring(self._memory, gone)
            if not self._quiet:
                _name_left(left, self._own)
            if drafts:
                print_note("the draft of an edit contained it too, and was deleted")
            drop_pending(self._configuration, pending)
        held = await (self._purge() if history else self._report_held())
        return _Gone(forgotten=gone, pending=pending, left=left, held=held)

    async def _find(self) -> _Found:
        with progress("searching"):
            return _Found(
                await survey_traces(self._memory.store, self._words, scopes=self._scopes),
                await find_pending(self._configuration, self._words, self._scopes),
            )

    async def _forget(self) -> tuple[Sequence[Entry], int]:
        """Forget; return the entries, and the number of drafts."""
        places = self._configuration.places
        if self._words is not None:
            gone = await self._memory.forget(self._words, scopes=self._scopes)
            return gone, forget_drafts(places, fold(self._words))
        every: list[Entry] = []
        drafts = 0
        for scope in self._scopes or ():
            every += await self._memory.forget_scope(scope)
            drafts += forget_drafts(places, "", scope=scope)
        return every, drafts

    async def _find_held(self) -> Sequence[Held]:
        """Find the commits that contain it; print a note if git cannot be searched."""
        if self._repository is None:
            return ()
        try:
            with progress("searching the history"):
                return await find_held(self._repository, self._words, scopes=self._scopes)
        except StorageError as error:
            print_note(f"cannot search the versions in git: {one_line(str(error))}")
            return ()

    async def _purge(self) -> Sequence[Held]:
        """Rewrite the commits that contain it, and return them."""
        if self._repository is None:
            print_note("no versions in git: this memory is stored in a database")
            return ()
        with progress("rewriting the history"):
            held = await purge(self._repository, self._words, scopes=self._scopes)
        if held and not self._quiet:
            note(f"removed from git, which contained it in {describe_held(held)}")
        return held

    async def _report_held(self) -> Sequence[Held]:
        """Report the commits that contain it, and the command that removes it from them."""
        held = await self._find_held()
        if held and not self._quiet:
            scope = [word for one in self._scopes or () for word in ("--scope", str(one))]
            words = ["--all"] if self._words is None else ["--", self._words]
            command = ["vibe-llms", "memory", "forget", "--yes", "--history", *scope, *words]
            note(f"git still contains it in {describe_held(held)}; to remove it there too:")
            note(f"    {shlex.join(command)}")
        if self._repository and (above := find_surrounding(self._memory.folder)) is not None:
            print_note(f"the git repository in {above} may contain copies; it was not changed")
        return held


def _describe(
    found: _Found, own: Scope, stream: TextIO, *, most: int | None = None
) -> Iterator[str]:
    """Yield a line for each of `most` files, or of all; name scopes other than the user's own."""
    for one in found.traces[:most]:
        entry = one.entry
        head = "" if entry.scope == own else f"{entry.scope}: "
        if entry.identity:
            yield describe_entry(entry, stream, indent=head)
        else:
            yield fit(f"{head}{one.place}", stream)


def _count(found: _Found) -> str:
    """Return the number of entries and turns as text."""
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
    deleted = sum(one.deleted for one in found.traces)
    return f"{words} ({deleted} of them deleted)" if deleted else words


def _name(trace: Trace) -> str:
    if not trace.entry.identity:
        return "unreadable file"
    match trace.entry.role:
        case Role.FACT:
            return "fact"
        case Role.SUMMARY:
            return "summary"
        case _:
            return "turn"


def _name_left(left: Sequence[Entry], own: Scope) -> None:
    """Report facts that stay although their turns are gone."""
    if not left:
        return
    scope = () if left[0].scope == own else ("--scope", str(left[0].scope))
    command = shlex.join(["vibe-llms", "memory", "show", *scope, short_identity(left[0])])
    if len(left) == 1:
        note(f"1 fact learned from it is kept, in other words; to see it: {command}")
        return
    names = ", ".join(map(short_identity, left))
    facts = f"{len(left)} facts learned from it are kept, in other words"
    note(f"{facts}: {names}; to see one: {command}")


async def find_pending(
    configuration: Configuration, words: str | None, scopes: Sequence[Scope] | None
) -> Sequence[PendingTicket]:
    """Find turns still to be remembered in these scopes that contain the words, or all."""
    with opened_journal(configuration) as journal:
        every = journal.survey()
    left = [
        one
        for one in every
        if scopes is None
        or Scope.of_user(one.ticket.user) in scopes
        or Scope.of_conversation(one.ticket.conversation) in scopes
    ]
    if not left or words is None:
        return left
    async with opened_backend(configuration) as backend:
        archive = backend.open_archive(LOCAL, configuration.places)
        try:
            return [one for one in left if await _holds(archive, one.ticket, fold(words))]
        finally:
            await archive.close()


def drop_pending(configuration: Configuration, pending: Sequence[PendingTicket]) -> None:
    """Cancel turns that are still to be remembered, except those that a program is working on."""
    with opened_journal(configuration) as journal:
        for one in pending:
            journal.remove(one.identity)
    held = sum(one.held for one in pending)
    dropped = len(pending) - held
    if dropped:
        turns = "1 turn that was" if dropped == 1 else f"{dropped} turns that were"
        note(f"canceled {turns} still to be remembered")
    if held:
        note("note: a running program may still remember it; run this again after it has ended")


async def _holds(archive: Archive, ticket: Ticket, wanted: str) -> bool:
    """Return True if a turn contains folded words."""
    try:
        stored = await archive.restore(ticket.conversation)
    except ConversationNotFound:
        return False
    for canister in stored.canisters:
        if canister.identity in ticket.canisters:
            whole = await load_texts(canister, archive.load_all)
            if wanted in fold(text_of(whole.contents)):
                return True
    return False
