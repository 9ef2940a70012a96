"""`Replay`: turns the events of a run back into the events of its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vibe_llms.messages.canisters import Canister, InvocationCanister, ResultCanister, UserCanister
from vibe_llms.messages.events import (
    Chunk,
    Event,
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    Notice,
    NoticeEvent,
    ReasoningChunk,
    SteeringDeliveredEvent,
    TextChunk,
)
from vibe_llms.runs.events import (
    CallEnded,
    CallProgress,
    CallStarted,
    DeltaKind,
    MessageAdded,
    MessageDelta,
    MessageStarted,
    RunEvent,
    RunNotice,
)
from vibe_llms.runs.run import Run

_CHUNKS: Mapping[DeltaKind, Callable[[str], Chunk]] = {
    "text": TextChunk,
    "reasoning": ReasoningChunk,
    "arguments": InvocationChunk,
}


class Replay:
    """The inverse of `vibe_llms.runs.recorder.translate`, for one follower of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, Canister] = {}
        #: Identities of messages with visible deltas.
        self.shown: set[str] = set()

    async def read(self, event: RunEvent) -> Event | None:
        """Return the event of the turn; `None` for events that only runs have."""
        match event:
            case MessageStarted(message=message, role=role, reply=reply, name=name):
                return MessageStartedEvent(role, name, message=message, reply=reply)
            case MessageDelta(message=message, text=text, kind=kind):
                self.shown.add(message)
                return MessageProgressEvent(_CHUNKS[kind](text), message=message)
            case CallProgress(invocation=call, text=text, done=done, total=total):
                invocation = await self._find(call)
                if isinstance(invocation, InvocationCanister):
                    return InvocationProgressEvent(text, done, total, invocation=invocation)
            case CallStarted(invocation=call):
                invocation = await self._find(call)
                if isinstance(invocation, InvocationCanister):
                    return InvocationStartedEvent(invocation=invocation)
            case CallEnded(invocation=call, result=identity, failed=failed):
                invocation, result = await self._find(call), await self._find(identity)
                kind_of = InvocationFailedEvent if failed else InvocationCompletedEvent
                if isinstance(invocation, InvocationCanister) and isinstance(
                    result, ResultCanister
                ):
                    return kind_of(result, invocation=invocation)
            case MessageAdded(message=message):
                added = await self._find(message)
                if isinstance(added, UserCanister):
                    return SteeringDeliveredEvent(canister=added)
            case RunNotice(subject=subject, text=text, message=message, name=name):
                return NoticeEvent(notice=Notice(subject, text, message, name))
        return None

    async def _find(self, identity: str) -> Canister | None:
        if identity not in self._known:
            turn = await self._run.read()
            self._known = {one.identity: one for one in turn.canisters}
        return self._known.get(identity)
