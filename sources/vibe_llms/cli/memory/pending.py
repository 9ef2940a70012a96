"""Turns that are still to be remembered: what is forgotten is not taken in afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.cli.terminal import note
from vibe_llms.configuration import Configuration
from vibe_llms.exceptions import ConversationNotFound
from vibe_llms.memory.attendant import journal_folder, load_texts
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.journal import Journal, Left, Ticket
from vibe_llms.memory.traces import fold
from vibe_llms.messages.contents import text_of
from vibe_llms.storage.archive import DirectoryArchive


async def find_pending(
    configuration: Configuration, words: str | None, *, scopes: Sequence[Scope] | None = None
) -> Sequence[Left]:
    """The turns that hold some words, would come into these scopes, and nobody has taken in yet.

    Without words it is all that would come into them.
    """
    left = [
        one
        for one in Journal(journal_folder(configuration)).survey()
        if scopes is None
        or Scope.of_user(one.ticket.user) in scopes
        or Scope.of_conversation(one.ticket.conversation) in scopes
    ]
    if not left or words is None:
        return left
    archive = DirectoryArchive(configuration.places.data, configuration.storage)
    try:
        return [one for one in left if await _holds(archive, one.ticket, fold(words))]
    finally:
        await archive.close()


def drop_pending(configuration: Configuration, pending: Sequence[Left]) -> None:
    """Give turns up that are still to be taken in; tells of them.

    A turn that a running program is at cannot be taken from it: then that is said.
    """
    journal = Journal(journal_folder(configuration))
    for one in pending:
        journal.settle(one.path)
    held = sum(one.held for one in pending)
    dropped = len(pending) - held
    if dropped:
        turns = "a turn that holds it and was" if dropped == 1 else f"{dropped} turns that were"
        note(f"gave up {turns} still to be remembered")
    if held:
        note("note: a running program may still remember it; forget it again when that has ended")


async def _holds(archive: DirectoryArchive, ticket: Ticket, wanted: str) -> bool:
    """Whether what is to be taken in holds folded words."""
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
