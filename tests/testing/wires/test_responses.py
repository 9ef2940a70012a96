"""What the fake server of Responses takes, keeps and refuses, in the words of the real one."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from tests.testing.official import make_openai
from vibe_llms.messages.canisters import (
    AssistantCanister,
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
    Upload,
)
from vibe_llms.testing import FakeServer, Part, ScriptedReply, fake_server
from vibe_llms.testing.wires.responses import encrypt

MODEL = "gpt-6.1-sol"
PDF = "data:application/pdf;base64,aGk="
HI = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "cold"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": encrypt(MODEL, "Hm."),
}


def send(server: FakeServer, said: Any, **more: Any) -> Any:
    given: Any = {"model": MODEL, "input": said, **more}
    with make_openai(server) as client:
        return client.responses.create(**given)


def test_a_conversation_is_read() -> None:
    parts = [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        {"type": "input_file", "file_url": "https://e.test/a.pdf"},
        {"type": "input_file", "file_id": "file_1"},
        {"type": "input_image", "file_id": "file_2", "detail": "auto"},
    ]
    items = [
        {"role": "user", "content": parts},
        THOUGHT,
        CALL,
        {**RESULT, "output": [{"type": "input_text", "text": "cold"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "So."}]},
        {"type": "message", "role": "developer", "content": "Be polite."},
        HI,
    ]
    with fake_server(["Hi"]) as server:
        assert send(server, items, instructions="Be brief.").output_text == "Hi"
        system, asked, thought, call, result, search, said, polite, _ = server.received[0].canisters
    assert isinstance(system, SupervisorCanister)
    assert asked.contents == (
        TextualContent("Look:"),
        ImageContent(b"hi", "image/png"),
        FileContent(b"hi", "application/pdf", "a.pdf"),
        FileContent(Location("https://e.test/a.pdf")),
        FileContent(Upload("file_1", "openai")),
        ImageContent(Upload("file_2", "openai")),
    )
    assert thought.contents == (ReasoningContent("Hm."),)
    assert isinstance(call, InvocationCanister)
    assert isinstance(result, ResultCanister)
    assert (result.invocation, result.text) == (call.identity, "cold")
    assert search.contents == (NativeContent(label="web_search_call"),)
    assert isinstance(said, AssistantCanister)
    assert isinstance(polite, SupervisorCanister)


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ("", "Missing required parameter: 'input'"),
    "an unknown role": ([{"role": "tool", "content": "a"}], "Invalid value: 'tool'"),
    "an item without a type": ([{"type": 5}], "expected a string"),
    "a call without a result": ([HI, CALL], "No tool output found for function call call_1"),
    "a result without a call": ([HI, RESULT], "No tool call found for function call output"),
    "a result given twice": ([HI, CALL, RESULT, RESULT], "No tool call found"),
    "reasoning at the end": ([HI, THOUGHT], "without its required following item"),
    "reasoning before a person": ([HI, THOUGHT, HI], "without its required following item"),
    "reasoning that was altered": (
        [HI, {**THOUGHT, "encrypted_content": "ENC"}, CALL, RESULT], "could not be verified"
    ),
    "reasoning of another model": (
        [HI, {**THOUGHT, "encrypted_content": encrypt("o3", "Hm.")}, CALL, RESULT],
        "could not be verified",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_the_real_server_would_not_take_is_refused(name: str) -> None:
    items, words = WRONG[name]
    with fake_server(["Hi"]) as server:
        with pytest.raises(BadRequestError, match=words):
            send(server, items)
        assert len(server.refusals) == 1


def test_a_response_that_is_kept_can_be_gone_on_with() -> None:
    with fake_server(["Hi"]) as server:
        first = send(server, "One")
        second = send(server, "Two", previous_response_id=first.id)
        send(server, "Three", previous_response_id=second.id, store=False)
        kinds = [type(canister) for canister in server.received[-1].canisters]
        assert kinds == [UserCanister, AssistantCanister] * 2 + [UserCanister]
        unkept = send(server, "Four", store=False)
        with pytest.raises(NotFoundError) as caught:
            send(server, "Five", previous_response_id=unkept.id)
        assert caught.value.code == "previous_response_not_found"


def test_reasoning_may_be_given_back_word_for_word() -> None:
    reply = ScriptedReply(parts=(Part(reasoning="Hm."), Part(text="So.")), when=".*")
    options = {"store": False, "include": ["reasoning.encrypted_content"]}
    with fake_server(reply) as server:
        output = [item.to_dict() for item in send(server, "Hi", **options).output]
        assert output[0]["encrypted_content"]
        assert send(server, [HI, *output, HI], **options).output_text == "So."
        assert "encrypted_content" not in send(server, "Hi").output[0].to_dict()
        assert server.refusals == []


def test_tokens_are_counted_as_a_reply_reports_them() -> None:
    with fake_server(["Six."]) as server, make_openai(server) as client:
        counted = client.responses.input_tokens.count(model=MODEL, input="How many are these?")
        assert counted.input_tokens == send(server, "How many are these?").usage.input_tokens > 5
