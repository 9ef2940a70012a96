"""A process that holds turns with tools which have effects, and is killed in the middle of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vibe_llms.conversations import turn_storage
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.events import Event
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, ScriptedReply, scripted_model

CONFIGURATION = {
    "storage": {"durability": "fast"},
    "tools": {"max-rounds": 1000, "max-calls": 10_000},
}
JOURNAL = "journal"
_CONTEXT = multiprocessing.get_context("forkserver")
_PATIENCE_SECONDS = 60


def improvise(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
    """Three calls whose numbers follow on those of all calls that are in the history."""
    first = sum(isinstance(canister, InvocationCanister) for canister in canisters)
    calls = [Part(invocation="act", arguments={"number": first + n}) for n in range(3)]
    return ScriptedReply(parts=(Part(text=("I ", "act. ")), *calls))


def kill_in_turn(folder: Path, identity: str, seed: int, *, careless: bool = False) -> None:
    """Let a process go on with a conversation, and kill it at a random moment of its turn."""
    chance = random.Random(seed)
    reading, writing = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(
        target=_carry_out, args=(folder, identity, writing, careless), daemon=True
    )
    process.start()
    writing.close()
    for _ in range(chance.randrange(1, 40)):
        assert reading.poll(_PATIENCE_SECONDS), "the process reports nothing more"
        reading.recv_bytes()
    time.sleep(chance.random() * 0.004)
    process.kill()
    process.join(_PATIENCE_SECONDS)
    process.close()
    reading.close()


def _carry_out(folder: Path, identity: str, writing: Connection, careless: bool) -> None:
    if careless:
        _run_calls_before_they_are_kept()
    asyncio.run(_hold(folder, identity, lambda text: writing.send_bytes(text.encode())))


async def _hold(folder: Path, identity: str, report: Callable[[str], None]) -> None:
    descriptor = os.open(folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def act(number: int) -> str:
        """Have an effect."""
        os.write(descriptor, b"%d\n" % number)
        return f"acted {number}"

    def handle(event: Event) -> None:
        report(type(event).__name__)

    async with open_session(home=folder, configuration=CONFIGURATION) as session:
        conversation = await session.resume(
            identity, model=scripted_model(improvise), invokers=[act], event_handler=handle
        )
        await conversation.converse("Go")


def _run_calls_before_they_are_kept() -> None:
    """The seeded bug: a reply with calls is kept together with the first result."""
    keep, held = turn_storage.TurnStorage.keep, list[Any]()

    async def keep_late(self: Any, canisters: Sequence[Canister]) -> None:
        held.extend(canisters)
        if not isinstance(canisters[-1], InvocationCanister):
            # As on a slow disk, so that a kill comes in between.
            await asyncio.sleep(0.01)
            await keep(self, list(held))
            held.clear()

    setattr(turn_storage.TurnStorage, "keep", keep_late)  # noqa: B010
