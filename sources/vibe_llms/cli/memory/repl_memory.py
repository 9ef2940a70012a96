"""`/memory` in the REPL: shows recalled and remembered facts, and changes memory."""

from __future__ import annotations

import sys

from vibe_llms.base.exceptions import RequestError, SecretRefused
from vibe_llms.cli.memory.common import (
    confirm_secret,
    describe_deleted,
    print_entry,
    short_identity,
    visible_scopes,
)
from vibe_llms.cli.terminal import note, shown, write
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import start_of_turn
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.memory.entries import GLOBAL
from vibe_llms.memory.hook import MemoryHook
from vibe_llms.memory.recall import is_recalled
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.hidden import one_line
from vibe_llms.session.core import MEMORY, Session

USAGE = "/memory [on | off | list | search TEXT | add TEXT | rm ID]"
_LISTED = 20


async def run_memory_command(
    words: str, session: Session, conversation: Conversation, *, quiet: bool
) -> None:
    """Run the words after `/memory`."""
    name, _, rest = words.partition(" ")
    rest = rest.strip()
    match name:
        case "":
            await _print_status(session, conversation)
        case "on" | "off" if not rest:
            await _switch(session, conversation, on=name == "on")
            if not quiet:
                note(f"(memory is {name} from the next message on)", dim=True)
        case "list" if not rest:
            await _list(_access(session))
        case "search" if rest:
            await _search(_access(session), rest)
        case "add" if rest:
            memory = _access(session)
            try:
                entry = await memory.memory.add(rest, scope=memory.user)
            except SecretRefused as error:
                if not confirm_secret(error):
                    note("nothing was stored")
                    return
                entry = await memory.memory.add(rest, scope=memory.user, keep_secrets=True)
            note(f"remembered as {short_identity(entry)}")
        case "rm" if rest:
            for identity in rest.split():
                memory = _access(session)
                scopes = await visible_scopes(memory.memory, memory.settings)
                note(describe_deleted(await memory.memory.remove(identity, scopes=scopes)))
        case _:
            raise RequestError(USAGE)


def _access(session: Session) -> MemoryHook:
    hook: TurnHook = session.access_memory()
    assert isinstance(hook, MemoryHook)
    return hook


async def _print_status(session: Session, conversation: Conversation) -> None:
    attends = any(one.name == MEMORY.name for one in conversation.hooks)
    offered = any(one.ensemble == MEMORY.name for one in conversation.invokers.values())
    if not attends and not offered:
        note("memory is off; to turn it on: /memory on")
        return
    note("memory is on" + ("" if attends else ": the model uses it with its tools"))
    canisters = conversation.canisters
    recalled = [one for one in canisters[start_of_turn(canisters) or 0 :] if is_recalled(one)]
    for canister in recalled:
        note("recalled for the last message:")
        for line in (await _read(session, canister)).splitlines():
            if line.startswith("["):
                write(sys.stdout, f"  {shown(line)}\n")
    if attends and not recalled:
        note("nothing was recalled for the last message")
    if attends:
        _print_intakes(session)


def _print_intakes(session: Session) -> None:
    memory = _access(session)
    lines = [line for report in memory.reports for line in report.describe()]
    if lines:
        note("in this session:")
    for line in lines:
        write(sys.stdout, f"  {shown(one_line(line))}\n")
    if left := session.background.pending:
        note(f"({'a turn is' if left == 1 else f'{left} turns are'} still to be remembered)")


async def _read(session: Session, canister: Canister) -> str:
    parts: list[str] = []
    for content in canister.contents:
        data = getattr(content, "data", "")
        parts.append(data if isinstance(data, str) else (await session.load(data)).decode())
    return "\n".join(parts)


async def _switch(session: Session, conversation: Conversation, *, on: bool) -> None:
    attends = any(one.name == MEMORY.name for one in conversation.hooks)
    offers = any(one.name == MEMORY.name for one in conversation.ensembles)
    if on and session.configuration.memory_mode == "tools":
        await conversation.offer(MEMORY.name)
    elif on:
        conversation.add_hook(_access(session))
    else:
        if attends:
            conversation.remove_hook(MEMORY.name)
        if offers:
            conversation.withhold(MEMORY.name)


async def _list(memory: MemoryHook) -> None:
    entries = await memory.memory.survey(memory.user)
    for entry in entries[-_LISTED:]:
        print_entry(entry)
    if left := len(entries[:-_LISTED]):
        note(f"(and {left} older; to list all: vibe-llms memory list)", dim=True)
    if not entries:
        note("no entries yet")


async def _search(memory: MemoryHook, question: str) -> None:
    found = await memory.memory.search(question, scopes=(memory.user, GLOBAL))
    for one in found:
        print_entry(one.entry)
    if not found:
        note("no matching entries")
