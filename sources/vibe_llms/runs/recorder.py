"""`RunRecorder`: records the events of a run and shows them to followers in this process."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import takewhile

from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.base.futures import finish
from vibe_llms.base.redaction import redact
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    NoticeEvent,
    ReasoningChunk,
    SteeringDeliveredEvent,
    SteeringWithdrawnEvent,
    TextChunk,
)
from vibe_llms.runs.events import (
    CallEnded,
    CallProgress,
    CallStarted,
    ConversationChanged,
    DeltaKind,
    MessageAdded,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunEvent,
    RunNotice,
    cut,
    encode_event,
    first_cursor,
    is_more,
    join,
    measure,
)
from vibe_llms.runs.interfaces import Lease, RunWriter

#: Deltas are recorded after this many seconds or characters.
_FLUSH_SECONDS = 0.05
_FLUSH_CHARACTERS = 4096
#: Seconds for which recording is retried while the store is unavailable, and between attempts.
_AWAY_SECONDS = 10.0
_RETRY_SECONDS = 0.3
#: Characters of recorded events kept for followers, who then need not read the store.
_RECENT_CHARACTERS = 1024


def _ignore(_: BaseException) -> None:
    pass


class RunRecorder:
    """Event handler of a recorded turn.

    Followers see more text of a message at once; it is recorded within 50 ms. They see the start of
    a text, and all other events, only after these are recorded, so that the next worker knows what
    they have seen if this process is killed. The completion of a message is shown only after
    `report_kept` has named it, so a follower that sees it finds the message in the history.
    """

    def __init__(
        self,
        store: RunWriter,
        lease: Lease,
        *,
        fail: Callable[[BaseException], object] = _ignore,
    ) -> None:
        """Create a recorder for an epoch; `fail` is called with an error that stops recording."""
        self._store = store
        self._lease = lease
        self._position = first_cursor(lease.epoch)
        #: Cursor of the last recorded event.
        self.recorded = self._position
        self._last: RunEvent | None = None
        #: The most recent recorded events: all after the cursor `start`.
        self._recent: deque[tuple[int, RunEvent]] = deque()
        # No event precedes the first epoch.
        self.start = 0 if lease.epoch == 1 else self._position
        #: Events not recorded yet; the first `_writing` are being written.
        self._pending: list[tuple[int, RunEvent]] = []
        self._writing = 0
        self._characters = 0
        self._dropped = self._left = self._closing = False
        #: Events after a message that is complete but not durable.
        self._held: list[RunEvent] = []
        self._awaited: set[str] = set()
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task = asyncio.create_task(self._flush_often(), name=f"recorder of {lease.run}")
        self._fail = fail
        self._task.add_done_callback(self._report)

    def __call__(self, event: Event) -> None:
        """Record an event of the turn."""
        translated = translate(event)
        if translated is None:
            return
        if isinstance(translated, MessageCompleted):
            self._awaited.add(translated.message)
        if self._awaited:
            self._held.append(translated)
        else:
            self.put(translated)

    def report_kept(self, identities: Collection[str]) -> None:
        """Release the events that waited for these messages to be durable."""
        self._awaited.difference_update(identities)
        if not self._awaited:
            held, self._held = self._held, []
            for event in held:
                self.put(event)

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def put(self, event: RunEvent) -> None:
        """Record an event of the run."""
        if self._dropped:
            return
        size = measure(event)
        self._position += size
        last = len(self._pending) - 1
        before = self._pending[-1][1] if self._pending else self._last
        joined = join(self._pending[-1][1], event) if last >= self._writing else None
        if joined is None:
            self._pending.append((self._position, event))
        else:
            self._pending[-1] = (self._position, joined)
        self._characters += size
        if not is_more(before, event) or self._characters >= _FLUSH_CHARACTERS:
            self._wanted.set()
        self._news.set()

    def read(self, after: int) -> Sequence[tuple[int, RunEvent]]:
        """Return recorded events after a cursor (from `start`), and text that continues them."""
        last = self._last
        recorded = cut(self._recent, after) if after < self.recorded else ()
        more = takewhile(lambda one: is_more(last, one[1]), self._pending)
        return [*recorded, *cut(more, after)]

    async def wait(self, after: int) -> None:
        """Wait until there are events after a cursor, or this process has left the run."""
        while self.recorded <= after and not self.read(after) and not self._left:
            self._news.clear()
            await self._news.wait()

    def leave(self) -> None:
        """Tell followers to read the store, because this process has left the run."""
        self._left = True
        self._news.set()

    async def flush(self) -> None:
        """Record pending events, and the conversation if the run moved to another.

        Raises `LeaseLost` if another process has the run, even if nothing is pending.
        """
        async with self._lock:
            # If this were cancelled after the store's commit, the events would be recorded twice.
            await finish(self._write())

    async def _write(self) -> None:
        batch = [*self._pending]
        if not batch:
            await self._store.check(self._lease)
            return
        self._writing = len(batch)
        try:
            await self._append(batch)
        finally:
            self._writing = 0
        if not self._dropped:
            del self._pending[: len(batch)]
            self.recorded, self._last = batch[-1]
            self._recent += batch
            while self.recorded - self._recent[0][0] > _RECENT_CHARACTERS:
                self.start, _ = self._recent.popleft()
            self._news.set()
        self._characters = sum(measure(event) for _, event in self._pending)

    async def _append(self, batch: Sequence[tuple[int, RunEvent]]) -> None:
        """Append events to the store, retrying for a short time while it is unavailable."""
        moved = [one.conversation for _, one in batch if isinstance(one, ConversationChanged)]
        conversation, events = moved[-1] if moved else "", _encode(batch)
        lease, end = self._lease, time.monotonic() + _AWAY_SECONDS
        found: Sequence[tuple[int, bytes]] = ()
        while not found or found[0][0] != events[0][0]:
            try:
                await self._store.append_events(lease, events, conversation=conversation)
                return
            except StorageUnavailable as error:
                if self._dropped or error.refused or time.monotonic() > end:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
            # After a broken connection, the events may have been recorded.
            with suppress(StorageUnavailable):
                found = await self._store.read_events(
                    lease.user, lease.run, after=self.recorded, limit=1
                )

    async def close(self, *last: RunEvent) -> Sequence[tuple[int, bytes]]:
        """Stop recording; return the unrecorded events, followed by `last`.

        The caller records them together with the state that they announce, so that followers can
        act on them. Raises the error of an earlier failed recording.
        """
        # Not cancelled, because an interrupted write would be repeated.
        self._closing = True
        self._news.set()
        self._wanted.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            await self._task
        # Break the reference cycle with the owner of this recorder.
        self._fail = _ignore
        self.report_kept([*self._awaited])
        ends = [(self._position + place, event) for place, event in enumerate(last, 1)]
        return _encode([*self._pending, *ends])

    def drop(self) -> None:
        """Record nothing more, not even pending events."""
        self._dropped = True
        self._task.cancel()
        self._pending.clear()

    async def _flush_often(self) -> None:
        while True:
            while not self._pending and not self._closing:
                self._news.clear()
                await self._news.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._wanted.wait()
            if self._closing:
                return
            self._wanted.clear()
            await self.flush()


def _encode(events: Sequence[tuple[int, RunEvent]]) -> Sequence[tuple[int, bytes]]:
    return [(cursor, encode_event(event)) for cursor, event in events]


def translate(event: Event) -> RunEvent | None:
    """Translate an event of a turn; `None` if the history has all of its information."""
    match event:
        case MessageStartedEvent(message=message, role=role, reply=reply, name=name):
            return MessageStarted(message, role, reply, name)
        case MessageProgressEvent(message=message, chunk=chunk):
            return MessageDelta(message, chunk.text, _kind_of(chunk))
        case MessageCompletedEvent(message=message):
            return MessageCompleted(message)
        case MessageFailedEvent(error=StorageUnavailable()):
            # The run continues from the durable messages, and announces that this one starts again.
            return None
        case MessageFailedEvent(message=message, error=error):
            return MessageFailed(message, redact(str(error)) or type(error).__name__)
        case InvocationStartedEvent(invocation=call):
            return CallStarted(call.identity, call.name)
        case InvocationProgressEvent(invocation=call, text=text, done=done, total=total):
            return CallProgress(call.identity, text, done, total)
        case InvocationCompletedEvent(invocation=call, result=result):
            return CallEnded(call.identity, result.identity)
        case InvocationFailedEvent(invocation=call, result=result):
            return CallEnded(call.identity, result.identity, failed=True)
        case SteeringDeliveredEvent(canister=canister):
            return MessageAdded(canister.identity)
        case SteeringWithdrawnEvent(canister=canister, reason=reason):
            return RunNotice(
                "steering", f"an added message was not sent: {reason}", canister.identity
            )
        case NoticeEvent(notice=notice):
            return RunNotice(notice.subject, notice.text, notice.canister, notice.name)
        case _:
            return None


def _kind_of(chunk: TextChunk | ReasoningChunk | InvocationChunk) -> DeltaKind:
    match chunk:
        case TextChunk():
            return "text"
        case ReasoningChunk():
            return "reasoning"
        case InvocationChunk():
            return "arguments"
