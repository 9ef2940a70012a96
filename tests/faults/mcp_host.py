"""A program that uses a server with a grandchild, and ends in one of the ways of ending.

python -m tests.faults.mcp_host WAY FAMILY
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.fakes import mcp_server
from tests.faults.family import VARIABLE
from vibe_llms import open_session
from vibe_llms.ensembles.mcp.guardian import Guardian

WAYS = ("return", "raise", "cancel", "SIGINT", "SIGTERM", "SIGKILL")


async def live(way: str, family: str) -> None:
    row = {
        "module": "vibe_llms.ensembles.mcp",
        "command": [sys.executable, str(Path(mcp_server.__file__)), "grandchild"],
        "environment": {VARIABLE: family},
        "open-seconds": 60,
        "list-seconds": 60,
    }
    async with open_session(configuration={"ensembles": {"fake": row}}) as session:
        await session.open_ensemble("fake")
        match way:
            case "return":
                return
            case "raise":
                raise LookupError
            case "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(60)
            case _:
                os.kill(os.getpid(), signal.Signals[way])
                await asyncio.sleep(60)


async def watch_nobody(self: Guardian, group: int) -> None:
    """What there would be without a guardian."""


if __name__ == "__main__":
    if "unguarded" in sys.argv:
        Guardian.watch = watch_nobody  # type: ignore[method-assign]
    try:
        asyncio.run(live(sys.argv[1], sys.argv[2]))
    except (LookupError, KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(3)
