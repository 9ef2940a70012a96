"""What is sent: any history becomes a request that the official types and the rules accept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from tests.fakes.openai import FakeOpenAI
from tests.fakes.openai_clients import MODELS, MODULES, produce_openai_model
from tests.fakes.recordings import RESPONSES
from tests.fakes.strict import dump
from tests.providers.laws.test_histories import produce_history
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Issuer,
    Location,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    Upload,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.openai.responses.messages import ResponsesHistory

PNG = b"\x89PNG\r\n\x1a\n"
BLOBS: dict[str, bytes] = {}


async def load_anything(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """Bytes of any reference, of its size or so."""
    return {one.hash: BLOBS.get(one.hash, b"text" * (one.size // 4 + 1)) for one in references}


async def preview(
    interface: str,
    canisters: Sequence[Canister],
    *,
    invokers: Sequence[Invoker] = (),
    controls: Controls = Controls(),
    context: TurnContext = TurnContext(load=load_anything),
    **options: Any,
) -> dict[str, Any]:
    """The request as it would be sent."""
    model = await produce_openai_model(interface, **options)
    body: dict[str, Any] = json.loads(await model.preview(canisters, invokers, controls, context))
    return body


@pytest.mark.storm
async def test_any_history_suits_the_templates_of_local_models(
    fake_openai: FakeOpenAI, rounds: Callable[[int, int], int]
) -> None:
    fake_openai.template = True
    model = await produce_openai_model("chat", fake_openai.url, name="some-local-model")
    for seed in range(rounds(60, 3000)):
        await model.converse(produce_history(seed), context=TurnContext(load=load_anything))
        assert fake_openai.refusals == [], seed
    await model.client.close()


@pytest.mark.parametrize("name", RESPONSES.names)
async def test_what_a_model_has_sent_goes_back_word_for_word(
    name: str, fake_openai: FakeOpenAI
) -> None:
    output = RESPONSES.body(name)["output"]
    canisters, _ = RESPONSES.assimilate([RESPONSES.load(name)])
    results = [
        ResultCanister((TextualContent("18 C"),), invocation=one.identity)
        for one in canisters
        if isinstance(one, InvocationCanister)
    ]
    history: list[Canister] = [
        UserCanister.from_text("Hi"),
        *canisters,
        *results,
        UserCanister.from_text("On?"),
    ]
    body = await preview("responses", history)
    sent = [dump(item) for item in body["input"] if item.get("type") != "function_call_output"]
    complete = [
        item
        for item in output
        if item.get("status") != "incomplete" or item["type"] != "function_call"
    ]
    if name == "beside":
        # Its message says nothing, besides calls.
        assert complete.pop(0)["content"][0]["text"] == ""
    if name == "escaped":
        # A lone half of a pair cannot be kept.
        assert len(sent) == len(complete) + 2
        return
    assert sent[1:-1] == [dump(item) for item in complete]
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]


async def test_altered_reasoning_would_be_detected(fake_openai: FakeOpenAI) -> None:
    fake_openai.remember(RESPONSES.events("tools")[-1]["response"]["output"], MODELS["responses"])
    canisters, _ = RESPONSES.assimilate([RESPONSES.load("tools")])
    model = await produce_openai_model("responses", fake_openai.url)
    issuer = Issuer(MODULES["responses"], "responses", MODELS["responses"])
    await model.converse([UserCanister.from_text("Hi"), *canisters])
    assert fake_openai.refusals == []
    first = canisters[0]
    assert isinstance(first, AssistantCanister)
    thought = first.contents[0]
    assert isinstance(thought, ReasoningContent)
    data = json.loads(bytes(thought.native.data))  # type: ignore[union-attr]
    data["encrypted_content"] = "OTHER"
    native = NativePayload(issuer, msgspec.Raw(json.dumps(data).encode()))
    altered = msgspec.structs.replace(thought, native=native)
    changed = msgspec.structs.replace(first, contents=(altered, *first.contents[1:]))
    with pytest.raises(Exception, match="encrypted content"):
        await model.converse([UserCanister.from_text("Hi"), changed, *canisters[1:]])
    await model.client.close()


async def test_reasoning_is_not_sent_without_what_followed_it(
    fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = RESPONSES.load("tools")
    fake_openai.remember(RESPONSES.events("tools")[-1]["response"]["output"], MODELS["responses"])
    from vibe_llms.base.exceptions import ReplyCut

    with pytest.raises(ReplyCut):
        RESPONSES.assimilate([raw[: raw.index(b'"phase"')]])
    whole, _ = RESPONSES.assimilate([raw])
    first = whole[0]
    assert isinstance(first, AssistantCanister)
    cut = msgspec.structs.replace(first, contents=first.contents[:1])
    model = await produce_openai_model("responses", fake_openai.url)
    await model.converse([UserCanister.from_text("Hi"), cut])
    assert fake_openai.refusals == []

    def frame(self: Any, state: Any, *, first: bool, last: bool) -> Any:
        for piece in [*state.spoken, *state.others]:
            yield from (item.block for item in piece.items)

    monkeypatch.setattr(ResponsesHistory, "frame", frame)
    with pytest.raises(Exception, match="required following item"):
        await model.converse([UserCanister.from_text("Hi"), cut])
    await model.client.close()


async def test_media_become_parts_of_both_interfaces() -> None:
    image = ImageContent(PNG, "image/png")
    pdf = FileContent(b"%PDF", "application/pdf", "a.pdf")
    notes = FileContent("Grüße".encode(), "text/plain", "notes.txt")
    far = ImageContent(Location("https://example.test/a.png"))
    user = UserCanister((TextualContent("Look:"), image, pdf, notes, far))
    (chat,) = (await preview("chat", [user]))["messages"]
    assert [part["type"] for part in chat["content"]] == [
        "text",
        "image_url",
        "file",
        "text",
        "image_url",
    ]
    assert chat["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert chat["content"][2]["file"] == {
        "filename": "a.pdf",
        "file_data": "data:application/pdf;base64,JVBERg==",
    }
    assert chat["content"][3]["text"] == "File notes.txt:\n\nGrüße"
    (item,) = (await preview("responses", [user]))["input"]
    assert [part["type"] for part in item["content"]] == [
        "input_text",
        "input_image",
        "input_file",
        "input_text",
        "input_image",
    ]
    assert item["content"][2]["file_data"] == "data:application/pdf;base64,JVBERg=="
    upload = UserCanister((FileContent(Upload("file_1", "responses"), "application/pdf"),))
    (item,) = (await preview("responses", [upload]))["input"]
    assert item["content"] == [{"type": "input_file", "file_id": "file_1"}]


async def test_sound_is_sent_to_a_model_that_hears() -> None:
    sound = UserCanister((AudioContent(b"RIFF", "audio/x-wav"),))
    (message,) = (await preview("chat", [sound], name="gpt-audio-mini"))["messages"]
    assert message["content"] == [
        {"type": "input_audio", "input_audio": {"format": "wav", "data": "UklGRg=="}}
    ]


async def test_what_a_tool_shows_stays_with_its_result() -> None:
    call = InvocationCanister(name="camera", call="call_0", reply="r")
    seen = (TextualContent("Here:"), ImageContent(PNG, "image/png"))
    result = ResultCanister(seen, invocation=call.identity, failed=True)
    history: list[Canister] = [UserCanister.from_text("Show me."), call, result]
    messages = (await preview("chat", history))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[2]["content"].startswith("(The call failed.)\n\nHere:")
    assert messages[3]["content"][1]["type"] == "image_url"
    items = (await preview("responses", history))["input"]
    assert [part["type"] for part in items[2]["output"]] == [
        "input_text",
        "input_text",
        "input_image",
    ]


async def test_system_text_is_placed_where_the_model_takes_it() -> None:
    history: list[Canister] = [
        SupervisorCanister.from_text("Be brief."),
        SupervisorCanister.from_text("Be kind."),
        UserCanister.from_text("Hi"),
        AssistantCanister.from_text("Hello."),
        SupervisorCanister.from_text("Speak French."),
        UserCanister.from_text("And now?"),
        DocumentCanister.from_text("The sky is blue."),
    ]
    messages = (await preview("chat", history))["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [
        ("developer", "Be brief.\n\nBe kind."),
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("developer", "Speak French."),
        ("user", "And now?\n\nDocument:\n\nThe sky is blue."),
    ]
    messages = (await preview("chat", history, name="local"))["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
    assert messages[3]["content"].startswith("<system>\n\nSpeak French.\n\n</system>\n\nAnd now?")
    items = (await preview("responses", history))["input"]
    assert [one["role"] for one in items] == [
        "developer",
        "developer",
        "user",
        "assistant",
        "developer",
        "user",
        "user",
    ]


async def test_calls_have_identities_that_mistral_takes(fake_openai: FakeOpenAI) -> None:
    fake_openai.short_calls = True
    calls = [InvocationCanister(name="f", call=call, reply="r") for call in ("toolu_1", "", "abc")]
    model = await produce_openai_model("chat", fake_openai.url, name="mistral-large-latest")
    await model.converse([UserCanister.from_text("Hi"), *calls])
    assert fake_openai.refusals == []
    await model.client.close()


async def test_a_reply_of_calls_alone_has_empty_text() -> None:
    # llama-cpp-python's server answers 500 to null, and in most of its formats to no content too.
    call = InvocationCanister(name="look", call="call_1")
    result = ResultCanister((TextualContent("up"),), invocation=call.identity)
    words = AssistantCanister((TextualContent("Let me look."),))
    for reply, content in ([call], ""), ([words, call], "Let me look."):
        body = await preview("chat", [UserCanister.from_text("Hi"), *reply, result])
        assert body["messages"][1]["content"] == content
        assert [one["id"] for one in body["messages"][1]["tool_calls"]] == ["call_1"]


async def test_reasoning_goes_back_to_a_model_that_wants_it() -> None:
    from vibe_llms.providers.openai.chat_completions.messages import MODULE

    issuer = Issuer(MODULE, "chat", "deepseek-chat")
    native = NativePayload(issuer, msgspec.Raw(b'{"member":"reasoning_content"}'))
    thought = ReasoningContent("Hm.", native=native)
    history: list[Canister] = [
        UserCanister.from_text("Hi"),
        AssistantCanister((thought, TextualContent("Yes."))),
        UserCanister.from_text("On?"),
    ]
    messages = (await preview("chat", history, name="deepseek-chat"))["messages"]
    assert messages[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    messages = (await preview("chat", history))["messages"]
    assert messages[1] == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize("interface", ["chat", "responses"])
async def test_controls_that_have_no_place_are_refused(interface: str) -> None:
    model = await produce_openai_model(interface, name="unknown")
    absent = ["reasoning_tokens"]
    if interface == "responses":
        absent += ["stop", "seed", "top_k"]
    for name in absent:
        value: Any = ("x",) if name == "stop" else 7
        with pytest.raises(ControlInvalid, match=name.replace("_", "-")):
            model.check([], Controls(**{name: value}))
        reported: list[Notice] = []
        context = TurnContext(default_controls=Controls(**{name: value}), notify=reported.append)
        await preview(interface, [UserCanister.from_text("Hi")], name="unknown", context=context)
        assert len(reported) == 1
    known = await produce_openai_model(interface)
    with pytest.raises(ControlInvalid, match="temperature"):
        known.check([], Controls(temperature=1))


async def test_controls_become_the_members_of_each_interface(fake_openai: FakeOpenAI) -> None:
    schema = {
        "title": "City of note",
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    controls = Controls(
        output_tokens=99,
        effort="low",
        response_schema=schema,
        tool_choice="any",
        parallel_invocations=False,
        service_tier="flex",
    )

    def weather(city: str) -> str:
        """Forecast."""
        return city

    invokers = [Invoker.from_function(weather)]
    history: list[Canister] = [UserCanister.from_text("Hi")]
    chat = await preview("chat", history, invokers=invokers, controls=controls)
    assert chat["max_completion_tokens"] == 99
    assert chat["reasoning_effort"] == "low"
    assert chat["tool_choice"] == "required"
    assert chat["parallel_tool_calls"] is False
    assert chat["response_format"]["json_schema"]["name"] == "City_of_note"
    assert chat["response_format"]["json_schema"]["strict"] is True
    local = await preview("chat", history, name="local", controls=Controls(output_tokens=99))
    assert local["max_tokens"] == 99
    body = await preview("responses", history, invokers=invokers, controls=controls)
    assert body["max_output_tokens"] == 99
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert body["text"]["format"]["type"] == "json_schema"
    assert body["tools"][0]["strict"] is False
    for interface in ("chat", "responses"):
        model = await produce_openai_model(interface, fake_openai.url)
        await model.converse(history, invokers, controls)
        named = Controls(tool_choice="weather")
        await model.converse(history, invokers, named)
        with pytest.raises(ControlInvalid, match="clock"):
            await model.converse(history, invokers, Controls(tool_choice="clock"))
        await model.converse(history, (), Controls(tool_choice="none", parallel_invocations=True))
        await model.client.close()
    assert fake_openai.refusals == []
