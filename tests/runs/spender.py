"""A process that asks a scripted model as fast as a budget lets it, and reports what was served."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from vibe_llms import open_session
from vibe_llms.base.exceptions import BudgetExceeded
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import MessageStartedEvent

#: 20,000 tokens are read and 1,000 written: nearly the worst case, so that nothing hides a request
#: that was not reserved. The delay lets requests run at the same time.
REPLIES = {
    "replies": [
        {
            "when": ".",
            "parts": [{"text": "Yes.", "delay-seconds": 0.05}],
            "usage": {"uncached-input-tokens": 20_000, "output-tokens": 1_000},
        }
    ]
}
USED = 21_000
TEXT = "word " * 4000


async def spend(home: str, requests: int) -> int:
    """How many requests were answered."""
    async with open_session(home=home) as session:

        async def ask() -> int:
            conversation = await session.begin("scripted/one", save=False)
            try:
                turn = await conversation.converse(TEXT, controls=Controls(output_tokens=1000))
            except BudgetExceeded:
                return 0
            assert turn.usage.total_tokens == USED
            return 1

        return sum(await asyncio.gather(*(ask() for _ in range(requests))))


async def stall(home: str) -> None:
    """Begin a reply that never ends, and say when it has begun."""
    begun = asyncio.Event()

    def report(event: Any) -> None:
        if isinstance(event, MessageStartedEvent):
            begun.set()

    async with open_session(home=home, event_handler=report) as session:
        conversation = await session.begin("scripted/stall", save=False)
        turn = asyncio.ensure_future(
            conversation.converse("Hello!", controls=Controls(output_tokens=1000))
        )
        await begun.wait()
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        await turn


if __name__ == "__main__":
    if sys.argv[2] == "stall":
        asyncio.run(stall(sys.argv[1]))
    else:
        sys.stdout.write(f"{asyncio.run(spend(sys.argv[1], int(sys.argv[2])))}\n")
