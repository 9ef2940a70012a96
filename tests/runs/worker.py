"""A process that works on runs until it is killed: `python -m tests.runs.worker HOME [APPENDS]`.

Its tool appends the call that it runs to a file, so that the test counts its effects. With a
number, it kills itself once it has appended messages to a history so often.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from vibe_llms import Invoker, open_session
from vibe_llms.conversations.history import History
from vibe_llms.invocation.invokers import InvocationContext

SCRIPT = """
[[replies]]
[[replies.parts]]
text = "I shall transfer the sums one after the other, with care."
[[replies.parts]]
invocation = "transfer"
arguments = {sum = 1}
[[replies.parts]]
invocation = "transfer"
arguments = {sum = 2}
[[replies]]
[[replies.parts]]
invocation = "transfer"
arguments = {sum = 3}
[[replies]]
[[replies.parts]]
text = "All of the sums have been transferred, as far as I know."
"""


def settings_of(home: Path) -> dict[str, Any]:
    """The configuration that all processes of the test share."""
    return {
        "runs": {"lease-seconds": 0.4},
        "providers": {
            "scripted": {"scripts": {"bank": str(home / "bank.toml")}, "pace-seconds": 0.005}
        },
    }


def produce_tools(home: Path) -> list[Invoker]:
    """The tool with effects; it takes some time before and after them."""

    async def transfer(context: InvocationContext, sum: int) -> str:  # noqa: A002
        await asyncio.sleep(0.02)
        effect = os.open(home / "effects", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(effect, f"{context.invocation.identity}\n".encode())
        os.close(effect)
        await asyncio.sleep(0.02)
        return f"sent {sum}"

    return [Invoker.from_function(transfer)]


async def work(home: Path) -> None:
    """Work on the runs of a home."""
    tools = produce_tools(home)
    async with open_session(home=home, configuration=settings_of(home), invokers=tools) as session:
        session.access_runs().worker.poke()
        await asyncio.Event().wait()


def die_after(appends: int) -> None:
    """Have this process killed once it has appended messages to a history so often."""
    append, kept = History.append, 0

    async def wrapped(self: History, *values: Any, **named: Any) -> None:
        nonlocal kept
        await append(self, *values, **named)
        kept += 1
        if kept == appends:
            os.kill(os.getpid(), signal.SIGKILL)

    History.append = wrapped  # type: ignore[method-assign]


if __name__ == "__main__":
    for number in sys.argv[2:]:
        die_after(int(number))
    asyncio.run(work(Path(sys.argv[1])))
