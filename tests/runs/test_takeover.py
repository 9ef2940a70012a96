"""What followers of a run are given when another worker continues it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from vibe_llms.conversations.corrections import write_correction
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.messages.events import (
    MessageCompletedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.runs import (
    ApprovalRequested,
    CallEnded,
    CallStarted,
    MessageAdded,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEvent,
    RunNotice,
    RunStatus,
)
from vibe_llms.runs.events import decode_event
from vibe_llms.runs.interfaces import Lease, Recipe, RunRecord
from vibe_llms.runs.recorder import RunRecorder
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.runs.takeover import count_fruitless, find_end, find_missing, find_open, find_own

SAID = AssistantCanister(
    (ReasoningContent("thought"), TextualContent("Hello there.")), identity="said", reply="r"
)
AGAIN = AssistantCanister((TextualContent("{}"),), identity="again", reply="s")
CALL = InvocationCanister(name="look", arguments='{"a": 1}', identity="call", reply="r")
RESULT = ResultCanister((TextualContent("seen"),), invocation="call", identity="result")
WHOLE: list[RunEvent] = [
    MessageStarted("said", "assistant", "r"),
    MessageDelta("said", "thought", "reasoning"),
    MessageDelta("said", "Hello there."),
    MessageCompleted("said"),
    MessageStarted("call", "invocation", "r", "look"),
    MessageDelta("call", '{"a": 1}', "arguments"),
    MessageCompleted("call"),
    CallStarted("call", "look"),
    CallEnded("call", "result"),
]


def test_what_no_event_was_recorded_of_is_given_whole() -> None:
    assert [*find_missing([], [SAID, CALL, RESULT])] == WHOLE


def test_what_was_recorded_is_not_repeated() -> None:
    for end in range(len(WHOLE) + 1):
        assert [*find_missing(WHOLE[:end], [SAID, CALL, RESULT])] == WHOLE[end:]


def test_a_text_is_continued_where_its_record_ends() -> None:
    events: list[RunEvent] = [*WHOLE[:2], MessageDelta("said", "Hel"), MessageDelta("said", "lo")]
    assert [*find_missing(events, [SAID])] == [
        MessageDelta("said", " there."),
        MessageCompleted("said"),
    ]


def test_only_a_message_that_is_in_no_history_starts_again() -> None:
    assert find_open(WHOLE[:2], []) == "said"
    assert find_open(WHOLE[:2], ["said"]) == ""
    assert find_open(WHOLE[:4], []) == ""
    assert find_open([*WHOLE[:2], MessageFailed("said", "cut")], []) == ""
    assert find_open([*WHOLE[:2], RunContinued("said")], []) == ""


def test_what_was_kept_or_asked_ends_a_row_of_vain_continuations() -> None:
    again = RunContinued("said")
    vain: list[RunEvent] = [again, MessageStarted("said", "assistant"), MessageDelta("said", "He")]
    assert count_fruitless(WHOLE[:2]) == 0
    assert count_fruitless([*WHOLE[:2], *vain * 3, again]) == 4
    for kept in (MessageCompleted("said"), CallEnded("call", "r"), ApprovalRequested("call", "a")):
        assert count_fruitless([*vain * 3, kept]) == 0
        assert count_fruitless([*vain * 3, kept, *vain]) == 1


def test_the_end_of_a_run_is_where_others_went_on() -> None:
    prompt, other = UserCanister.from_text("Go."), UserCanister.from_text("And?")
    assert find_end([SAID], [prompt]) == ""
    assert find_end([other, prompt, SAID, CALL, RESULT], [prompt]) == ""
    assert find_end([prompt, SAID, CALL, other, SAID], [prompt]) == "call"
    assert find_end([prompt, other], [prompt]) == prompt.identity
    # Hooks add documents between the messages of a prompt.
    system = SupervisorCanister.from_text("JSON!")
    document = DocumentCanister((TextualContent("A fact."),))
    assert find_end([system, document, prompt, SAID], [system, prompt]) == ""


def test_a_correction_is_of_the_run_and_other_words_are_not() -> None:
    prompt, correction = UserCanister.from_text("Go."), write_correction("said", "The reply is.")
    history: list[Canister] = [prompt, SAID, correction, AGAIN]
    assert find_own([SAID, *history, UserCanister.from_text("And?")], [prompt]) == history
    assert find_end(history, [prompt]) == ""
    # It corrects one reply only.
    assert find_end([prompt, SAID, CALL, RESULT, correction], [prompt]) == "result"
    (notice,) = find_missing([*WHOLE[:4]], [SAID, correction])
    assert notice == RunNotice(
        "output", "requesting the output again: The reply is.", correction.identity
    )
    assert [*find_missing([*WHOLE[:4], notice], [SAID, correction])] == []


def test_results_of_tools_that_run_elsewhere_are_of_the_next_turn() -> None:
    prompt = UserCanister.from_text("Go.")
    history: list[Canister] = [prompt, SAID, CALL, RESULT]
    assert find_own(history, [prompt]) == history
    assert find_own(history, [prompt], {"look"}) == history[:3]


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[RunRecorder]:
    """A recorder of a run, which records only when it is asked to."""
    store = SqliteRunStore(tmp_path / "runs.sqlite")
    now = datetime.now(UTC)
    record = RunRecord(
        identity="run",
        user="ada",
        conversation="c",
        status=RunStatus.QUEUED,
        recipe=Recipe(model="scripted/demo"),
        prompt=b"",
        created=now,
        updated=now,
    )
    await store.create(record)
    assert await store.claim("ada", 60, known=())
    recorder = RunRecorder(store, Lease("ada", "run", 1))
    recorder._task.cancel()
    yield recorder
    recorder.drop()
    await store.close()


async def read_recorded(recorder: RunRecorder) -> list[RunEvent]:
    found = await recorder._store.read_events("ada", "run")
    return [decode_event(data) for _, data in found]


async def test_a_message_is_complete_for_followers_once_it_is_durable(
    recorder: RunRecorder,
) -> None:
    recorder(MessageProgressEvent(message="said", chunk=TextChunk("Hello there.")))
    recorder(MessageCompletedEvent(message="said", canister=SAID))
    recorder(MessageProgressEvent(message="next", chunk=TextChunk("And")))
    recorder.report_kept(["other"])
    await recorder.flush()
    assert await read_recorded(recorder) == [MessageDelta("said", "Hello there.")]
    recorder.report_kept(["said"])
    await recorder.flush()
    assert (await read_recorded(recorder))[1:] == [
        MessageCompleted("said"),
        MessageDelta("next", "And"),
    ]


def test_added_messages_and_digests_belong_to_the_run() -> None:
    prompt = UserCanister.from_text("Go.")
    call = InvocationCanister(name="look", reply="r")
    result = ResultCanister(invocation=call.identity)
    added = UserCanister((TextualContent("Wait."),), steered=True)
    answer = AssistantCanister.from_text("Done.")
    history: list[Canister] = [prompt, call, result, DigestCanister(), added, answer]
    assert find_own([*history, UserCanister.from_text("Next.")], [prompt]) == history
    assert find_end(history, [prompt]) == ""
    events = list(find_missing([], history[1:]))
    assert [one for one in events if isinstance(one, MessageAdded)] == [
        MessageAdded(added.identity)
    ]
    assert not any(isinstance(one, RunNotice) for one in events)
    known = list(find_missing([MessageAdded(added.identity)], history[1:]))
    assert not any(isinstance(one, MessageAdded) for one in known)


async def test_followers_see_more_of_a_text_at_once_and_all_else_once_it_is_recorded(
    recorder: RunRecorder,
) -> None:
    recorder(MessageStartedEvent(message="said", role="assistant"))
    recorder(MessageProgressEvent(message="said", chunk=TextChunk("Hello")))
    # If this process is killed now, no follower knows of a message that no worker knows of.
    assert recorder.read(0) == []
    waiting = asyncio.create_task(recorder.wait(recorder.recorded))
    await asyncio.sleep(0)
    assert not waiting.done()
    await recorder.flush()
    await waiting
    last = recorder.recorded
    recorder(MessageProgressEvent(message="said", chunk=TextChunk(" there.")))
    recorder(MessageProgressEvent(message="said", chunk=ReasoningChunk("Why?")))
    await recorder.wait(last)
    # What follows a text may end an item of a client.
    assert [one for _, one in recorder.read(last)] == [MessageDelta("said", " there.")]
