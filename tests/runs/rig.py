"""Sessions on one home, as processes of one user would be, and what their tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from vibe_llms import Invoker, Session, open_session
from vibe_llms.conversations.tools import Tool
from vibe_llms.invocation.invokers import Approval
from vibe_llms.runs import MessageDelta, Run, RunEvent

TEXT = "one two three four five six seven eight"
SCRIPTS = {
    "talk": f'[[replies]]\nwhen = ".*"\n[[replies.parts]]\ntext = "{TEXT}"\n',
    "slow": '[[replies]]\n[[replies.parts]]\ntext = "first "\n[[replies.parts]]\nstall = true\n',
    "silent": "[[replies]]\n[[replies.parts]]\nstall = true\n",
    "call": (
        '[[replies]]\n[[replies.parts]]\ninvocation = "transfer"\narguments = {sum = 3}\n'
        '[[replies]]\n[[replies.parts]]\ntext = "It is done."\n'
    ),
    "twice": (
        '[[replies]]\n[[replies.parts]]\ninvocation = "transfer"\narguments = {sum = 3}\n'
        '[[replies.parts]]\ninvocation = "look"\n'
        '[[replies]]\n[[replies.parts]]\ntext = "Both are done."\n'
    ),
    "pauses": (
        '[[replies]]\nstop-reason = "paused"\n[[replies.parts]]\ntext = "One."\n'
        '[[replies]]\nstop-reason = "paused"\n[[replies.parts]]\ntext = "Two."\n'
        '[[replies]]\n[[replies.parts]]\ntext = "Three"\n[[replies.parts]]\nstall = true\n'
    ),
    "fail": '[[replies]]\n[[replies.parts]]\nerror = "overloaded"\n',
}


class Bank:
    """Tools whose effects are counted; `transfer` may hang until it is cancelled."""

    def __init__(self) -> None:
        self.transfers = 0
        self.looks = 0
        self.began = asyncio.Event()
        self.hangs = False

    async def transfer(self, sum: int) -> str:  # noqa: A002
        self.transfers += 1
        self.began.set()
        if self.hangs:
            await asyncio.Event().wait()
        return f"sent {sum}"

    async def look(self) -> str:
        self.looks += 1
        return "nothing"


class Rig:
    """A home that several processes use, each of them a session here."""

    def __init__(self, home: Path, stack: AsyncExitStack) -> None:
        self.home = home
        self.bank = Bank()
        self._stack = stack
        for name, script in SCRIPTS.items():
            (home / f"{name}.toml").write_text(script)

    async def open(
        self,
        *,
        approval: Approval = "allow",
        parallel: int = 64,
        rounds: int = 9,
        **marks: Any,
    ) -> Session:
        """A session with the tools of the bank."""
        scripts = {name: str(self.home / f"{name}.toml") for name in SCRIPTS}
        settings = {
            "storage": {"durability": "fast"},
            "runs": {"lease-seconds": 1, "parallel": parallel},
            "stream": {"retries": 0},
            "tools": {"max-rounds": rounds},
            "providers": {"scripted": {"scripts": scripts}},
        }
        transfer = Invoker.from_function(self.bank.transfer, approval=approval, **marks)
        tools: list[Tool] = [transfer, self.bank.look]
        return await self._stack.enter_async_context(
            open_session(home=self.home, configuration=settings, invokers=tools)
        )

    async def start(self, session: Session, script: str) -> Run:
        """A run of a script with all tools."""
        conversation = await session.begin(
            f"scripted/{script}", invokers=session.registered_invokers.values()
        )
        return await session.start(conversation, "Go on.")


async def follow(run: Run, after: int = 0) -> list[tuple[int, RunEvent]]:
    return [one async for one in run.events(after=after)]


async def wait_for(run: Run, kind: type[Any]) -> tuple[int, Any]:
    """The first event of a kind, and its cursor."""
    async for cursor, event in run.events():
        if isinstance(event, kind):
            return cursor, event
    raise AssertionError(f"there was no {kind}")


def text_of(events: Sequence[tuple[int, RunEvent]]) -> str:
    return "".join(one.text for _, one in events if isinstance(one, MessageDelta))
