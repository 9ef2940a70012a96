"""What a recorder writes, keeps for followers, holds back, and drops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from vibe_llms.base.exceptions import LeaseLost, StorageUnavailable, VibeLlmsError
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    Turn,
    Usage,
)
from vibe_llms.messages.events import (
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    Notice,
    NoticeEvent,
    ReasoningChunk,
    TextChunk,
    TurnEndedEvent,
)
from vibe_llms.runs import recorder as module
from vibe_llms.runs.events import (
    CallEnded,
    CallProgress,
    CallStarted,
    ConversationChanged,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunEvent,
    RunNotice,
    decode_event,
    encode_event,
    first_cursor,
)
from vibe_llms.runs.interfaces import Lease
from vibe_llms.runs.recorder import RunRecorder, translate

#: Where the cursors of the first epoch begin.
BEGIN = first_cursor(1)
SAID = AssistantCanister((), identity="said")
CALL = InvocationCanister(name="look", identity="call")
TURN: Turn[None] = Turn((), "", None, Usage(), "finished")
RESULT = ResultCanister((), invocation="call", identity="result")


class Store:
    """Keeps events in memory; each append raises the next of `errors`, before or after it."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bytes]] = []
        self.appended: list[tuple[int, str]] = []
        self.errors: list[Exception | None] = []
        self.reaches = False
        self.checks = 0
        self.open = asyncio.Event()
        self.open.set()

    async def append_events(
        self, lease: Lease, events: Sequence[tuple[int, bytes]], *, conversation: str = ""
    ) -> None:
        self.appended.append((len(events), conversation))
        await self.open.wait()
        error = self.errors.pop(0) if self.errors else None
        if error is None or self.reaches:
            self.events += events
        if error is not None:
            raise error

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        assert limit == 1, "only the first is looked at"
        return [one for one in self.events if one[0] > after][:limit]

    async def check(self, lease: Lease) -> None:
        self.checks += 1

    @property
    def recorded(self) -> list[RunEvent]:
        return [decode_event(data) for _, data in self.events]


@asynccontextmanager
async def opened(
    *, epoch: int = 1, flushes: bool = False, fail: Any = lambda _: None
) -> AsyncIterator[tuple[RunRecorder, Any]]:
    """A recorder over a store in memory, which records only when asked unless it `flushes`."""
    store: Any = Store()
    recorder = RunRecorder(store, Lease("ada", "run", epoch), fail=fail)
    if not flushes:
        recorder._task.cancel()
    async with asyncio.timeout(30):
        yield recorder, store
    recorder.drop()


def more(text: str, message: str = "said") -> MessageProgressEvent:
    return MessageProgressEvent(message=message, chunk=TextChunk(text))


async def test_what_is_held_back_is_released_in_order_once_every_message_is_kept() -> None:
    async with opened() as (recorder, store):
        recorder(MessageCompletedEvent(message="said", canister=SAID))
        recorder(more("And", "next"))
        recorder(MessageCompletedEvent(message="next", canister=SAID))
        recorder.report_kept(["said"])
        await recorder.flush()
        assert (store.events, store.checks) == ([], 1)
        recorder.report_kept(["next"])
        await recorder.flush()
        held = [MessageCompleted("said"), MessageDelta("next", "And"), MessageCompleted("next")]
        assert store.recorded == held
        # Each is recorded once, and what comes now is held no longer.
        recorder.report_kept([])
        recorder(more("more"))
        await recorder.flush()
        assert store.recorded == [*held, MessageDelta("said", "more")]


async def test_what_is_dropped_is_neither_recorded_nor_shown() -> None:
    async with opened() as (recorder, store):
        recorder.put(MessageStarted("said", "assistant"))
        recorder.drop()
        recorder.put(MessageDelta("said", "lost"))
        recorder(MessageCompletedEvent(message="said", canister=SAID))
        recorder.report_kept(["said"])
        await recorder.flush()
        assert (len(await recorder.close()), store.events) == (0, [])
        assert list(recorder.read(0)) == []


async def test_what_is_dropped_while_it_is_written_is_not_shown() -> None:
    async with opened() as (recorder, store):
        recorder.put(MessageStarted("said", "assistant"))
        store.open.clear()
        writing = asyncio.ensure_future(recorder.flush())
        while not store.appended:
            await asyncio.sleep(0)
        recorder.drop()
        store.open.set()
        await writing
        assert recorder.recorded == BEGIN
        assert list(recorder.read(0)) == []


async def test_what_arrives_while_events_are_written_is_written_next() -> None:
    async with opened() as (recorder, store):
        recorder.put(MessageDelta("said", "one "))
        store.open.clear()
        writing = asyncio.ensure_future(recorder.flush())
        while not store.appended:
            await asyncio.sleep(0)
        # It does not join the text that is on its way.
        recorder.put(MessageDelta("said", "two "))
        recorder.put(MessageDelta("said", "three"))
        store.open.set()
        await writing
        assert store.recorded == [MessageDelta("said", "one ")]
        assert recorder.recorded == BEGIN + 4
        await recorder.flush()
        assert store.recorded[1:] == [MessageDelta("said", "two three")]
        # Now it may join again.
        recorder.put(MessageDelta("said", "!"))
        recorder.put(MessageDelta("said", "?"))
        assert await recorder.close() == [(BEGIN + 15, encode_event(MessageDelta("said", "!?")))]


async def test_texts_are_recorded_after_a_while_and_at_once_if_they_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FLUSH_SECONDS", 3600)
    monkeypatch.setattr(module, "_FLUSH_CHARACTERS", 10)
    async with opened(flushes=True) as (recorder, store):
        recorder.put(MessageStarted("said", "assistant"))
        recorder.put(MessageDelta("said", ""))
        await recorded(recorder, store, 2)
        recorder.put(MessageDelta("said", "123456789"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.events) == 2
        recorder.put(MessageDelta("said", "0"))
        await recorded(recorder, store, 3)
        # What was recorded counts no longer.
        recorder.put(MessageDelta("said", "123456789"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.events) == 3
        monkeypatch.setattr(module, "_FLUSH_SECONDS", 0)
        recorder.put(MessageCompleted("said"))
        await recorded(recorder, store, 5)
        recorder.put(MessageDelta("said", "1"))
        await recorded(recorder, store, 6)


async def recorded(recorder: RunRecorder, store: Store, count: int) -> None:
    while len(store.events) < count:
        await asyncio.sleep(0)
    async with recorder._lock:
        pass


async def test_followers_are_given_what_is_recent_and_told_where_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_RECENT_CHARACTERS", 10)
    async with opened() as (recorder, _):
        for number in range(8):
            recorder.put(CallProgress("call", str(number)))
            await recorder.flush()
        assert recorder.start == 0
        recorder.put(MessageDelta("said", "abc"))
        recorder.put(MessageDelta("other", "defghi"))
        await recorder.flush()
        # Of the 17 in all, the 10 last are kept, with the event that they begin in.
        assert (recorder.recorded, recorder.start) == (BEGIN + 17, BEGIN + 6)
        assert [cursor - BEGIN for cursor, _ in recorder.read(BEGIN + 6)] == [7, 8, 11, 17]
        assert recorder.read(BEGIN + 9) == [
            (BEGIN + 11, MessageDelta("said", "bc")),
            (BEGIN + 17, MessageDelta("other", "defghi")),
        ]
        assert list(recorder.read(BEGIN + 17)) == []


async def test_a_later_epoch_begins_where_no_cursor_was() -> None:
    async with opened(epoch=3) as (recorder, store):
        begin = first_cursor(3)
        assert (recorder.start, recorder.recorded) == (begin, begin)
        recorder.put(CallStarted("call", "look"))
        await recorder.flush()
        assert [cursor for cursor, _ in store.events] == [begin + 1]


async def test_a_follower_waits_until_there_is_more_or_this_process_leaves() -> None:
    async with opened() as (recorder, _):
        waiting = asyncio.ensure_future(recorder.wait(BEGIN))
        await asyncio.sleep(0)
        assert not waiting.done()
        recorder.leave()
        await waiting
        await recorder.wait(BEGIN)


async def test_events_move_with_the_conversation_that_they_name_last() -> None:
    async with opened() as (recorder, store):
        recorder.put(ConversationChanged("fork"))
        recorder.put(ConversationChanged("fork of it"))
        recorder.put(CallStarted("call", "look"))
        await recorder.flush()
        recorder.put(CallEnded("call", "result"))
        await recorder.flush()
        assert store.appended == [(3, "fork of it"), (1, "")]


@pytest.mark.parametrize("reaches", [False, True])
async def test_a_store_that_was_away_is_asked_again_and_nothing_is_recorded_twice(
    monkeypatch: pytest.MonkeyPatch, *, reaches: bool
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    async with opened() as (recorder, store):
        recorder.put(CallStarted("look", "look"))
        await recorder.flush()
        store.reaches = reaches
        store.errors = [StorageUnavailable("away")] * 2
        recorder.put(MessageStarted("said", "assistant"))
        recorder.put(MessageDelta("said", "Hello"))
        await recorder.flush()
        assert len(store.appended) == (2 if reaches else 4)
        assert store.recorded[1:] == [
            MessageStarted("said", "assistant"),
            MessageDelta("said", "Hello"),
        ]
        assert recorder.recorded == BEGIN + 7
        store.errors = []
        assert await recorder.close() == []


async def test_a_store_that_is_away_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(module, "_AWAY_SECONDS", -1)
    problems: list[BaseException] = []
    async with opened(flushes=True, fail=problems.append) as (recorder, store):
        store.errors = [StorageUnavailable("away")] * 9
        recorder.put(CallStarted("call", "look"))
        await asyncio.wait([recorder._task])
        assert [str(one) for one in problems] == ["away"]
        assert len(store.appended) == 1
        with pytest.raises(StorageUnavailable):
            await recorder.close()


async def test_another_error_of_the_store_is_not_tried_again() -> None:
    async with opened() as (recorder, store):
        store.errors = [LeaseLost("another process has it")]
        recorder.put(CallStarted("call", "look"))
        with pytest.raises(LeaseLost):
            await recorder.flush()
        assert len(store.appended) == 1
        # It was not recorded, so it may still join, and is what is left.
        assert len(await recorder.close()) == 1


async def test_what_is_left_at_the_end_is_given_with_what_was_held_and_the_last_events() -> None:
    async with opened(flushes=True) as (recorder, store):
        recorder(more("Hello"))
        recorder(MessageCompletedEvent(message="said", canister=SAID))
        left = await recorder.close(CallStarted("one", "look"), CallStarted("two", "look"))
        assert recorder._task.done()
        assert [(cursor - BEGIN, decode_event(data)) for cursor, data in left] == [
            (5, MessageDelta("said", "Hello")),
            (6, MessageCompleted("said")),
            (7, CallStarted("one", "look")),
            (8, CallStarted("two", "look")),
        ]
        assert store.events == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (more("a"), MessageDelta("said", "a", "text")),
        (
            MessageProgressEvent(message="said", chunk=ReasoningChunk("a")),
            MessageDelta("said", "a", "reasoning"),
        ),
        (
            MessageProgressEvent(message="said", chunk=InvocationChunk("a")),
            MessageDelta("said", "a", "arguments"),
        ),
        (MessageFailedEvent(StorageUnavailable("away"), SAID, message="said"), None),
        (
            MessageFailedEvent(VibeLlmsError("no"), SAID, message="said"),
            MessageFailed("said", "no"),
        ),
        (
            MessageFailedEvent(VibeLlmsError(""), SAID, message="said"),
            MessageFailed("said", "VibeLlmsError"),
        ),
        (InvocationStartedEvent(invocation=CALL), CallStarted("call", "look")),
        (
            InvocationProgressEvent(invocation=CALL, text="half", done=1, total=2),
            CallProgress("call", "half", 1, 2),
        ),
        (InvocationCompletedEvent(RESULT, invocation=CALL), CallEnded("call", "result")),
        (
            InvocationFailedEvent(RESULT, invocation=CALL),
            CallEnded("call", "result", failed=True),
        ),
        (NoticeEvent(notice=Notice("limit", "why", "it")), RunNotice("limit", "why", "it")),
        (TurnEndedEvent(turn=TURN, reason="finished"), None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_each_event_of_a_turn_is_recorded_as_what_followers_need(
    event: Any, expected: RunEvent | None
) -> None:
    assert translate(event) == expected


async def test_nothing_is_recorded_of_an_event_that_says_nothing() -> None:
    async with opened() as (recorder, store):
        recorder(TurnEndedEvent(turn=TURN, reason="finished"))
        await recorder.flush()
        assert (store.appended, recorder.recorded) == ([], BEGIN)
