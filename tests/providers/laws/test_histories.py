"""T10: a backend takes whatever a history holds, and nothing of it is left out in silence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec
import pytest

from tests.fakes.backends import Interface
from tests.fakes.canisters import produce_canisters
from tests.fakes.embedded import LLAMACPP
from tests.fakes.interfaces import (
    ANTHROPIC,
    BEDROCK,
    CHAT,
    GEMINI,
    OLLAMA,
    RESPONSES,
    SHOUT,
    RecordedInterface,
    every,
)
from vibe_llms.base.exceptions import ContentUnsupported, ContextOverflow, RequestRefused
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    Provenance,
    ResultCanister,
    StopReason,
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
    MediaContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
    Upload,
    VideoContent,
    repair_text,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.anthropic import history as anthropic_history
from vibe_llms.providers.anthropic import messages as anthropic_messages
from vibe_llms.providers.anthropic.model import AnthropicModel
from vibe_llms.providers.conversions import Conversion, name_content
from vibe_llms.providers.gemini import history as gemini_history
from vibe_llms.providers.gemini import messages as gemini_messages
from vibe_llms.providers.histories import WireHistory
from vibe_llms.providers.interfaces import Model, TurnContext
from vibe_llms.providers.ollama import history as ollama_history

SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
CONTROLS = (
    Controls(),
    Controls(effort="high"),
    Controls(reasoning_tokens=2048),
    Controls(tool_choice="any", parallel_invocations=False),
    Controls(response_schema=SCHEMA),
    Controls(stop=("\n",), output_tokens=4000),
)
HI = UserCanister.from_text("Hi")
#: Those that encode what a model of their own can take; the example plugin mends no histories.
every_careful = every(lambda one: one.checks)
every_mending = every(lambda one: one.checks and one is not SHOUT)


def weather(city: str) -> str:
    """Forecast."""
    return city


WEATHER = Invoker.from_function(weather)


async def load_any(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """Bytes for any reference, half of them no text."""
    return {
        one.hash: b"kept text" if int(one.hash[-1], 16) % 2 else b"\xff\xfe" for one in references
    }


def produce_history(seed: int) -> list[Canister]:
    """A random history in which some results answer calls, late, twice, or never."""
    chance = random.Random(seed)
    said: list[Canister] = []
    calls: list[str] = []
    for canister in produce_canisters(seed, chance.randrange(1, 14)):
        change: dict[str, str] = {}
        if isinstance(canister, InvocationCanister):
            change = {"reply": chance.choice(["", "r", "s"])}
            change["call"] = chance.choice(["call_f", canister.call, ""])
            calls.append(canister.identity)
        elif isinstance(canister, ResultCanister) and calls and chance.random() < 0.8:
            change = {"invocation": chance.choice(calls)}
        said.append(msgspec.structs.replace(canister, **change))
    return said


def recall_reply(interface: Interface, seed: int) -> list[Canister]:
    """The history with a reply of the model's own in it, perhaps without its end."""
    chance = random.Random(seed)
    said = produce_history(seed)
    if isinstance(interface, RecordedInterface):
        reply = interface.recordings.whole(chance.choice(interface.recordings.names))[0]
        place = chance.randrange(len(said) + 1)
        said[place:place] = reply[: chance.randrange(len(reply) + 1)]
    return said


async def check_histories(interface: Interface, seeds: int, *, tools: str = "native") -> None:
    """The strict backend takes so many histories, and no word of them is lost."""
    with interface.serve() as backend:
        accepts = {"accepts": ["image", "image/png"]} if interface is OLLAMA else {}
        model = await interface.produce_model(backend, models={".*": {"tools": tools, **accepts}})
        if isinstance(interface, RecordedInterface):
            for name in interface.recordings.names:
                interface.remember(backend, interface.recordings.events(name))
        try:
            for seed in range(seeds):
                said = recall_reply(interface, seed)
                defaults = CONTROLS[seed % len(CONTROLS)]
                offered = (WEATHER,) if seed % 3 else ()
                context = TurnContext(load=load_any, default_controls=defaults)
                try:
                    body = await model.preview(said, offered, Controls(), context)
                    reply = await model.converse(said, offered, Controls(), context)
                except ContextOverflow:
                    continue
                sent = "".join(_texts(json.loads(body)))
                for word in _words(said):
                    assert word in sent, (seed, word)
                assert reply[-1].text == "Hello.", seed
                assert not backend.refusals, seed
                backend.requests.clear()
        finally:
            await model.client.close()


def _words(said: Sequence[Canister]) -> Iterator[str]:
    """Every text of a history, as it is sent."""
    for canister in said:
        for content in () if isinstance(canister, UnknownCanister) else canister.contents:
            data = content.data if isinstance(content, TextualContent) else ""
            if isinstance(data, str) and data.strip():
                yield repair_text(data)


@pytest.mark.storm
@pytest.mark.parametrize("tools", ["native", "contract"])
@every_mending
async def test_any_history_is_accepted_and_no_word_of_it_is_lost(
    interface: Interface, tools: str, rounds: Callable[[int, int], int]
) -> None:
    await check_histories(interface, rounds(20, 5_000), tools=tools)


@pytest.mark.storm
@every(lambda one: one.caches)
async def test_a_history_that_grows_is_sent_as_one_that_is_encoded_at_once(
    interface: Interface, rounds: Callable[[int, int], int]
) -> None:
    with interface.serve() as backend:
        model = await interface.produce_model(backend)
        for seed in range(rounds(15, 500)):
            said = produce_history(seed)
            cache = model.produce_cache()
            for end in sorted(random.Random(seed).sample(range(1, 15), 5)):
                sent = [
                    await preview_or_refuse(model, said[:end], TurnContext(load=load_any, **one))
                    for one in ({"cache": cache}, {})
                ]
                assert sent[0] == sent[1], (seed, end)


async def preview_or_refuse(model: Model, said: Sequence[Canister], context: TurnContext) -> object:
    """The body of a request, or why the history is too long."""
    try:
        return await model.preview(said, (), Controls(), context)
    except ContextOverflow as error:
        return str(error)


@every_mending
async def test_a_blank_file_without_a_name_is_accepted(interface: Interface) -> None:
    document = DocumentCanister((FileContent(b"\n", "text/plain"),))
    _, notices = await send(interface, document, HI)
    assert notices == []


async def send(interface: Interface, *said: Canister) -> tuple[str, list[str]]:
    """The texts of a request that the backend takes, and what notices say of its history."""
    notices: list[Notice] = []
    context = TurnContext(notify=notices.append, load=load_any)
    with interface.serve() as backend:
        model = await interface.produce_model(backend)
        body = await model.preview([HI, *said, HI], (), Controls(), context)
        await model.converse([HI, *said, HI], context=TurnContext(load=load_any))
        assert not backend.refusals
        await model.client.close()
    address = f"{model.provider}/{model.name}"
    assert {notice.subject for notice in notices} <= {"conversion"}
    assert all(notice.text.endswith(f" for {address}") for notice in notices)
    return "\n".join(_texts(json.loads(body))), [one.text for one in notices]


def _texts(value: Any) -> Iterator[str]:
    """Every text in JSON, but for signatures, which part the words of Gemini's replies."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item) if name != "thoughtSignature" else ()


UNSUPPORTED: Sequence[MediaContent] = (
    ImageContent(b"x", "image/tiff"),
    ImageContent(b"", "image/png"),
    ImageContent(Location("file:///etc/passwd")),
    ImageContent(Upload("file_1", "elsewhere")),
    AudioContent(b"x", "audio/midi"),
    VideoContent(Location("https://example.org/a.ogv")),
    FileContent(b"x", "application/zip", "a.zip"),
    FileContent(b"x", name="\ud800"),
    FileContent(Location("https://example.org/a.zip"), "application/zip"),
    FileContent(Upload("file_1", "elsewhere"), "application/pdf"),
)


@pytest.mark.parametrize("content", UNSUPPORTED, ids=lambda one: ascii(name_content(one)))
@every_careful
async def test_what_a_model_cannot_take_is_refused_now_and_described_later(
    interface: Interface, content: MediaContent
) -> None:
    said = UserCanister((content,))
    with interface.serve() as backend:
        model = await interface.produce_model(backend)
        fresh = TurnContext(fresh=frozenset([said.identity]))
        with pytest.raises(ContentUnsupported, match=f"{model.name} does not accept a"):
            model.check([said], Controls())
        with pytest.raises(ContentUnsupported):
            await model.preview([said], (), Controls(), fresh)
    for canister in (said, AssistantCanister((content,))):
        sent, (notice,) = await send(interface, canister)
        assert f"[{name_content(content)}, not shown to this model]" in sent
        assert "is described in text" in notice


SECRET = "zugzwang"
WELL = TextualContent("Well.")
#: What a model is like that is another one: in one respect, or in all.
FOREIGN: Mapping[str, Mapping[str, str]] = {
    "module": {"module": "elsewhere"},
    "row": {"row": "gateway"},
    "model": {"model": "other"},
}


@pytest.mark.parametrize("foreign", FOREIGN)
@every_mending
async def test_what_only_another_model_understands_is_left_out_with_a_notice(
    interface: Interface, foreign: str
) -> None:
    with interface.serve() as backend:
        model = await interface.produce_model(backend)
    own = {"module": interface.module, "row": model.provider, "model": model.name}
    issuer = {**own, **FOREIGN[foreign]}
    native = NativePayload(
        Issuer(**issuer), msgspec.Raw(b'{"signature":"zugzwang","type":"zugzwang"}')
    )
    contents: Sequence[tuple[Content, str]] = (
        (ReasoningContent(SECRET), "reasoning"),
        (ReasoningContent(SECRET, native=native), "reasoning"),
        (NativeContent(label="odd", native=native), "'odd'"),
    )
    for content, words in contents:
        reply = AssistantCanister((content, WELL), provenance=Provenance(**issuer))
        sent, (notice,) = await send(interface, reply)
        assert SECRET not in sent
        assert "Well." in sent
        assert words in notice
        assert "is left out" in notice
        sent, (notice,) = await send(interface, UserCanister((content, WELL)))
        assert SECRET not in sent
        assert "a part that only a model's own reply can contain is left out" in notice
    call = InvocationCanister(name="look", native=native)
    result = ResultCanister((WELL,), invocation=call.identity)
    sent, (notice,) = await send(interface, call, result)
    assert SECRET not in sent
    assert "another model's additions to a call is left out" in notice


@every_mending
async def test_a_call_without_a_result_gets_one_that_says_so(interface: Interface) -> None:
    sent, notices = await send(interface, InvocationCanister(name="a", arguments='{"cut":'))
    assert INTERRUPTED in sent
    assert "cut" in sent
    assert notices == []


@every_mending
async def test_a_result_that_answers_no_call_is_sent_in_words(interface: Interface) -> None:
    result = ResultCanister((TextualContent("noon"),), invocation="unknown")
    sent, _ = await send(interface, result)
    assert "A tool returned:" in sent
    assert "noon" in sent


@every_careful
async def test_contents_and_roles_of_newer_kinds_are_mentioned(interface: Interface) -> None:
    unknown = UnknownContent(label="hologram", source=msgspec.Raw(b'{"kind":"hologram"}'))
    sent, (notice,) = await send(interface, UserCanister((unknown,)))
    assert "[a content of kind 'hologram', not shown to this model]" in sent
    assert "is described in text" in notice
    if interface is not SHOUT:
        _, (notice,) = await send(interface, UnknownCanister(label="critic"))
        assert "a message of the unknown role 'critic' is left out" in notice


@every_careful
async def test_text_that_is_kept_elsewhere_is_sent_in_full(interface: Interface) -> None:
    texts = (Reference("0" * 63 + "1", 9), Reference("0" * 64, 2))
    for kind in (UserCanister, SupervisorCanister, AssistantCanister):
        sent, notices = await send(interface, kind(tuple(map(TextualContent, texts))))
        assert "kept text" in sent
        assert "\ufffd" in sent
        assert notices == []


# Bugs that these would find.


def share_identities(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WireHistory, "is_free", lambda self, call: True)


def leave_calls_unanswered(patch: pytest.MonkeyPatch) -> None:
    add = WireHistory.add_reply

    def add_carelessly(self: Any, canister: Any, piece: Any, call: str) -> None:
        add(self, canister, piece, call)
        self.open.calls.clear()

    patch.setattr(WireHistory, "add_reply", add_carelessly)


def take_any_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WireHistory, "_find_call", lambda self, result: result.invocation)


def forget_what_was_interrupted(patch: pytest.MonkeyPatch) -> None:
    def results(self: Any, exchange: Any) -> list[Any]:
        return [answer.blocks[0] for answer in exchange.answers.values()]

    patch.setattr(anthropic_history.AnthropicHistory, "results", results)


def end_with_thinking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(anthropic_history._Spoken, "finish", lambda self, *, last: list(self.blocks))


def send_what_others_signed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Conversion, "issued", lambda self, native: native is not None)


def continue_what_others_paused(patch: pytest.MonkeyPatch) -> None:
    def has_paused(self: Any, canister: Any) -> bool:
        return canister.ending is not None and canister.ending.reason == StopReason.PAUSED

    patch.setattr(anthropic_messages._Work, "has_paused", has_paused)


def always_cite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AnthropicModel, "_decide_citing", lambda *arguments: True)


def lose_a_word(patch: pytest.MonkeyPatch) -> None:
    unpair = WireHistory.unpair

    def unpair_carelessly(self: Any, canister: Any) -> UserCanister:
        worded = unpair(self, canister)
        return msgspec.structs.replace(worded, contents=worded.contents[:-1])

    patch.setattr(WireHistory, "unpair", unpair_carelessly)


def send_blank_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ollama_history._Message, "blank", property(lambda self: False))


def send_unsigned_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gemini_history, "UNSIGNED", b'"thought":false')


def move_signatures(patch: pytest.MonkeyPatch) -> None:
    split = gemini_messages._split

    def split_carelessly(text: str, signed: Any, **options: Any) -> Any:
        spans = signed.signatures if signed is not None else []
        joined = [(0, len(text), spans[-1][2])] if spans else []
        kept = gemini_messages._Signed(joined) if spans else None
        return split(text, kept, **options)

    patch.setattr(gemini_messages, "_split", split_carelessly)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interface", "bug"),
    [
        *product((ANTHROPIC, RESPONSES, CHAT, OLLAMA, BEDROCK), (share_identities,)),
        *product((ANTHROPIC, RESPONSES, CHAT, BEDROCK, GEMINI), (leave_calls_unanswered,)),
        *product((OLLAMA, LLAMACPP), (take_any_result,)),
        *product((ANTHROPIC, CHAT, RESPONSES, OLLAMA, BEDROCK, GEMINI), (lose_a_word,)),
        (ANTHROPIC, forget_what_was_interrupted),
        (ANTHROPIC, end_with_thinking),
        *product((ANTHROPIC, BEDROCK), (send_what_others_signed,)),
        (ANTHROPIC, continue_what_others_paused),
        (ANTHROPIC, always_cite),
        (OLLAMA, send_blank_messages),
        (GEMINI, send_unsigned_calls),
        (GEMINI, move_signatures),
    ],
    ids=lambda one: one.name if isinstance(one, Interface) else one.__name__,
)
async def test_a_history_that_is_not_mended_would_be_detected(
    interface: Interface,
    bug: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, RequestRefused)):
        await check_histories(interface, 200)
