"""A program that uses a server with a descendant, and ends in one of the ways of ending.

python -m tests.faults.mcp_host WAY FAMILY BEHAVIOUR [unguarded]
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
from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.ensembles.mcp import McpEnsemble, guardian

WAYS = ("return", "raise", "cancel", "timeout", "SIGINT", "SIGTERM", "SIGKILL")


async def live(way: str, family: str, behaviour: str) -> None:
    row = {
        "module": "vibe_llms.ensembles.mcp",
        "command": [sys.executable, str(Path(mcp_server.__file__)), behaviour],
        "environment": {VARIABLE: family},
        "open-seconds": 60,
        "list-seconds": 60,
        "call-seconds": 0.2,
    }
    async with open_session(configuration={"ensembles": {"fake": row}}) as session:
        server = await session.open_ensemble("fake")
        assert isinstance(server, McpEnsemble)
        match way:
            case "return":
                return
            case "raise":
                raise LookupError
            case "timeout":
                try:
                    await server.invoke("echo", '{"text": "hang"}')
                except EnsembleFailed as error:
                    raise LookupError from error
            case "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(60)
            case _:
                os.kill(os.getpid(), signal.Signals[way])
                await asyncio.sleep(60)


if __name__ == "__main__":
    if "unguarded" in sys.argv:
        guardian.__file__ = str(Path(__file__).parent / "unguarded.py")
    try:
        asyncio.run(live(*sys.argv[1:4]))
    except (LookupError, KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(3)
