"""Whatever a history holds, the strict server takes it, and nothing is dropped in silence."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.canisters import produce_canisters
from tests.fakes.ollama import FakeModel, FakeOllama, read_request
from tests.fakes.ollama_clients import produce_client, produce_model
from tests.fakes.recordings import OLLAMA
from tests.fakes.strict import Refused
from vibe_llms.controls import Controls
from vibe_llms.events import Notice
from vibe_llms.exceptions import ContentUnsupported, RequestTooLarge
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Issuer,
    Location,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    Upload,
)
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.ollama import history as framing
from vibe_llms.providers.ollama.messages import MODULE
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


@pytest.mark.storm
@pytest.mark.parametrize("tools", ["native", "contract"])
async def test_any_canisters_become_a_request_that_is_accepted(
    tools: str, rounds: Callable[[int, int], int]
) -> None:
    model = await produce_model(models={".*": {"tools": tools, **VISION[".*"]}}, num_ctx=0)
    for seed in range(rounds(150, 3000)):
        chance = random.Random(seed)
        said = list(produce_canisters(seed, chance.randrange(12)))
        await encode(model, pair_some(said, chance))


def pair_some(said: Sequence[Canister], chance: random.Random) -> list[Canister]:
    """Results that belong to a call now and then, and replies of several canisters."""
    calls: list[str] = []
    paired: list[Canister] = []
    for canister in said:
        change: dict[str, str] = {}
        if isinstance(canister, InvocationCanister):
            change = {"reply": chance.choice(["", "r", "s"])}
            calls.append(canister.identity)
        elif isinstance(canister, ResultCanister) and calls and chance.random() < 0.8:
            change = {"invocation": chance.choice(calls)}
        paired.append(msgspec.structs.replace(canister, **change))
    return paired


TEXTS = st.sampled_from(["", " ", "words", "a\ud83d", "\ud83d\ude00", "\u2028", 'q"\\'])
KINDS = st.sampled_from(["user", "assistant", "thought", "call", "result", "system", "picture"])


def build(steps: Sequence[tuple[str, str]]) -> list[Canister]:
    said: list[Canister] = []
    calls: list[InvocationCanister] = []
    for kind, text in steps:
        match kind:
            case "user":
                said.append(UserCanister.from_text(text))
            case "assistant":
                said.append(AssistantCanister.from_text(text))
            case "thought":
                said.append(
                    AssistantCanister((ReasoningContent(text),), provenance=OLLAMA.provenance)
                )
            case "call":
                calls.append(InvocationCanister(name=text or "t", call=text, reply="r"))
                said.append(calls[-1])
            case "result":
                identity = calls.pop(0).identity if calls else "unknown"
                said.append(ResultCanister((TextualContent(text),), invocation=identity))
            case "system":
                said.append(SupervisorCanister.from_text(text))
            case _:
                said.append(UserCanister((ImageContent(PNG, "image/png"), TextualContent(text))))
    return said


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(KINDS, TEXTS), max_size=12))
async def test_any_order_of_roles_is_mended(steps: Sequence[tuple[str, str]]) -> None:
    model = await produce_model(models=VISION, num_ctx=0)
    await encode(model, build(steps))


async def check_histories() -> None:
    model = await produce_model(models=VISION, num_ctx=0)
    for seed in range(100):
        await encode(model, pair_some(list(produce_canisters(seed, 8)), random.Random(seed)))


@pytest.mark.parametrize("bug", ["identities", "roles", "calls"])
async def test_a_history_that_is_not_mended_would_be_detected(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match bug:
        case "identities":
            monkeypatch.setattr(framing.OllamaHistory, "is_free", lambda self, call: True)
        case "roles":
            monkeypatch.setattr(framing._Message, "blank", property(lambda self: False))
        case _:
            # Results as they land, and none where there is none.
            nothing = framing._Message("user", [b"(nothing)"])
            monkeypatch.setattr(framing, "_answer", lambda made, call, piece: nothing)
    with pytest.raises(AssertionError):
        await check_histories()


@pytest.mark.storm
async def test_a_history_that_grows_is_the_same_as_one_that_is_encoded_at_once(
    rounds: Callable[[int, int], int],
) -> None:
    model = await produce_model(models=VISION, num_ctx=0)
    for seed in range(rounds(40, 500)):
        chance = random.Random(seed)
        said = pair_some(list(produce_canisters(seed, 14)), chance)
        cache = model.produce_cache()
        for end in sorted(chance.sample(range(1, 15), 5)):
            grown, _ = await encode(model, said[:end], cache=cache)
            fresh, _ = await encode(model, said[:end])
            assert grown == fresh, (seed, end)


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


async def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    model = await produce_model()
    said: list[Canister] = [
        UserCanister.from_text("Go"),
        InvocationCanister(name="a", arguments='{"cut":'),
        UserCanister.from_text("And?"),
    ]
    request, _ = await encode(model, said)
    assert "its outcome is unknown" in request["messages"][2]["content"]
    assert request["messages"][1]["tool_calls"][0]["function"]["arguments"] == {
        "arguments": '{"cut":'
    }
    assert request["messages"][3] == {"role": "user", "content": "And?"}


async def test_what_another_model_thought_or_signed_is_left_out_with_a_notice() -> None:
    model = await produce_model()
    other = Provenance(MODULE, "ollama", "other")
    native = NativePayload(Issuer(MODULE, "ollama", "other"), msgspec.Raw(b'{"signature":"S"}'))
    call = InvocationCanister(name="a", native=native)
    said: list[Canister] = [
        UserCanister.from_text("Go"),
        AssistantCanister(
            (ReasoningContent("secret"), NativeContent(native=native, label="odd")),
            provenance=other,
        ),
        call,
        ResultCanister((), invocation=call.identity),
    ]
    request, notices = await encode(model, said)
    assert "secret" not in json.dumps(request)
    assert "signature" not in json.dumps(request)
    assert [notice.text.partition(" is left out")[0] for notice in notices] == [
        "the reasoning of another model",
        "a block 'odd' that only its model understands",
        "what another model added to a call",
    ]
    assert request["messages"][-1]["content"] == "(It returned nothing.)"


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


UNSUPPORTED: Sequence[tuple[Content, str]] = [
    (AudioContent(b"x", "audio/wav"), "a sound audio/wav"),
    (FileContent(b"x", "application/pdf", "a.pdf"), "a file 'a.pdf' application/pdf"),
    (ImageContent(b"x", "image/tiff"), "an image image/tiff"),
    (ImageContent(b"", "image/png"), "without any bytes"),
    (ImageContent(Location("https://example.org/a.png"), "image/png"), "give its bytes"),
    (ImageContent(Upload("f", "claude")), "uploaded to 'claude'"),
]


@pytest.mark.parametrize(("content", "words"), UNSUPPORTED)
async def test_what_cannot_be_sent_is_an_error_now_and_words_later(
    content: Content, words: str
) -> None:
    model = await produce_model(models=VISION)
    said = UserCanister((content, TextualContent("What is it?")))
    with pytest.raises(ContentUnsupported, match=words):
        model.check([said], Controls())
    with pytest.raises(ContentUnsupported, match=words):
        await encode(model, [said], fresh=frozenset({said.identity}))
    request, notices = await encode(model, [said])
    assert "not shown to this model]" in request["messages"][0]["content"]
    assert [words in notice.text for notice in notices] == [True]


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


async def test_lone_surrogates_are_mended_on_the_way_out() -> None:
    client = produce_client()
    model = await client.access_model("qwen3:8b")
    bad = "a\ud83d"
    call = InvocationCanister(name=bad, arguments='{"a": "\ud83d"}', call=bad)
    said: list[Canister] = [
        SupervisorCanister.from_text(bad),
        UserCanister.from_text(bad),
        AssistantCanister(
            (ReasoningContent(bad), TextualContent(bad)), provenance=OLLAMA.provenance
        ),
        call,
        ResultCanister((TextualContent(bad),), invocation=call.identity),
        DocumentCanister((FileContent(b"x", "application/\ud83d", bad),), title=bad),
    ]
    request, _ = await encode(model, said)
    assert json.dumps(request, ensure_ascii=False).encode().count("\ufffd".encode()) > 6
