"""What the fake server of Chat Completions takes and refuses, in the words of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from tests.testing.official import make_openai
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    TextualContent,
    Upload,
)
from vibe_llms.testing import FakeServer, fake_server

FUNCTION = {"name": "weather", "arguments": '{"city": '}
CALL = {"id": "call_1", "type": "function", "function": FUNCTION}
CALLING = {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "call_2"}]}
PDF = "data:application/pdf;base64,aGk="
HI = {"role": "user", "content": "Hi"}


def result(call: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "cold"}


def send(server: FakeServer, messages: Sequence[Any], **more: Any) -> Any:
    given: Any = {"model": "gpt-5.5", "messages": messages, **more}
    with make_openai(server) as client:
        return client.chat.completions.create(**given)


def test_a_conversation_is_read() -> None:
    picture = "data:image/png;base64,aGk="
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "image_url", "image_url": {"url": "https://e.test/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        {"type": "file", "file": {"file_id": "file_1"}},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {**CALLING, "content": None},
        result("call_2"),
        result(),
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "developer", "content": "Be polite."},
        HI,
    ]
    with fake_server(["Hi"]) as server:
        assert send(server, messages).choices[0].message.content == "Hi"
        system, asked, one, two, second, first, said, refused, polite, _ = server.received[
            0
        ].canisters
    assert isinstance(system, SupervisorCanister)
    assert asked.contents == (
        TextualContent("Look:"),
        ImageContent(b"hi", "image/png"),
        ImageContent(Location("https://e.test/a.png")),
        AudioContent(b"hi", "audio/wav"),
        FileContent(b"hi", "application/pdf", "a.pdf"),
        FileContent(Upload("file_1", "openai")),
    )
    assert isinstance(one, InvocationCanister)
    assert isinstance(two, InvocationCanister)
    assert isinstance(first, ResultCanister)
    assert isinstance(second, ResultCanister)
    assert (first.invocation, second.invocation) == (one.identity, two.identity)
    assert one.arguments == '{"city": '
    assert said.contents == (ReasoningContent("Hm."), TextualContent("So."))
    assert isinstance(refused, AssistantCanister)
    assert isinstance(polite, SupervisorCanister)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_reply_of_calls_alone_is_read_as_calls(content: dict[str, Any]) -> None:
    said = {key: value for key, value in CALLING.items() if key != "content"}
    with fake_server(["Hi"]) as server:
        send(server, [HI, {**said, **content}, result(), result("call_2"), HI])
        kinds = [type(canister) for canister in server.received[0].canisters[1:3]]
    assert kinds == [InvocationCanister, InvocationCanister]


WRONG: dict[str, tuple[Sequence[Any], str]] = {
    "no messages": ([], "empty array"),
    "an unknown role": ([{"role": "robot", "content": "a"}], "Supported values are: 'system'"),
    "no content": ([{"role": "user", "content": None}], "expected a string"),
    "a silent assistant": ([HI, {"role": "assistant", "content": None}], "expected a string"),
    "content that is none": ([{"role": "user", "content": 5}], "expected an array"),
    "an unknown part": ([{"role": "user", "content": [{"type": "song"}]}], "Invalid value: 'song'"),
    "a part without a type": ([{"role": "user", "content": [{}]}], "Missing required parameter"),
    "a call without a result": ([HI, CALLING, HI], "not have response messages: call_1, call_2"),
    "one result of two": ([HI, CALLING, result(), HI], "did not have response messages: call_2"),
    "a call at the end": ([HI, CALLING], "must be followed by tool messages"),
    "a result without a call": ([HI, result()], "must be a response to a preceding message"),
    "a result given twice": ([HI, CALLING, result(), result()], "must be a response"),
    "a result of nothing": ([HI, CALLING, {"role": "tool", "content": "a"}], "tool_call_id"),
    "a picture that is none": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;,?"}}]}],
        "invalid base64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_the_real_server_would_not_take_is_refused(name: str) -> None:
    messages, words = WRONG[name]
    with fake_server(["Hi"]) as server:
        with pytest.raises(BadRequestError, match=words) as caught:
            send(server, messages)
        assert caught.value.type == "invalid_request_error"
        assert len(server.refusals) == 1


def test_the_usage_of_a_stream_is_reported_where_it_is_asked_for() -> None:
    with fake_server(["Hi"]) as server, make_openai(server) as client:
        for options, reported in (({}, False), ({"stream_options": {"include_usage": True}}, True)):
            given: Any = {"model": "m", "messages": [HI], "stream": True, **options}
            chunks: Any = list(client.chat.completions.create(**given))
            assert [bool(chunk.usage) for chunk in chunks] == [False] * 3 + [True] * reported


def test_models_are_listed_and_described_one_by_one() -> None:
    with fake_server(["Hi"]) as server, make_openai(server) as client:
        assert "gpt-5.5" in [model.id for model in client.models.list()]
    with fake_server(["Hi"], models=("a",)) as server, make_openai(server) as client:
        assert client.models.retrieve("a").owned_by == "fake"
        with pytest.raises(NotFoundError):
            client.models.retrieve("b")
