"""Following a run at a terminal, and the background process that works on runs."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.detaching import detach
from vibe_llms.cli.display import Display, Silence
from vibe_llms.cli.running import ENDINGS, signals
from vibe_llms.cli.terminal import note, write_json
from vibe_llms.messages.events import Event, Notice, NoticeEvent
from vibe_llms.runs.core import Runs
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    ConversationChanged,
    RunContinued,
    RunEvent,
    RunExpired,
    encode_event,
)
from vibe_llms.runs.replay import Replay
from vibe_llms.runs.run import Run

_LOG = "runs.log"
#: Seconds between checks that a process works on the run, and before starting another.
_POLL_SECONDS = 1.0
_AGAIN_SECONDS = 10.0
_TRIES = 3

#: Asks the user for what a run needs; returns True to follow the run further.
Attend: TypeAlias = Callable[[ApprovalRequested | AnswerRequested], Awaitable[bool]]


def start_worker(configuration: Configuration) -> None:
    """Start a process that works on runs until none is left."""
    detach(["runs", "work"], log_of(configuration))


def log_of(configuration: Configuration) -> Path:
    """Return the log file of the processes that work on runs."""
    return configuration.places.state / _LOG


@asynccontextmanager
async def attended(runs: Runs, configuration: Configuration) -> AsyncIterator[None]:
    """Ensure during the block that some process works on runs."""
    task = asyncio.create_task(_attend(runs, configuration))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _attend(runs: Runs, configuration: Configuration) -> None:
    started, tries = 0.0, 0
    while True:
        if not await runs.are_left():
            tries = 0
        elif not tries or time.monotonic() > started + _AGAIN_SECONDS:
            if tries == _TRIES:
                note(f"note: no process is working on the run; see {log_of(configuration)}")
                return
            start_worker(configuration)
            started, tries = time.monotonic(), tries + 1
        await asyncio.sleep(_POLL_SECONDS)


def _describe_move(event: RunEvent, shown: Collection[str]) -> Event | None:
    """Describe that a run starts again or continues elsewhere; `shown` are ids of messages."""
    match event:
        case RunContinued(message=message) if message in shown:
            return NoticeEvent(notice=Notice("run", "the reply was cut off and is starting again"))
        case ConversationChanged(conversation=conversation):
            text = f"the run continues in the conversation {conversation}, a fork"
            return NoticeEvent(notice=Notice("fork", text))
        case RunExpired():
            text = "its events were deleted; the reply is in: vibe-llms runs show"
            return NoticeEvent(notice=Notice("run", text))
    return None


async def follow(
    run: Run, display: Display | Silence, attend: Attend, *, after: int = 0, lines: bool = False
) -> bool:
    """Show the events of a run until it ends; return True if it has ended.

    Ctrl-C stops following, and so does `attend`; the run continues. With `lines`, each event is
    printed as a line of JSON with its cursor.
    """
    task = asyncio.ensure_future(_show(run, display, attend, after=after, lines=lines))
    with signals(dict.fromkeys((signal.SIGINT, *ENDINGS), task.cancel)):
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return False
        finally:
            display.pause()
            display.close()


async def _show(
    run: Run, display: Display | Silence, attend: Attend, *, after: int, lines: bool
) -> bool:
    replay = Replay(run)
    display.begin(run.record.recipe.model)
    async for cursor, event in run.events(after=after):
        if lines:
            members = msgspec.json.decode(encode_event(event))
            write_json(msgspec.json.encode({"cursor": cursor, **members}).decode())
        elif (
            translated := await replay.read(event) or _describe_move(event, replay.shown)
        ) is not None:
            display(translated)
        if isinstance(event, ApprovalRequested | AnswerRequested) and not await attend(event):
            return False
    display.finish()
    return True
