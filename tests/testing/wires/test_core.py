"""How a scripted reply becomes the chunks of an answer, the same for all wire formats."""

from __future__ import annotations

from typing import Any

import pytest

from vibe_llms.base.exceptions import ScriptInvalid
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.messages.canisters import InvocationCanister, Usage, UserCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.testing import Part, ScriptedReply
from vibe_llms.testing.listening import BEHIND, HttpAnswer
from vibe_llms.testing.wires.chat_completions import ChatCompletionsWire
from vibe_llms.testing.wires.core import AskedReply, estimate_tokens, play, produce_invoker

WAIT = Part(delay_seconds=2)
TEXT = Part(text=("a", "", "b"))


def answer(*parts: Part, streaming: bool = True, chunk_bytes: int | None = None) -> HttpAnswer:
    asked = AskedReply(
        interface="chat-completions",
        model="m",
        canisters=(),
        invokers=(),
        streaming=streaming,
        body={},
        label="1",
    )
    reply = ScriptedReply(parts=parts, chunk_bytes=chunk_bytes)
    return play(ChatCompletionsWire(), asked, reply, Usage())


def test_waits_come_before_the_chunks_that_follow_them() -> None:
    # The first event, two chunks of text, the reason, the mark of the end.
    assert answer(WAIT, TEXT, WAIT, WAIT).waits == {0: 2, 3: 4}
    assert len(answer(TEXT).chunks) == 5
    cut = answer(TEXT, WAIT, Part(cut=True))
    assert (cut.waits, cut.chunks[3], cut.cut) == ({3: 2}, b"", BEHIND)


@pytest.mark.parametrize("size", [1, 10, 100_000])
def test_bytes_in_chunks_of_a_size_are_the_same_and_wait_in_the_same_places(size: int) -> None:
    whole = answer(TEXT, WAIT, TEXT)
    split = answer(TEXT, WAIT, TEXT, chunk_bytes=size)
    assert b"".join(split.chunks) == b"".join(whole.chunks)
    assert max(map(len, split.chunks)) <= size
    (place,) = split.waits
    assert b"".join(split.chunks[:place]) == b"".join(whole.chunks[:3])
    assert split.waits[place] == 2


@pytest.mark.parametrize(
    ("parts", "members"),
    [
        ([WAIT, Part(error="unreachable")], {"drop": "close", "delay": 2}),
        ([WAIT, Part(cut="reset")], {"drop": "reset", "delay": 2}),
        ([WAIT, Part(stall=True)], {"stall": -1, "delay": 2}),
        ([TEXT, WAIT, Part(stall=True)], {"stall": BEHIND, "delay": 2}),
        ([TEXT, Part(error="unreachable")], {"drop": "close"}),
        ([TEXT, Part(cut="clean")], {"cut": BEHIND, "end": "clean"}),
        ([TEXT, WAIT, Part(error="overloaded")], {"status": 503, "delay": 2}),
    ],
)
def test_replies_that_are_not_streamed_wait_and_fail_at_once(
    parts: list[Part], members: dict[str, Any]
) -> None:
    made = answer(*parts, streaming=False)
    assert {name: getattr(made, name) for name in members} == members


def test_pictures_calls_and_tools_count_as_tokens() -> None:
    picture = UserCanister((ImageContent(b"x", "image/png"),))
    call = InvocationCanister(name="add", arguments='{"a": 1}')
    tool = produce_invoker("add", "Add two numbers.", {"type": "object"})
    counts = [estimate_tokens(said, tools) for said, tools in (
        ([], []), ([picture], []), ([call], []), ([], [tool]))]  # fmt: skip
    assert counts[0] == 0
    assert counts[1] > 200
    assert counts[2] > 8
    assert counts[3] > 5


async def test_a_tool_that_was_offered_to_the_server_cannot_be_run_there() -> None:
    tool = produce_invoker("add", "", {})
    call = InvocationCanister(name="add")
    context = InvocationContext("", call, lambda *_, **__: None)
    with pytest.raises(ScriptInvalid, match="runs in the program under test"):
        await tool.invoke("{}", context)
