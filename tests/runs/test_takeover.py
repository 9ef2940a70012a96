"""What followers of a run are given when another worker continues it."""

from __future__ import annotations

from pathlib import Path

from vibe_llms.events import MessageCompletedEvent, MessageProgressEvent, TextChunk
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.runs import (
    CallEnded,
    CallStarted,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEvent,
)
from vibe_llms.runs.interfaces import Lease
from vibe_llms.runs.recorder import RunRecorder
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.runs.takeover import find_end, find_missing, find_open

SAID = AssistantCanister(
    (ReasoningContent("thought"), TextualContent("Hello there.")), identity="said", reply="r"
)
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


def test_the_end_of_a_run_is_where_others_went_on() -> None:
    prompt, other = UserCanister.from_text("Go."), UserCanister.from_text("And?")
    assert find_end([SAID], [prompt]) == ""
    assert find_end([other, prompt, SAID, CALL, RESULT], [prompt]) == ""
    assert find_end([prompt, SAID, CALL, other, SAID], [prompt]) == "call"
    assert find_end([prompt, other], [prompt]) == prompt.identity


async def test_a_message_is_complete_for_followers_once_it_is_durable(tmp_path: Path) -> None:
    store = SqliteRunStore(tmp_path / "runs.sqlite")
    recorder = RunRecorder(store, Lease("local", "run", 1))
    recorder(MessageProgressEvent(message="said", chunk=TextChunk("Hello there.")))
    recorder(MessageCompletedEvent(message="said", canister=SAID))
    recorder(MessageProgressEvent(message="next", chunk=TextChunk("And")))
    assert [one for _, one in recorder.read(0)] == [MessageDelta("said", "Hello there.")]
    recorder.report_kept(["other"])
    assert len(recorder.read(0)) == 1
    recorder.report_kept(["said"])
    assert [one for _, one in recorder.read(0)][1:] == [
        MessageCompleted("said"),
        MessageDelta("next", "And"),
    ]
    recorder.drop()
    await store.close()
