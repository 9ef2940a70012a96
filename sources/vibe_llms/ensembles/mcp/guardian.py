"""What ends a server and all that it has started when our own process is killed.

A signal at the death of the parent (PR_SET_PDEATHSIG) is bound to the thread that started the
child, would have to be asked for between fork and exec, where no Python is safe with threads, and
reaches no grandchild. So a shell waits for the end of a pipe that nobody but us can write to: when
it ends without a word, the server's whole process group is killed.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

from vibe_llms.credentials import get_logger

_LOGGER = get_logger("vibe_llms.ensembles.mcp")
_SHELL = "/bin/sh"
_PROGRAM = 'read -r word || kill -s KILL -- "-$1"'
_RELEASE_SECONDS = 2.0


class Guardian:
    """Watches over one process group until it is released."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def watch(self, group: int) -> None:
        """Begin; where there is no shell, a server has only the end of its standard input."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(_SHELL, "-c", _PROGRAM, _SHELL, str(group)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            _LOGGER.warning("nobody watches over the process group %s: %s", group, error)

    async def release(self) -> None:
        """The group has ended, and its number may be another's soon; safe to call again."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.write(b"released\n")
            await process.stdin.drain()
        process.stdin.close()
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        transport: Any = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()
        self._process = None


def has_ended(group: int) -> bool:
    """Whether no process is left in a group; one that has ended and is not reaped counts."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
