"""Whatever a history holds, the strict server takes it, and nothing is dropped in silence."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.fakes.ollama import FakeModel, FakeOllama, read_request
from tests.fakes.ollama_clients import produce_model
from tests.fakes.recordings import OLLAMA
from tests.fakes.strict import Refused
from vibe_llms.base.exceptions import ContentUnsupported, RequestTooLarge
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    FileContent,
    ImageContent,
    ReasoningContent,
    Reference,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.ollama.model import OllamaModel

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 24
VISION = {".*": {"accepts": ["image", "image/png", "image/jpeg"]}}


async def load_any(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """Bytes for any reference, half of them no text."""
    return {
        one.hash: b"kept text" if int(one.hash[-1], 16) % 2 else b"\xff\xfe" for one in references
    }


async def encode(
    model: OllamaModel, said: Sequence[Canister], **options: Any
) -> tuple[dict[str, Any], list[Notice]]:
    """The request that a history becomes, as the strict server reads it."""
    notices: list[Notice] = []
    context = TurnContext(notify=notices.append, load=load_any, **options)
    body = await model.preview(said, (), Controls(), context)
    try:
        read_request(body)
    except Refused as error:
        raise AssertionError(f"{error}: {body[:2000]!r}") from error
    request: dict[str, Any] = json.loads(body)
    return request, notices


async def test_a_reply_is_sent_back_with_its_thinking_and_calls() -> None:
    model = await produce_model()
    reply, _ = OLLAMA.assimilate([OLLAMA.load("tools")])
    calls = [canister for canister in reply if isinstance(canister, InvocationCanister)]
    said: list[Canister] = [
        UserCanister.from_text("Weather?"),
        *reply,
        # Results come as they land, and are sent in the order of the calls.
        ResultCanister((TextualContent("noon"),), invocation=calls[1].identity),
        ResultCanister((TextualContent("no sky"),), invocation=calls[0].identity, failed=True),
    ]
    request, notices = await encode(model, said)
    assert request["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "thinking": "I need both.",
            "tool_calls": [
                {
                    "id": "call_a1b2c3d4",
                    "function": {
                        "name": "weather",
                        "arguments": {"city": "Zürich", "days": 2, "note": "a<b & c"},
                    },
                },
                {
                    "id": "call_e5f6a7b8",
                    "function": {
                        "name": "get_time",
                        "arguments": {"zones": ["CET", {"offset": 1.5, "dst": None}]},
                    },
                },
            ],
        },
        {
            "role": "tool",
            "content": "(The call failed.)\n\nno sky",
            "tool_name": "weather",
            "tool_call_id": "call_a1b2c3d4",
        },
        {
            "role": "tool",
            "content": "noon",
            "tool_name": "get_time",
            "tool_call_id": "call_e5f6a7b8",
        },
    ]
    assert notices == []


async def test_calls_without_identities_are_paired_by_ours() -> None:
    model = await produce_model()
    reply, _ = OLLAMA.assimilate([OLLAMA.load("older")])
    said: list[Canister] = [UserCanister.from_text("Weather?"), *reply]
    for call, text in zip(reversed(reply), ("Rome's", "Paris'"), strict=True):
        said.append(ResultCanister((TextualContent(text),), invocation=call.identity))
    request, _ = await encode(model, said)
    _, assistant, *results = request["messages"]
    assert [result["content"] for result in results] == ["Paris'", "Rome's"]
    identities = [call["id"] for call in assistant["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == identities
    assert len(set(identities)) == 2


async def test_identities_of_another_provider_are_made_anew_where_they_do_not_serve() -> None:
    model = await produce_model()
    said: list[Canister] = [UserCanister.from_text("Go")]
    for call in ("toolu_1", "toolu_1", "odd id\n", ""):
        made = InvocationCanister(name="a/b", call=call, reply="r")
        said += [made, ResultCanister((TextualContent("x"),), invocation=made.identity)]
    request, _ = await encode(model, said)
    calls = [call for message in request["messages"] for call in message.get("tool_calls", [])]
    assert calls[0]["id"] == "toolu_1"
    assert len({call["id"] for call in calls}) == 4
    assert {call["function"]["name"] for call in calls} == {"a__b"}


async def test_what_a_call_had_besides_goes_back_to_its_own_model_word_for_word() -> None:
    model = await produce_model()
    reply, _ = OLLAMA.assimilate([OLLAMA.load("unknown")])
    request, notices = await encode(model, [UserCanister.from_text("Go"), *reply])
    (made,) = request["messages"][1]["tool_calls"]
    assert made["signature"] == "SIG=="
    assert notices == []


async def test_a_model_without_tools_gets_them_in_the_prompt() -> None:
    model = await produce_model(models={".*": {"tools": "contract"}})
    call = InvocationCanister(name="time/now", arguments='{"zone":"CET"}')
    said: list[Canister] = [
        UserCanister.from_text("Go"),
        call,
        ResultCanister((TextualContent("noon"),), invocation=call.identity),
    ]
    request, notices = await encode(model, said)
    assert request["messages"][1:] == [
        {
            "role": "assistant",
            "content": '(I called the tool time/now with {"zone":"CET"}.)',
        },
        {"role": "user", "content": "The tool time/now returned:\n\nnoon"},
    ]
    assert len(notices) == 1


async def test_pictures_are_plain_base64_and_those_of_tools_are_shown_by_the_user() -> None:
    model = await produce_model(models=VISION)
    call = InvocationCanister(name="draw")
    picture = ImageContent(PNG, "image/png")
    said: list[Canister] = [
        UserCanister((TextualContent("Look"), picture, ImageContent(PNG))),
        call,
        ResultCanister((picture,), invocation=call.identity),
    ]
    request, notices = await encode(model, said)
    encoded = base64.b64encode(PNG).decode()
    first, _, result, shown = request["messages"]
    assert first["images"] == [encoded, encoded]
    assert "images" not in result
    assert shown == {
        "role": "user",
        "content": "(What draw showed is here.)",
        "images": [encoded],
    }
    assert notices == []


async def test_a_picture_for_a_model_that_sees_nothing_is_refused_before_the_request(
    fake_ollama: FakeOllama,
) -> None:
    fake_ollama.models["blind"] = FakeModel(["completion"], family="blind")
    model = await produce_model(fake_ollama.url, name="blind")
    said = UserCanister((ImageContent(PNG, "image/png"),))
    # What the model sees is not known before its server was asked.
    model.check([said], Controls())
    with pytest.raises(ContentUnsupported):
        await model.inquire([said], Controls())
    with pytest.raises(ContentUnsupported):
        await model.converse([said], context=TurnContext(fresh=frozenset({said.identity})))
    with pytest.raises(ContentUnsupported):
        model.check([said], Controls())
    assert fake_ollama.chats == []
    await model.client.close()


async def test_text_files_and_documents_are_text() -> None:
    model = await produce_model()
    said: list[Canister] = [
        DocumentCanister((TextualContent("It rises."),), title="The sun", source="notes.txt"),
        UserCanister((FileContent(b"a = 1", "text/x-python", "a.py"), TextualContent("Why?"))),
        UserCanister((FileContent(Reference("0" * 63 + "1", 9), "text/plain"),)),
    ]
    request, notices = await encode(model, said)
    assert request["messages"] == [
        {
            "role": "user",
            "content": "Document: The sun, notes.txt\n\nIt rises.\n\nFile: a.py\n\na = 1\n\n"
            "Why?\n\nA file:\n\nkept text",
        }
    ]
    assert notices == []


async def test_system_text_comes_first_or_is_marked() -> None:
    model = await produce_model()
    said: list[Canister] = [
        SupervisorCanister.from_text("Be brief."),
        SupervisorCanister.from_text("Be kind."),
        AssistantCanister.from_text("Hello"),
        SupervisorCanister.from_text("Now rhyme."),
        UserCanister.from_text("Go"),
    ]
    request, _ = await encode(model, said)
    assert [message["content"] for message in request["messages"]] == [
        "Be brief.\n\nBe kind.",
        "(The conversation begins.)",
        "Hello",
        "<system>\n\nNow rhyme.\n\n</system>\n\nGo",
    ]


async def test_an_unknown_message_and_an_empty_history_still_ask_something() -> None:
    model = await produce_model()
    request, notices = await encode(model, [UnknownCanister(label="later")])
    assert request["messages"] == [{"role": "user", "content": "(Please continue.)"}]
    assert "unknown role 'later'" in notices[0].text
    request, _ = await encode(model, [AssistantCanister.from_text("I say")])
    assert request["messages"][-1] == {"role": "user", "content": "(Please continue.)"}


async def test_the_oldest_pictures_give_way_where_a_request_would_be_too_large() -> None:
    model = await produce_model(models={".*": {**VISION[".*"], "request-bytes": 20_000}})
    said: list[Canister] = []
    for number in range(5):
        picture = ImageContent(PNG + bytes([number]) * 4_000, "image/png")
        said.append(UserCanister((picture, TextualContent(f"number {number}"))))
        said.append(AssistantCanister((ReasoningContent("Hm."), TextualContent("Seen."))))
    said.append(UserCanister.from_text("And?"))
    cache = model.produce_cache()
    request, notices = await encode(model, said, cache=cache)
    texts = [message["content"] for message in request["messages"] if message["role"] == "user"]
    shown = ["left out to save room" not in text for text in texts]
    assert shown == [False, False, True, True, True, True]
    assert len([n for n in notices if "more than 20000 bytes" in n.text]) == 2
    # Those that gave way stay out, and what follows is encoded on top.
    said.append(AssistantCanister.from_text("So."))
    again, _ = await encode(model, said, cache=cache)
    assert again["messages"][: len(request["messages"])] == request["messages"]
    # Nothing is reported twice, although the history was encoded anew.
    _, more = await encode(model, said, cache=cache)
    assert len({*notices, *more}) == len(notices) + len(more)
    fresh = UserCanister((ImageContent(PNG + b"x" * 30_000, "image/png"),))
    with pytest.raises(RequestTooLarge, match="20000"):
        await encode(model, [fresh], fresh=frozenset({fresh.identity}))
