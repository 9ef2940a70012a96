"""Histories as Gemini takes them: signatures, calls, media, and what is said of the rest."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from tests.fakes.gemini import FakeGemini, Issued, check_request
from tests.fakes.gemini_clients import assemble, produce_model
from tests.fakes.recordings import GEMINI
from tests.fakes.strict import Refused
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    TextualContent,
    Upload,
    VideoContent,
)
from vibe_llms.testing.wires import gemini_replies
from vibe_llms.testing.wires.core import produce_invoker

HI = UserCanister.from_text("Hi")
PNG = b"\x89PNG\r\n\x1a\n"
DUMMY = "skip_thought_signature_validator"


def issued_by(name: str) -> tuple[Issued, tuple[ReplyCanister, ...]]:
    """A recorded reply, and a server that knows it."""
    issued = Issued()
    issued.remember(GEMINI.events(name), GEMINI.model)
    return issued, GEMINI.whole(name)[0]


def spoken(body: dict[str, Any]) -> list[dict[str, Any]]:
    (content,) = [one for one in body["contents"] if one["role"] == "model"]
    parts: list[dict[str, Any]] = content["parts"]
    return parts


async def test_each_signature_goes_back_on_the_part_that_it_came_on() -> None:
    model = await produce_model()
    issued, reply = issued_by("signed")
    body, notices = await assemble(model, [HI, *reply, HI], issued=issued)
    assert spoken(body) == [
        {"text": "Hm.", "thought": True, "thoughtSignature": "VEhPVUdIVA=="},
        {"text": "One "},
        {"text": "two ", "thoughtSignature": "VFdP"},
        {"text": "three."},
        {"text": "", "thoughtSignature": "RU5E"},
    ]
    assert notices == []


async def test_a_text_that_was_changed_has_no_signatures() -> None:
    model = await produce_model()
    issued, reply = issued_by("signed")
    said = reply[0]
    assert isinstance(said, AssistantCanister)
    thought, words = said.contents
    cut = msgspec.structs.replace(words, data="One")
    changed = msgspec.structs.replace(said, contents=(thought, cut))
    body, _ = await assemble(model, [HI, changed, HI], issued=issued)
    assert spoken(body)[1:] == [{"text": "One"}]


@pytest.mark.parametrize("name", ["text", "thinking", "tools", "code", "image", "unknown"])
async def test_every_kind_of_part_goes_back_as_it_came(name: str) -> None:
    model = await produce_model()
    issued, reply = issued_by(name)
    said: list[Canister] = [HI, *reply]
    for call in reply:
        if isinstance(call, InvocationCanister):
            result = (TextualContent("noon"),)
            said.append(ResultCanister(result, invocation=call.identity, identity=call.identity))
    body, notices = await assemble(model, [*said, HI], issued=issued)
    assert notices == []
    whole = GEMINI.body(name)["candidates"][0]["content"]["parts"]
    assert spoken(body) == whole


async def test_metadata_of_a_reply_is_kept_and_not_sent_back() -> None:
    model = await produce_model()
    issued, reply = issued_by("grounding")
    body, notices = await assemble(model, [HI, *reply, HI], issued=issued)
    assert spoken(body)[0] == {"text": "Spain won."}
    assert notices == []
    other = await produce_model(name="gemini-2.5-pro")
    _, notices = await assemble(other, [HI, *reply, HI])
    assert any("groundingMetadata" in notice for notice in notices)
    assert any("the source list of another model's text" in notice for notice in notices)


def calls(*, own: bool = False) -> list[Any]:
    first = InvocationCanister(
        name="time/now", arguments='{"zone":"UTC"}', call="toolu_1", reply="r"
    )
    second = InvocationCanister(name="3d", call="toolu_2", reply="r")
    return [
        *(HI, first, second),
        ResultCanister((TextualContent("noon"),), invocation=second.identity, failed=True),
        ResultCanister(
            (TextualContent("one"), ImageContent(PNG, "image/png")), invocation=first.identity
        ),
    ]


async def test_the_first_of_another_models_calls_has_the_signature_that_google_names() -> None:
    model = await produce_model()
    body, _ = await assemble(model, calls())
    first, second = spoken(body)
    assert first["thoughtSignature"] == DUMMY
    assert first["functionCall"] == {"name": "time__now", "args": {"zone": "UTC"}}
    assert "thoughtSignature" not in second
    older = await produce_model(name="gemini-2.5-flash")
    body, _ = await assemble(older, calls())
    assert not any("thoughtSignature" in part for part in spoken(body))


async def test_results_follow_the_order_of_the_calls_with_their_media() -> None:
    model = await produce_model()
    body, _ = await assemble(model, calls())
    first, second = [part["functionResponse"] for part in body["contents"][-1]["parts"]]
    image = {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
    assert first == {
        "name": "time__now",
        "response": {"output": "one"},
        "parts": [{"inlineData": image}],
    }
    assert second["response"] == {"error": "noon"}
    assert second["name"].endswith("_3d")
    older = await produce_model(name="gemini-2.5-flash")
    body, _ = await assemble(older, calls())
    *results, words, shown = body["contents"][-1]["parts"]
    assert [set(result) for result in results] == [{"functionResponse"}] * 2
    assert words == {"text": "(What time/now showed is here.)"}
    assert shown == {"inlineData": image}


async def test_only_calls_that_came_with_an_id_have_one() -> None:
    model = await produce_model()
    issued, reply = issued_by("twice")
    said: list[Canister] = [HI, *reply]
    for call in reply:
        if isinstance(call, InvocationCanister):
            said.append(ResultCanister((TextualContent("x"),), invocation=call.identity))
    body, _ = await assemble(model, said, issued=issued)
    made = [part["functionCall"].get("id") for part in spoken(body) if "functionCall" in part]
    told = [part["functionResponse"].get("id") for part in body["contents"][-1]["parts"]]
    assert made == told
    # The second one repeats the id of the first, so it gets another.
    assert made[0] == "d1"
    assert made[1] not in (None, "d1")
    assert made[2] is None


async def test_instructions_stand_at_the_head_and_later_ones_in_the_conversation() -> None:
    model = await produce_model()
    said: list[Canister] = [
        SupervisorCanister.from_text("Be brief."),
        HI,
        AssistantCanister((TextualContent("Yes?"),)),
        SupervisorCanister.from_text("Be long."),
        DocumentCanister((TextualContent("Rain is wet."),), title="Report"),
    ]
    body, _ = await assemble(model, said)
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert [part["text"] for part in body["contents"][-1]["parts"]] == [
        *("<system>", "Be long.", "</system>"),
        *("Document: Report", "Rain is wet."),
    ]


async def test_media_of_every_kind_are_sent() -> None:
    model = await produce_model()
    contents = (
        ImageContent(PNG, "image/png"),
        AudioContent(b"ID3", "audio/mpeg"),
        VideoContent(b"film", "video/mp4"),
        FileContent(b"%PDF", "application/pdf"),
        FileContent(b"a,b", "text/csv", "/home/ada/t.csv"),
        VideoContent(Location("https://www.youtube.com/watch?v=x")),
        FileContent(Location("https://example.org/a.pdf")),
        ImageContent(Location("https://example.org/a"), "image/webp"),
        VideoContent(
            Upload("https://generativelanguage.test/v1beta/files/x", "gemini"), "video/mp4"
        ),
    )
    body, notices = await assemble(model, [UserCanister(contents)])
    parts = body["contents"][0]["parts"]
    assert notices == []
    assert [part["inlineData"]["mimeType"] for part in parts[:4]] == [
        *("image/png", "audio/mpeg", "video/mp4", "application/pdf")
    ]
    assert parts[4] == {"text": "File: t.csv\na,b"}
    assert [part["fileData"]["mimeType"] for part in parts[5:]] == [
        *("video/mp4", "application/pdf", "image/webp", "video/mp4")
    ]


async def test_a_picture_of_another_model_is_described() -> None:
    model = await produce_model()
    said: list[Canister] = [
        HI,
        AssistantCanister((ImageContent(PNG, "image/png"), ReasoningContent("Hm."))),
        HI,
    ]
    body, notices = await assemble(model, said)
    assert spoken(body) == [{"text": "[an image image/png, not shown to this model]"}]
    assert len(notices) == 2


async def test_tools_are_declared_with_schemas_of_openapi_and_names_that_begin_with_a_letter(
    fake_gemini: FakeGemini,
) -> None:
    # https://github.com/zed-industries/zed/issues/44875 (const), openswarm-ai/openswarm#24
    # (additionalProperties), https://github.com/kaitranntt/ccs/issues/25 (names).
    reference = {"$ref": "#/$defs/Place"}
    schema = {
        "type": "object",
        "properties": {"to": reference, "kind": {"const": "bus"}},
        "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}}},
        "additionalProperties": False,
    }

    tools = [
        produce_invoker("2/travel", "Travel.", schema),
        produce_invoker("now", "The time.", {"type": "object", "properties": {}}),
    ]
    model = await produce_model(fake_gemini.url)
    body, _ = await assemble(model, [HI], *tools)
    first, second = body["tools"][0]["functionDeclarations"]
    assert first["name"] != "2__travel"
    assert "parameters" not in second
    fake_gemini.replies = [gemini_replies.tools_reply((first["name"], "{}"))]
    (call,) = await model.converse([HI], tools)
    assert isinstance(call, InvocationCanister)
    assert call.name == "2/travel"
    await model.client.close()


def test_the_fake_refuses_what_google_refuses() -> None:
    bad = {
        b'{"contents":[]}': "contents is not specified",
        b'{"contents":[{"role":"user","parts":[{"text":""}]}]}': "must have one initialized field",
        b'{"contents":[{"role":"user","parts":[]}]}': "must not be empty",
        b'{"contents":[{"role":"user","parts":[{"text":"a","size":1}]}]}': "one initialized field",
        b'{"contents":[{"role":"user","parts":[{"text":"a"}]}],"tool":[]}': "Unknown name",
        b'{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":'
        b'[{"functionCall":{"name":"f","args":{}}}]},{"role":"user","parts":'
        b'[{"functionResponse":{"name":"f","response":{}}}]}]}': "missing a thought_signature",
    }
    for body, words in bad.items():
        with pytest.raises(Refused, match=words):
            check_request(body, Issued())
