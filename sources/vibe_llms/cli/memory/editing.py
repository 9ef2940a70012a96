"""`memory edit`: an entry changed to a text, or in an editor, and nothing of either lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import click

from vibe_llms.cli.completion import complete_facts
from vibe_llms.cli.editors import find_editor, run_editor
from vibe_llms.cli.memory.drafts import Draft
from vibe_llms.cli.memory.opening import (
    ask_before_secrets,
    encode_entry,
    json_option,
    keeping,
    only_scope_option,
    open_memory,
    print_json,
    progress,
    read_words,
    secrets_option,
    short_identity,
    visible_scopes,
)
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import note
from vibe_llms.configuration import find_places
from vibe_llms.exceptions import MemoryInvalid, RequestError, VibeLlmsError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry


@click.command("edit", short_help="Change what an entry says.")
@click.argument("identity", shell_complete=complete_facts)
@click.argument("text", nargs=-1)
@only_scope_option
@secrets_option
@json_option
def edit(identity: str, text: tuple[str, ...], scope: str | None, yes: bool, as_json: bool) -> int:
    """Change what an entry says: to TEXT, or in your editor; - reads standard input.

    If saving fails, your text is offered again at the next edit. Text that looks like a password,
    a key or a card number is stored only if you confirm it, or with --yes.
    """
    words = read_words(text) if text else None

    async def work() -> int:
        async with open_memory() as (store, settings):
            entry = await store.access(
                identity, scopes=await visible_scopes(store, settings, scope)
            )
            if words is not None:
                changed = await _revise(store, entry, words, yes=yes)
            else:
                changed = await _edit(store, entry, yes=yes)
        if as_json:
            print_json(encode_entry(changed))
        elif changed.content == entry.content:
            note("it says that already")
        else:
            note(f"changed {short_identity(changed)}")
        return 0

    return run(work())


async def _revise(store: Memory, entry: Entry, words: str, *, yes: bool) -> Entry:
    if words.strip() == entry.content:
        return entry
    with keeping(lambda: "nothing was changed"):
        return await _store(store, entry, words, yes=yes)


async def _store(store: Memory, entry: Entry, words: str, *, yes: bool) -> Entry:
    async def revise(keep_secrets: bool) -> Entry:
        with progress("changing"):
            return await store.revise(
                entry.identity, scopes=[entry.scope], content=words, keep_secrets=keep_secrets
            )

    return await ask_before_secrets(revise, yes=yes)


async def _edit(store: Memory, entry: Entry, *, yes: bool) -> Entry:
    command = f"vibe-llms memory edit {short_identity(entry)}"
    editor = find_editor(f"give the text: {command} TEXT")
    draft = Draft(find_places(), entry)
    with ExitStack() as stack:
        with keeping(lambda: "nothing was changed"):
            stack.enter_context(draft.held())
            if draft.is_left(entry.content):
                _tell_left(draft, entry)
                draft.settle(entry.content)
            else:
                draft.begin(entry.content)
        try:
            run_editor(editor, draft.path)
            changed = await _store_edited(store, entry, draft.read(), yes=yes)
        except VibeLlmsError as error:
            words = f"nothing was changed: {error}"
            if draft.is_left(entry.content):
                words += f"; what you wrote is kept in {draft.path}; to go on with it: {command}"
            else:
                draft.drop()
            # Its kind stays, and with it the status.
            error.args = (words,)
            raise
        draft.drop()
    return changed


async def _store_edited(store: Memory, entry: Entry, words: str, *, yes: bool) -> Entry:
    if not words:
        raise MemoryInvalid(
            "there is nothing to remember in an empty text; to give the entry up: "
            f"vibe-llms memory rm {short_identity(entry)}"
        )
    now = await store.access(entry.identity, scopes=[entry.scope])
    if now.content not in (entry.content, words):
        raise RequestError("the entry was changed meanwhile, so this was not written over it")
    if now.content == words:
        return now
    return await _store(store, entry, words, yes=yes)


def _tell_left(draft: Draft, entry: Entry) -> None:
    lines: Sequence[str] = [f"note: going on with what an earlier edit has left in {draft.path}"]
    if draft.base != entry.content:
        told = f"vibe-llms memory show {short_identity(entry)}"
        lines = [*lines, f"note: the entry was changed since then; it says now: {told}"]
    for line in lines:
        note(line)
