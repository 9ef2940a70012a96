"""What the fake server of Messages takes and what it refuses, in the words of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from anthropic import BadRequestError

from tests.testing.official import make_anthropic
from vibe_llms.messages.canisters import (
    AssistantCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    FileContent,
    ImageContent,
    Location,
    NativeContent,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.testing import FakeServer, Part, ScriptedReply, fake_server
from vibe_llms.testing.wires.anthropic_messages import sign

MODEL = "claude-sonnet-5-5"
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
OTHER = {**CALL, "id": "toolu_2"}
WARM = {"type": "text", "text": "warm"}


def result(call: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": "cold", **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": blocks[0] if isinstance(blocks[0], str) else list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {**user(*blocks), "role": "assistant"}


def send(server: FakeServer, messages: Sequence[Any], **more: Any) -> Any:
    given: Any = {"model": MODEL, "max_tokens": 9, "messages": messages, **more}
    with make_anthropic(server) as client:
        return client.messages.create(**given)


def test_a_conversation_is_read() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": sign(MODEL, "Hm.")}
    messages = [
        user({"type": "text", "text": "Look:"}, {"type": "image", "source": PNG}),
        user({"type": "image", "source": {"type": "url", "url": "https://e.test/a.png"}}),
        assistant(thought, {"type": "text", "text": "So."}, CALL, OTHER),
        user(result(), result("toolu_2", content=[WARM], is_error=True)),
        {"role": "system", "content": "Be polite."},
        assistant("Well."),
        user(
            {"type": "document", "title": "A", "source": {"type": "text", "data": "words",
             "media_type": "text/plain"}},
            {"type": "document", "source": {**PNG, "media_type": "application/pdf"}},
            {"type": "document", "source": {"type": "url", "url": "https://e.test/a.pdf"}},
            {"type": "document", "source": {"type": "content", "content": [
                {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}},
            {"type": "document", "source": {"type": "file", "file_id": "f"}},
            {"type": "search_result", "title": "x"},
        ),
    ]  # fmt: skip
    with fake_server(["Hi"]) as server:
        assert send(server, messages, system="Be brief.").content[0].text == "Hi"
        system, first, second, said, one, two, cold, warm, polite, well, *documents, last = (
            server.received[0].canisters
        )
    assert isinstance(system, SupervisorCanister)
    assert first.contents == (TextualContent("Look:"), ImageContent(b"hi", "image/png"))
    assert second.contents == (ImageContent(Location("https://e.test/a.png")),)
    assert isinstance(said, AssistantCanister)
    assert said.contents == (ReasoningContent("Hm."), TextualContent("So."))
    assert isinstance(one, InvocationCanister)
    assert isinstance(two, InvocationCanister)
    assert (one.call, one.parsed, two.call) == ("toolu_1", {"city": "Oslo"}, "toolu_2")
    assert isinstance(cold, ResultCanister)
    assert isinstance(warm, ResultCanister)
    assert (cold.invocation, cold.text, cold.failed) == (one.identity, "cold", False)
    assert (warm.invocation, warm.text, warm.failed) == (two.identity, "warm", True)
    assert isinstance(polite, SupervisorCanister)
    assert isinstance(well, AssistantCanister)
    assert all(isinstance(document, DocumentCanister) for document in documents)
    assert [document.contents[0] for document in documents] == [
        TextualContent("words"),
        FileContent(b"hi", "application/pdf"),
        FileContent(Location("https://e.test/a.pdf")),
        TextualContent("a\nb"),
        NativeContent(label="file"),
    ]
    assert isinstance(last, UserCanister)
    assert last.contents == (NativeContent(label="search_result"),)


HI = user("Hi")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "at least one message"),
    "no bound": ({"extra_body": {"max_tokens": None}}, "max_tokens: Field required"),
    "a bound of nothing": ({"max_tokens": 0}, "greater than or equal to 1"),
    "an unknown role": ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
    "an assistant first": ({"messages": [assistant("a")]}, 'must use the "user" role'),
    "an empty message": ({"messages": [user("")]}, "non-empty content"),
    "a blank text": ({"messages": [user({"type": "text", "text": " "})]}, "non-whitespace"),
    "a block without a type": ({"messages": [user({"text": "a"})]}, "type: Field required"),
    "system text that is none": (
        {"messages": [HI], "system": [{"type": "image", "source": PNG}]}, "only text blocks"
    ),
    "a call without a result": (
        {"messages": [HI, assistant(CALL), user("And?")]}, "ids were found without `tool_result`"
    ),
    "a call at the end": ({"messages": [HI, assistant(CALL)]}, "immediately after: toolu_1"),
    "one result of two": (
        {"messages": [HI, assistant(CALL, OTHER), user(result()), assistant("a")]}, "toolu_2"
    ),
    "words before a result": (
        {"messages": [HI, assistant(CALL), user({"type": "text", "text": "a"}, result())]},
        "ids were found without",
    ),
    "a result without a call": ({"messages": [user(result())]}, "unexpected `tool_use_id`"),
    "a result given twice": (
        {"messages": [HI, assistant(CALL), user(result(), result())]}, "unexpected `tool_use_id`"
    ),
    "a call of the user": ({"messages": [user(CALL)]}, "only be in `assistant`"),
    "a call without an input": (
        {"messages": [HI, assistant({**CALL, "input": "a"})]}, "an id, a name and an input"
    ),
    "two calls of one identity": (
        {"messages": [HI, assistant(CALL, CALL)]}, "ids must be unique"
    ),
    "thinking that was altered": (
        {"messages": [HI, assistant({"type": "thinking", "thinking": "Oh.",
                                     "signature": sign(MODEL, "Hm.")})]},
        "Invalid `signature`",
    ),
    "thinking of another model": (
        {"messages": [HI, assistant({"type": "thinking", "thinking": "Hm.",
                                     "signature": sign("claude-opus-5", "Hm.")})]},
        "Invalid `signature`",
    ),
    "a picture that is none": (
        {"messages": [user({"type": "image", "source": {**PNG, "data": "?"}})]}, "invalid base64"
    ),
    "a picture of nothing": (
        {"messages": [user({"type": "image", "source": {**PNG, "data": ""}})]}, "data is empty"
    ),
    "a picture without a source": ({"messages": [user({"type": "image"})]}, "source: Field"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_the_real_server_would_not_take_is_refused(name: str) -> None:
    changes, words = WRONG[name]
    with fake_server(["Hi"]) as server:
        request = {"messages": [HI], "max_tokens": 9, **changes}
        with pytest.raises(BadRequestError, match=words) as caught:
            send(server, request.pop("messages"), **request)
        assert caught.value.type == "invalid_request_error"
        assert len(server.refusals) == 1
        assert server.refusals[0] in str(caught.value)


def test_thinking_may_be_given_back_word_for_word() -> None:
    reply = ScriptedReply(parts=(Part(reasoning="Hm."), Part(text="So.")), when=".*")
    with fake_server(reply) as server:
        blocks = [block.to_dict() for block in send(server, [HI]).content]
        assert send(server, [HI, {"role": "assistant", "content": blocks}, HI]).content
        assert server.refusals == []


def test_tokens_are_counted_as_a_reply_reports_them() -> None:
    messages: Any = [user("How many words are these?")]
    with fake_server(["Six."]) as server, make_anthropic(server) as client:
        counted = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
        usage = send(server, messages, system="Be brief.").usage
        assert counted.input_tokens == usage.input_tokens > 8


def test_models_come_in_pages_and_one_by_one() -> None:
    with fake_server(["Hi"], models=("a", "b", "c")) as server, make_anthropic(server) as client:
        assert [model.id for model in client.models.list(limit=2)] == ["a", "b", "c"]
        assert client.models.retrieve("b").display_name == "b"
        with pytest.raises(Exception, match="model: d") as caught:
            client.models.retrieve("d")
        assert getattr(caught.value, "status_code", 0) == 404
