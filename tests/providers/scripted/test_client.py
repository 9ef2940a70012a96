"""The scripted provider plays its replies as a real one would stream them, faults included."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelNotFound,
    RequestRefused,
    ScriptInvalid,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import (
    ImageContent,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import (
    Event,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.opening import open_session
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.scripted import client as clients
from vibe_llms.testing import Part, Script, ScriptedReply, check_events, scripted_model

HELLO = (UserCanister.from_text("Hello"),)


def add(a: int) -> int:
    """Add."""
    return a


async def play(
    reply: ScriptedReply | Script, *, streaming: bool = True
) -> tuple[tuple[ReplyCanister, ...], list[Event]]:
    events: list[Event] = []
    model = scripted_model(reply, event_handler=events.append)
    canisters = await model.converse(HELLO, context=TurnContext(streaming=streaming))
    check_events(events, turn=False)
    return canisters, events


FULL = ScriptedReply(
    parts=(
        Part(reasoning="Let me look."),
        Part(text="Before. "),
        Part(invocation="look", arguments={"where": "up"}),
        Part(invocation="look", arguments='{"where": '),
        Part(text=("Af", "", "ter.")),
    ),
    usage=Usage(1, 2, 3, 4, 5),
)


@pytest.mark.parametrize("streaming", [True, False])
async def test_all_parts_of_a_reply_come_in_their_order(streaming: bool) -> None:
    canisters, _ = await play(FULL, streaming=streaming)
    before, call, torn, after = canisters
    assert isinstance(before, AssistantCanister)
    assert before.contents == (ReasoningContent("Let me look."), TextualContent("Before. "))
    assert isinstance(call, InvocationCanister)
    assert (call.name, call.parsed) == ("look", {"where": "up"})
    assert isinstance(torn, InvocationCanister)
    assert (torn.arguments, torn.parsed) == ('{"where": ', None)
    assert isinstance(after, AssistantCanister)
    assert after.text == "After."
    assert len({canister.reply for canister in canisters}) == 1
    assert [canister.ending is None for canister in canisters] == [True, True, True, False]
    assert after.ending is not None
    assert after.ending.reason == StopReason.INVOCATIONS
    assert after.ending.usage == Usage(1, 2, 3, 4, 5)
    assert after.provenance is not None
    assert (after.provenance.row, after.provenance.response) == ("scripted", "scripted")


async def test_text_is_streamed_word_by_word_or_in_the_chunks_that_are_given() -> None:
    _, events = await play(ScriptedReply(parts=(Part(text="  one two\n\nthree "),)))
    chunks = [event.chunk.text for event in events if isinstance(event, MessageProgressEvent)]
    assert chunks == ["  one ", "two\n\n", "three "]
    _, events = await play(FULL)
    chunks = [event.chunk.text for event in events if isinstance(event, MessageProgressEvent)]
    assert chunks[-2:] == ["Af", "ter."]
    _, events = await play(FULL, streaming=False)
    chunks = [event.chunk.text for event in events if isinstance(event, MessageProgressEvent)]
    assert chunks == ["Let me look.", "Before. ", '{"where":"up"}', '{"where": ', "After."]


async def test_reasoning_is_streamed_as_such() -> None:
    _, events = await play(ScriptedReply(parts=(Part(reasoning="a b"), Part(text="c"))))
    assert [event.chunk for event in events if isinstance(event, MessageProgressEvent)] == [
        ReasoningChunk("a "), ReasoningChunk("b"), TextChunk("c")
    ]  # fmt: skip


async def test_a_reply_without_parts_is_made_again() -> None:
    script = Script((ScriptedReply(parts=()), ScriptedReply.from_chunks("Hi")))
    (canister,), events = await play(script)
    assert isinstance(canister, AssistantCanister)
    assert canister.contents == (TextualContent("Hi"),)
    assert type(events[0]) is MessageStartedEvent


async def test_usage_is_counted_where_the_script_has_none() -> None:
    (canister,), _ = await play(ScriptedReply.from_chunks("one two ", "three"))
    assert canister.ending is not None
    assert canister.ending.usage == Usage(output_tokens=3)


async def test_a_reply_that_is_refused_has_not_begun() -> None:
    events: list[Event] = []
    reply = ScriptedReply(parts=(Part(delay_seconds=0.001), Part(error="refused")))
    with pytest.raises(RequestRefused):
        await scripted_model(reply, event_handler=events.append).converse(HELLO)
    refused = events[-1]
    assert isinstance(refused, MessageFailedEvent)
    assert isinstance(refused.partial, AssistantCanister)
    assert refused.partial.provenance is not None
    assert refused.partial.provenance.response == ""


async def test_a_script_that_is_exhausted_says_so() -> None:
    model = scripted_model(["only"])
    await model.converse(HELLO)
    with pytest.raises(ScriptInvalid, match=r"no reply to request 2 \('Hello'\)"):
        await model.converse(HELLO)


async def test_a_script_goes_on_after_the_replies_that_the_history_has() -> None:
    script = Script(tuple(ScriptedReply.from_chunks(str(number)) for number in range(3)))
    history: list[Canister] = [*HELLO, *await scripted_model(script).converse(HELLO)]
    (second,) = await scripted_model(script).converse(history)
    assert isinstance(second, AssistantCanister)
    assert second.text == "1"


async def test_delays_are_waited_for() -> None:
    canisters, _ = await play(
        ScriptedReply(parts=(Part(text="a"), Part(delay_seconds=0.01), Part(text="b")))
    )
    assert isinstance(canisters[0], AssistantCanister)
    assert canisters[0].text == "ab"


async def test_a_slow_reader_holds_the_stream_back() -> None:
    gate = asyncio.Semaphore(0)
    seen: list[Event] = []
    model = scripted_model(["a", "b", "c"], event_handler=seen.append)
    context = TurnContext(throttle=gate.acquire)
    task = asyncio.ensure_future(model.converse(HELLO, context=context))
    for steps in range(1, 4):
        gate.release()
        for _ in range(20):
            await asyncio.sleep(0)
        assert sum(isinstance(event, MessageProgressEvent) for event in seen) < steps + 1
    for _ in range(20):
        gate.release()
    assert len(await task) == 1


async def test_requests_are_recorded_as_they_would_be_sent() -> None:
    reference = Reference.from_bytes(b"from the archive")

    async def load(references: Sequence[Reference]) -> dict[str, bytes]:
        return {one.hash: b"from the archive" for one in references}

    call = InvocationCanister(name="look", arguments="{}")
    canisters: list[Canister] = [
        SupervisorCanister.from_text("Be brief."),
        DocumentCanister((TextualContent(reference),), title="t"),
        UserCanister((TextualContent("See"), ImageContent(b"x", "image/png"))),
        call,
        ResultCanister((TextualContent("up"),), invocation=call.identity, failed=True),
        AssistantCanister((ReasoningContent("hm"), UnknownContent(label="new"))),
        AssistantCanister(),
    ]
    model = scripted_model(["Hi"])
    context = TurnContext(load=load, default_controls=Controls(seed=1), streaming=False)
    await model.converse(
        canisters, [Invoker.from_function(add)], Controls(temperature=0.5), context
    )
    (request,) = model.requests
    assert request["messages"] == [
        {"role": "supervisor", "contents": [{"kind": "text", "text": "Be brief."}]},
        {"role": "document", "contents": [{"kind": "text", "text": "from the archive"}]},
        {"role": "user", "contents": [
            {"kind": "text", "text": "See"}, {"kind": "image", "mimetype": "image/png"}]},
        {"role": "invocation", "identity": call.identity, "name": "look", "arguments": "{}"},
        {"role": "result", "invocation": call.identity, "failed": True,
         "contents": [{"kind": "text", "text": "up"}]},
        {"role": "assistant", "contents": [
            {"kind": "reasoning", "text": "hm"}, {"kind": "?", "mimetype": ""}]},
        {"role": "assistant"},
    ]  # fmt: skip
    assert [tool["name"] for tool in request["tools"]] == ["add"]
    assert request["controls"] == {"temperature": 0.5, "seed": 1}
    assert request["streaming"] is False
    preview = await model.preview(canisters, [], Controls(), context)
    assert b'"from the archive"' in preview
    assert len(model.requests) == 1


async def test_a_model_of_the_row_keeps_no_requests(tmp_path: Path) -> None:
    turns = 150
    async with open_session(home=tmp_path) as session:
        conversation = await session.begin("scripted/demo")
        await conversation.converse("hello")
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(turns):
                await conversation.converse("hello")
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        model = await session.access_model("scripted/demo")
    # What was said, and not the history of every request: with it, 72 KB for each turn.
    assert grown / turns < 8192, f"{grown} bytes in {turns} turns"
    assert isinstance(model, clients.ScriptedModel)
    assert model.requests == []


async def test_a_double_records_unless_recording_is_off() -> None:
    for recording in (True, False):
        model = scripted_model(["Hi"], recording=recording)
        await model.converse(HELLO)
        assert len(model.requests) == recording


async def test_tokens_are_estimated() -> None:
    model = scripted_model(["Hi"])
    short = await model.count_tokens(HELLO)
    long = await model.count_tokens([UserCanister.from_text("Hello " * 1000)])
    assert short.estimated
    assert short.tokens < long.tokens
    assert 1000 < long.tokens < 3000


async def test_tokens_do_not_depend_on_the_folder_of_the_script(tmp_path: Path) -> None:
    counts = set()
    for folder in (tmp_path, tmp_path / ("long" * 40)):
        folder.mkdir(exist_ok=True)
        (folder / "one.toml").write_text('[[replies]]\nwhen = "."\nparts = [{ text = "Hi" }]\n')
        async with open_session() as session:
            model = await session.access_model(f"scripted/{folder / 'one.toml'}")
            replies = await model.converse(HELLO)
            counts.add((await model.count_tokens([*HELLO, *replies])).tokens)
    assert len(counts) == 1


async def test_a_function_is_given_the_conversation_and_the_tools() -> None:
    def improvise(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        return ScriptedReply.from_chunks(f"{len(canisters)} {[tool.name for tool in invokers]}")

    model = scripted_model(improvise)
    (canister,) = await model.converse(HELLO, [Invoker.from_function(add)])
    assert isinstance(canister, AssistantCanister)
    assert canister.text == "1 ['add']"


async def test_what_a_function_raises_fails_the_message_and_is_raised() -> None:
    def improvise(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        raise ZeroDivisionError

    events: list[Event] = []
    model = scripted_model(improvise, event_handler=events.append)
    with pytest.raises(ZeroDivisionError):
        await model.converse(HELLO)
    check_events(events, turn=False)


SCRIPT = '[[replies]]\nparts = [ { text = "From a file." } ]\n'


async def test_scripts_are_models_by_the_names_of_the_row_and_by_their_paths(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "scripts").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (home / "scripts" / "mine.toml", elsewhere / "other.toml", tmp_path / "s.toml"):
        path.write_text(SCRIPT)
    scripts: Any = {"mine": "scripts/mine.toml", "other": str(elsewhere / "other.toml")}
    configuration = {"providers": {"scripted": {"scripts": {**scripts, "tilde": "~/s.toml"}}}}
    monkeypatch.chdir(elsewhere)
    async with open_session(configuration=configuration) as session:
        for name in ("mine", "other", "tilde", "other.toml", "~/s.toml", str(tmp_path / "s.toml")):
            conversation = await session.begin(f"scripted/{name}")
            assert (await conversation.converse("Hi")).text == "From a file."
        named = [model.name for model in await session.survey_models("scripted")]
        assert named == ["demo", "mine", "other", "tilde"]
        relative = await session.begin("scripted:other.toml")
        assert relative.model.name == str(elsewhere / "other.toml")
        await relative.converse("Hi")
    monkeypatch.chdir(tmp_path)
    async with open_session(configuration=configuration) as session:
        again = await session.resume(relative.identity)
        assert again.model.name == str(elsewhere / "other.toml")
        with pytest.raises(
            ModelNotFound, match="no script 'none'; the scripts are demo, mine, other"
        ):
            await session.access_model("scripted/none")
        with pytest.raises(ScriptInvalid, match="No such file"):
            await session.access_model("scripted/none.toml")


@pytest.mark.parametrize("key", ["pace", "pace-seconds", "scripts"])
async def test_a_wrong_key_of_the_row_is_named(key: str) -> None:
    configuration = {"providers": {"scripted": {key: -1}}}
    async with open_session(configuration=configuration) as session:
        with pytest.raises(ConfigurationError) as caught:
            await session.access_model("scripted/demo")
    assert (caught.value.table, caught.value.key) == ("providers.scripted", key)


@pytest.mark.parametrize(
    ("interactive", "row", "pace"),
    [
        (False, {}, 0.0),
        (True, {}, clients.READABLE_PACE_SECONDS),
        (True, {"pace-seconds": 0.0}, 0.0),
        (False, {"pace-seconds": 0.001}, 0.001),
    ],
)
async def test_words_come_at_a_readable_pace_where_a_person_watches(
    interactive: bool, row: dict[str, float], pace: float
) -> None:
    configuration = {"providers": {"scripted": row}}
    async with open_session(configuration=configuration, interactive=interactive) as session:
        model: Any = await session.access_model("scripted/demo")
        assert model.client.pace_seconds == pace
        conversation = await session.begin(model)
        assert (await conversation.converse("Hello!")).text.startswith("Hello!")
