"""T10: a backend takes whatever a history holds, and nothing of it is left out in silence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from tests.fakes.backends import Interface
from tests.fakes.canisters import produce_canisters
from tests.fakes.interfaces import SHOUT, every
from vibe_llms.controls import Controls
from vibe_llms.events import Notice
from vibe_llms.exceptions import ContentUnsupported, ProviderError
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
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
    MediaContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
    Upload,
    VideoContent,
)
from vibe_llms.providers.conversions import name_content
from vibe_llms.providers.interfaces import TurnContext

HI = UserCanister.from_text("Hi")
#: Those that encode what a model of their own can take; the example plugin mends no histories.
every_careful = every(lambda one: one.checks)
every_mending = every(lambda one: one.checks and one is not SHOUT)


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
            change["call"] = chance.choice(["call_0", canister.call, ""])
            calls.append(canister.identity)
        elif isinstance(canister, ResultCanister) and calls and chance.random() < 0.8:
            change = {"invocation": chance.choice(calls)}
        said.append(msgspec.structs.replace(canister, **change))
    return said


async def check_histories(
    interface: Interface, seeds: int, *, tools: str = "native", begin: int = 0
) -> None:
    """The strict backend takes so many histories, for a model with these calls."""
    with interface.serve() as backend:
        model = await interface.produce_model(backend, models={".*": {"tools": tools}})
        for seed in range(begin, begin + seeds):
            try:
                reply = await model.converse(
                    produce_history(seed), context=TurnContext(load=load_any)
                )
            except ProviderError as error:
                raise AssertionError(f"{seed}: {error}") from error
            assert reply[-1].text == "Hello."
            backend.requests.clear()
        assert not backend.refusals
        await model.client.close()


@pytest.mark.storm
@pytest.mark.parametrize("tools", ["native", "contract"])
@every_mending
async def test_any_history_is_accepted(
    interface: Interface, tools: str, rounds: Callable[[int, int], int]
) -> None:
    await check_histories(interface, rounds(40, 3_000), tools=tools)


@pytest.mark.storm
@every(lambda one: one.caches)
async def test_a_history_that_grows_is_sent_as_one_that_is_encoded_at_once(
    interface: Interface, rounds: Callable[[int, int], int]
) -> None:
    with interface.serve() as backend:
        model = await interface.produce_model(backend)
        for seed in range(rounds(30, 500)):
            said = produce_history(seed)
            cache = model.produce_cache()
            for end in sorted(random.Random(seed).sample(range(1, 15), 5)):
                sent = [
                    await model.preview(
                        said[:end], (), Controls(), TurnContext(load=load_any, **one)
                    )
                    for one in ({"cache": cache}, {})
                ]
                assert sent[0] == sent[1], (seed, end)


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
    """Every text in JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


UNSUPPORTED: Sequence[MediaContent] = (
    ImageContent(b"x", "image/tiff"),
    ImageContent(b"", "image/png"),
    ImageContent(Location("file:///etc/passwd")),
    ImageContent(Upload("file_1", "elsewhere")),
    AudioContent(b"x", "audio/ogg"),
    VideoContent(Location("https://example.org/a.mp4")),
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
        with pytest.raises(ContentUnsupported, match=f"{model.name} cannot take a"):
            model.check([said], Controls())
        with pytest.raises(ContentUnsupported):
            await model.preview([said], (), Controls(), fresh)
    for canister in (said, AssistantCanister((content,))):
        sent, (notice,) = await send(interface, canister)
        assert f"[{name_content(content)}, not shown to this model]" in sent
        assert "is described in words" in notice


SECRET = "zugzwang"
OTHER = Issuer("elsewhere.module", "elsewhere", "other")
NATIVE = NativePayload(OTHER, msgspec.Raw(b'{"signature":"zugzwang","type":"zugzwang"}'))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (ReasoningContent(SECRET), "reasoning"),
        (ReasoningContent(SECRET, native=NATIVE), "reasoning"),
        (NativeContent(label="odd", native=NATIVE), "'odd'"),
    ],
    ids=["thought", "signed", "native"],
)
@every_mending
async def test_what_only_another_model_understands_is_left_out_with_a_notice(
    interface: Interface, content: Content, told: str
) -> None:
    made_by = Provenance(OTHER.module, OTHER.row, OTHER.model)
    reply = AssistantCanister((content, TextualContent("Well.")), provenance=made_by)
    sent, (notice,) = await send(interface, reply)
    assert SECRET not in sent
    assert "Well." in sent
    assert told in notice
    assert "is left out" in notice
    sent, (notice,) = await send(interface, UserCanister((content, TextualContent("Well."))))
    assert SECRET not in sent
    assert "a part that only a model's own reply can hold is left out" in notice


@every_mending
async def test_what_another_model_signed_of_a_call_is_left_out_with_a_notice(
    interface: Interface,
) -> None:
    call = InvocationCanister(name="look", native=NATIVE)
    result = ResultCanister((TextualContent("up"),), invocation=call.identity)
    sent, (notice,) = await send(interface, call, result)
    assert SECRET not in sent
    assert "what another model told of a call besides its arguments is left out" in notice


@every_mending
async def test_a_call_without_a_result_gets_one_that_says_so(interface: Interface) -> None:
    sent, notices = await send(interface, InvocationCanister(name="a", arguments='{"cut":'))
    assert INTERRUPTED in sent
    assert "cut" in sent
    assert notices == []


@every_careful
async def test_contents_and_roles_of_newer_kinds_are_told_of(interface: Interface) -> None:
    unknown = UnknownContent(label="hologram", source=msgspec.Raw(b'{"kind":"hologram"}'))
    sent, (notice,) = await send(interface, UserCanister((unknown,)))
    assert "[a content of kind 'hologram', not shown to this model]" in sent
    assert "is described in words" in notice
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
