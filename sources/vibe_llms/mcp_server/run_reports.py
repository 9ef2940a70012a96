"""`RunFollower`: waits for a run, with progress, and reports it as tools return it."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Annotated, Literal

from msgspec import Meta, Struct

from vibe_llms.mcp_server.bounds import MOST_BYTES, cut_text
from vibe_llms.mcp_server.calls import McpCall
from vibe_llms.messages.canisters import Usage
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    ConversationChanged,
    MessageDelta,
    MessageStarted,
    RunContinued,
    RunEnded,
    RunEvent,
    RunExpired,
    RunNotice,
)
from vibe_llms.runs.interfaces import CallApproval, RunQuestion, RunStatus
from vibe_llms.runs.run import Run

#: Seconds between reports of progress: clients end calls after 60 seconds of silence.
PROGRESS_SECONDS = 20.0
#: Seconds between reads of the state of a run that is about to wait.
_POLL_SECONDS = 0.1


class RunUsage(Struct):
    """Tokens that the models of a run read and wrote."""

    input_tokens: int
    output_tokens: int


class WaitsFor(Struct, kw_only=True):
    """A tool call that needs approval, or a question. Only the user decides, never a model."""

    kind: Literal["approval", "question"]
    id: str
    tool: str
    text: str


class RunReport(Struct, kw_only=True):
    """A run. Continue its conversation by passing `conversation` to chat."""

    conversation: Annotated[str, Meta(description="Id to continue the conversation with chat.")]
    run: Annotated[str, Meta(description="Id for wait and cancel.")]
    status: Annotated[
        str,
        Meta(
            description="queued, running, waiting (for the user), completed, failed or cancelled."
        ),
    ]
    text: Annotated[
        str, Meta(description="The reply; while the run has not ended, what there is of it.")
    ]
    cut: Annotated[
        bool, Meta(description="True if the reply is longer; read_conversation has the whole.")
    ]
    usage: RunUsage
    error: str
    waits_for: list[WaitsFor]
    note: Annotated[str, Meta(description="Says how to go on, if the run has not ended.")]


class RunFollower:
    """Follower of a run during one call of a tool."""

    def __init__(self, run: Run, call: McpCall) -> None:
        self.run = run
        self._call = call
        self._text = ""
        self._reply = ""
        self._begun = time.monotonic()
        self._told = self._begun
        self._after = 0
        self._asked = False
        self._ended = False
        self._changed = asyncio.Event()

    async def wait(self, seconds: float, *, eager: bool = False) -> None:
        """Wait until the run ends or waits for the user, at most some seconds; report progress.

        With `eager`, it also returns if something is asked while other calls are running.
        """
        deadline = time.monotonic() + seconds
        task = asyncio.create_task(self._follow())
        try:
            while not (self._ended or task.done()):
                if self._asked and await self._is_waiting(eager):
                    return
                now = time.monotonic()
                if now >= deadline:
                    return
                if now >= self._told + PROGRESS_SECONDS:
                    await self._report(now)
                until = min(deadline, self._told + PROGRESS_SECONDS)
                pause = max(until - time.monotonic(), 0.0)
                self._changed.clear()
                await _wait_for(self._changed, min(pause, _POLL_SECONDS) if self._asked else pause)
            if task.done():
                # Errors of the store are those of the call.
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def resume(self) -> None:
        """Go on after the user has decided."""
        self._asked = False

    async def _is_waiting(self, eager: bool) -> bool:
        if (await self.run.access()).status is RunStatus.WAITING:
            return True
        return eager and any(await self.survey_open())

    async def _report(self, now: float) -> None:
        self._told = now
        run = self.run.identity
        text = f"run {run}: {len(self._text):,} characters so far"
        await self._call.report(round(now - self._begun, 1), None, text)

    async def _follow(self) -> None:
        async with aclosing(self.run.events(after=self._after)) as events:
            async for cursor, event in events:
                self._after = cursor
                await self._take(event)

    async def _take(self, event: RunEvent) -> None:
        match event:
            case MessageStarted(role="assistant", reply=reply):
                self._text, self._reply = ("" if reply != self._reply else self._text), reply
            case MessageDelta(text=text, kind="text"):
                self._text += text
            case RunContinued():
                self._text, self._asked = "", False
            case ApprovalRequested() | AnswerRequested():
                self._asked = True
            case RunNotice(text=text):
                await self._call.log("notice", text)
            case ConversationChanged():
                await self.run.access()
            case RunEnded() | RunExpired():
                self._ended = True
            case _:
                return
        self._changed.set()

    async def survey_open(self) -> tuple[list[CallApproval], list[RunQuestion]]:
        """Return the calls that wait for an approval, and the questions that wait for an answer."""
        approvals = [one for one in await self.run.survey_approvals() if one.allowed is None]
        questions = [one for one in await self.run.survey_questions() if one.answer is None]
        return approvals, questions

    async def describe(self, error: str = "", note: str = "") -> RunReport:
        """Return the report of the run as it is now."""
        record = await self.run.access()
        turn = await self.run.read()
        ended = record.status.ended
        text, cut = cut_text((turn.text or self._text) if ended else (self._text or turn.text))
        waits = [] if ended else await self._describe_open()
        return RunReport(
            conversation=record.conversation,
            run=record.identity,
            status=str(record.status),
            text=text,
            cut=cut,
            usage=_describe_usage(turn.usage),
            error=cut_text(error)[0] if record.status is RunStatus.FAILED else "",
            waits_for=waits,
            note="" if ended else note,
        )

    async def _describe_open(self) -> list[WaitsFor]:
        approvals, questions = await self.survey_open()
        calls = await self.run.survey_calls() if approvals else {}
        most = MOST_BYTES // max(len(approvals) + len(questions), 1)
        waits = []
        for one in approvals:
            call = calls.get(one.invocation)
            arguments = call.arguments if call is not None else ""
            text, _ = cut_text(f"{one.reason}: {arguments}" if one.reason else arguments, most)
            waits.append(WaitsFor(kind="approval", id=one.invocation, tool=one.name, text=text))
        for asked in questions:
            text, _ = cut_text(asked.request.message, most)
            waits.append(WaitsFor(kind="question", id=asked.identity, tool=asked.name, text=text))
        return waits


def _describe_usage(usage: Usage) -> RunUsage:
    return RunUsage(usage.input_tokens, usage.output_tokens + usage.reasoning_tokens)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
