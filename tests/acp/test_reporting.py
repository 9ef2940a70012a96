"""Events of turns as updates, one by one."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec.structs import replace

from tests.acp.recorder import produce, updates
from vibe_llms.acp.calls import find_kind
from vibe_llms.acp.reporting import TurnReporter
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    NativeContent,
    Reference,
    TextualContent,
    Upload,
)
from vibe_llms.messages.events import (
    Chunk,
    Event,
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    SteeringWithdrawnEvent,
    TextChunk,
)

CALL = InvocationCanister(name="files/read", arguments='{"path":\n "a"}')


async def report(*events: Event) -> list[dict[str, Any]]:
    recorder, client = produce(None)
    reporter = TurnReporter(client, dict)
    for event in events:
        reporter(event)
    reporter.finish()
    return updates(recorder)


def started(identity: str = CALL.identity) -> MessageStartedEvent:
    return MessageStartedEvent(message=identity, role="invocation", name=CALL.name)


async def test_a_call_that_is_cut_off_has_failed() -> None:
    error = ConnectionError()
    begun, cut = await report(
        started(), MessageFailedEvent(message=CALL.identity, error=error, partial=CALL)
    )
    assert (begun["status"], begun["kind"]) == ("pending", "read")
    assert (cut["status"], cut["toolCallId"]) == ("failed", begun["toolCallId"])
    assert "did not run" in cut["content"][0]["content"]["text"]


async def test_a_call_of_an_earlier_reply_is_announced_first() -> None:
    begun, runs, ended = await report(
        InvocationStartedEvent(invocation=CALL),
        InvocationCompletedEvent(
            invocation=CALL,
            result=ResultCanister(
                (TextualContent("12"),), invocation=CALL.identity, display="twelve"
            ),
        ),
    )
    assert [one["sessionUpdate"] for one in (begun, runs, ended)] == [
        "tool_call",
        "tool_call_update",
        "tool_call_update",
    ]
    assert (runs["status"], ended["status"]) == ("in_progress", "completed")
    assert ended["content"][0]["content"]["text"] == "twelve"


@pytest.mark.parametrize(
    ("text", "done", "total", "shown"),
    [("half", None, None, "half"), ("", 3.0, 10.0, "3 of 10"), ("files", 3.0, None, "3 files")],
)
async def test_progress_is_the_content_until_the_result(
    text: str, done: float | None, total: float | None, shown: str
) -> None:
    event = InvocationProgressEvent(text, done, total, invocation=CALL)
    _, update, _ = await report(started(), event)
    assert update["content"][0]["content"]["text"] == shown


async def test_arguments_are_sent_whole_and_on_one_line() -> None:
    piece = MessageProgressEvent(message=CALL.identity, chunk=InvocationChunk('{"pa'))
    _, whole, _ = await report(
        started(), piece, MessageCompletedEvent(message=CALL.identity, canister=CALL)
    )
    assert whole["rawInput"] == {"path": "a"}
    broken = InvocationCanister(name="x", arguments='{"a":\n1')
    _, whole, _ = await report(
        started(broken.identity), MessageCompletedEvent(message="", canister=broken)
    )
    assert whole["rawInput"] == '{"a":\n1'


async def test_text_after_thoughts_after_text_is_another_part() -> None:
    chunks: list[Chunk] = [
        TextChunk("a"),
        ReasoningChunk("b"),
        TextChunk(""),
        TextChunk("c"),
        TextChunk("d"),
    ]
    sent = await report(*(MessageProgressEvent(message="m", chunk=one) for one in chunks))
    assert [one["messageId"] for one in sent] == ["m", "m-thought", "m-2", "m-2"]


async def test_an_image_of_the_model_is_sent_when_its_message_is_complete() -> None:
    contents = (TextualContent("Look:"), ImageContent(b"PNG", "image/png"), NativeContent())
    message = AssistantCanister(contents)
    (sent,) = await report(MessageCompletedEvent(message=message.identity, canister=message))
    assert base64.b64decode(sent["content"]["data"]) == b"PNG"


async def test_a_message_that_could_not_be_sent_is_noted_and_one_taken_back_is_not() -> None:
    message = UserCanister.from_text("More")
    (sent,) = await report(
        SteeringWithdrawnEvent(canister=message),
        SteeringWithdrawnEvent(canister=message, reason="too long"),
    )
    assert sent["content"]["text"] == "note: a message was not sent: too long\n"


async def test_contents_without_a_form_are_described() -> None:
    contents = (
        AudioContent(b"RIFF", "audio/wav"),
        FileContent(b"%PDF", "application/pdf", "a.pdf"),
        ImageContent(b"?"),
        ImageContent(Location("https://a.test/x.png"), "image/png"),
        ImageContent(Upload("file-1", "openai"), "image/png"),
        ImageContent(Reference("00", 3), "image/png"),
        TextualContent(Reference("00", 3)),
    )
    result = ResultCanister(contents, invocation=CALL.identity)
    update = (await report(InvocationCompletedEvent(invocation=CALL, result=result)))[-1]
    blocks = [one["content"] for one in update["content"]]
    assert blocks[0]["type"] == "audio"
    assert [one["text"] for one in blocks[1:]] == [
        "[a.pdf: application/pdf, 4 bytes]",
        "[file: unknown type, 1 bytes]",
        "[image/png: https://a.test/x.png]",
        "[image/png: the uploaded file file-1]",
        "[image/png: not in the archive]",
    ]


def test_the_kind_of_a_tool_is_in_its_name_or_its_annotations() -> None:
    def tool(name: str, **annotations: bool) -> Invoker:
        made = Invoker.from_declaration(name, {"type": "object"})
        return replace(made, annotations=annotations)

    tools = {one.name: one for one in (tool("a", readOnlyHint=True), tool("b", readOnlyHint=False))}
    names = ("a", "b", "web/fetch_page", "documents/search", "python/run", "unknown")
    assert [find_kind(name, tools) for name in names] == [
        "read",
        "other",
        "fetch",
        "search",
        "execute",
        "other",
    ]
