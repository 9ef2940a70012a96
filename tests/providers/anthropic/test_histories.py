"""Whatever the types allow becomes a request that the strict fake accepts, and loses no word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fakes.anthropic import Issued
from tests.fakes.clients import check_body, produce_model
from tests.fakes.histories import History, histories
from tests.fakes.strict import Refused
from vibe_llms.controls import Controls
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    StopReason,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import NativePayload, Reference, TextualContent, repair_text
from vibe_llms.providers import conversions
from vibe_llms.providers.anthropic import history as framing
from vibe_llms.providers.anthropic import messages
from vibe_llms.providers.anthropic.history import AnthropicHistory as Framed
from vibe_llms.providers.anthropic.model import AnthropicModel
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.pieces import Block, Fragment, append_member

NAMES = ("claude-opus-5", "claude-sonnet-4-5", "claude-fable-5", "unheard-of")
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """Bytes for whatever is asked for; their hash does not matter here."""
    return {one.hash: b"\xffa "[: max(one.size, 1)] for one in references}


def weather(city: str) -> str:
    """Tell the weather."""
    return city


WEATHER = Invoker.from_function(weather)
choices = st.sampled_from(
    [
        Controls(),
        Controls(effort="high"),
        Controls(reasoning_tokens=0),
        Controls(reasoning_tokens=2048),
        Controls(tool_choice="any", parallel_invocations=False),
        Controls(tool_choice="weather"),
        Controls(response_schema=SCHEMA),
        Controls(stop=("\n",), output_tokens=2000),
    ]
)


#: Histories, with controls, that random ones resemble rarely.
KNOWN: list[tuple[list[Canister], Controls]] = [
    ([UserCanister.from_text("a"), DocumentCanister.from_text("b")], Controls()),
    (
        [
            UserCanister.from_text("a"),
            AssistantCanister((TextualContent("b"),), ending=Ending(StopReason.PAUSED)),
        ],
        Controls(),
    ),
    (
        [DocumentCanister.from_text("a"), UserCanister.from_text("b")],
        Controls(response_schema=SCHEMA),
    ),
]


def run(check: Callable[..., Any], examples: int, *, size: int = 8, seeded: bool = False) -> None:
    """Check the known histories and random ones, each with a model, controls and perhaps a tool.

    Where a bug is seeded, the random histories are the same ones every time.
    """
    for canisters, controls in KNOWN:
        context = TurnContext(load=load, default_controls=controls)
        history = History(canisters, Issued())
        asyncio.run(_check(check, history, NAMES[0], (), context, "5m"))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate] if seeded else [Phase.generate, Phase.shrink],
        derandomize=seeded,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.data())
    def test(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        history = data.draw(histories(name, size=size))
        controls = data.draw(choices)
        tools = data.draw(st.sampled_from([(), (WEATHER,)]))
        cache = data.draw(st.sampled_from(["5m", "off"]))
        context = TurnContext(load=load, default_controls=controls)
        asyncio.run(_check(check, history, name, tools, context, cache))

    test()


async def _check(
    check: Callable[..., Any],
    history: History,
    name: str,
    tools: Sequence[Invoker],
    context: TurnContext,
    cache: str,
) -> None:
    model = await produce_model(name=name, cache=cache)
    await check(model, history, tools, context)


async def check_accepted(
    model: AnthropicModel, history: History, tools: Sequence[Invoker], context: TurnContext
) -> None:
    body = await model.preview(history.canisters, tools, Controls(), context)
    try:
        check_body(model, body, history.issued)
    except Refused as error:
        raise AssertionError(f"{error} in {body.decode()}") from error


async def check_cached(
    model: AnthropicModel, history: History, tools: Sequence[Invoker], context: TurnContext
) -> None:
    """Turn by turn through the cache the same bytes are sent as all at once."""
    kept = TurnContext(
        load=load, default_controls=context.default_controls, cache=model.produce_cache()
    )
    for end in range(len(history.canisters) + 1):
        canisters = history.canisters[:end]
        grown = await model.preview(canisters, tools, Controls(), kept)
        assert grown == await model.preview(canisters, tools, Controls(), context)


async def check_complete(
    model: AnthropicModel, history: History, tools: Sequence[Invoker], context: TurnContext
) -> None:
    """Every word that was said is somewhere in the request."""
    body = json.loads(await model.preview(history.canisters, tools, Controls(), context))
    sent = set(_walk(body))
    for canister in history.canisters:
        for text in _words(canister):
            assert text in sent, (canister, body)


def _words(canister: Canister) -> Iterator[str]:
    if isinstance(canister, InvocationCanister | UnknownCanister):
        return
    for content in canister.contents:
        data = content.data if isinstance(content, TextualContent) else ""
        if isinstance(data, str) and data.strip():
            yield repair_text(data)


def _walk(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _walk(item)
        case dict():
            for item in value.values():
                yield from _walk(item)


@pytest.mark.storm
def test_any_history_becomes_a_request_that_is_accepted(rounds: Callable[[int, int], int]) -> None:
    run(check_accepted, rounds(200, 20_000))


@pytest.mark.storm
def test_turns_added_one_by_one_give_the_bytes_of_all_at_once(
    rounds: Callable[[int, int], int],
) -> None:
    run(check_cached, rounds(60, 4_000))


@pytest.mark.storm
def test_no_word_of_a_history_is_lost(rounds: Callable[[int, int], int]) -> None:
    run(check_complete, rounds(70, 5_000))


@pytest.mark.storm
def test_long_histories_are_accepted_and_grow_as_they_are(
    rounds: Callable[[int, int], int],
) -> None:
    async def check(*arguments: Any) -> None:
        await check_accepted(*arguments)
        await check_cached(*arguments)

    run(check, rounds(10, 500), size=40)


# Bugs that the properties would find.


def forget_what_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(self: Any, exchange: Any) -> list[Block]:
        return [answer.blocks[0] for answer in exchange.answers.values()]

    monkeypatch.setattr(Framed, "results", results)


def end_with_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing._Spoken, "finish", lambda self, *, last: list(self.blocks))


def trust_identities_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Framed, "is_free", lambda self, call: True)


def send_what_others_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Any, native: NativePayload | None, decoder: Any) -> Any:
        try:
            return None if native is None else decoder.decode(native.data)
        except ValueError:
            return None

    monkeypatch.setattr(messages._Work, "read", read)


def send_lone_surrogates(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(value: object) -> bytes:
        return json.dumps(value, ensure_ascii=True, default=_inline).encode()

    def _inline(raw: Any) -> Any:
        return json.loads(bytes(raw))

    monkeypatch.setattr(messages, "encode_json", encode)
    monkeypatch.setattr(conversions, "repair_text", lambda text: text)
    monkeypatch.setattr(messages, "repair_text", lambda text: text)


def leave_roles_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def push(recent: list[Any], user: list[Block], system: list[Block]) -> None:
        recent.append(framing._Message("user", user))

    monkeypatch.setattr(framing, "_push_user", push)


def continue_what_others_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_paused(self: Any, canister: Any) -> bool:
        return canister.ending is not None and canister.ending.reason == StopReason.PAUSED

    monkeypatch.setattr(messages._Work, "has_paused", has_paused)


def always_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Framed, "forbids_thinking", False)


def always_cite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnthropicModel, "_decide_citing", lambda *arguments: True)


@pytest.mark.parametrize(
    "seed",
    [
        forget_what_was_interrupted,
        end_with_thinking,
        trust_identities_of_calls,
        send_what_others_signed,
        send_lone_surrogates,
        leave_roles_as_they_come,
        continue_what_others_paused,
        always_reason,
        always_cite,
    ],
)
def test_a_history_that_is_not_mended_would_be_detected(
    seed: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(monkeypatch)
    with pytest.raises(AssertionError):
        run(check_accepted, 5_000, seeded=True)


def test_a_cache_that_keeps_its_marks_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    put_together = Framed.messages

    def mark_for_good(self: Framed, mark: bytes) -> list[Fragment]:
        for message in self.recent[-1:]:
            message.blocks[-1] = append_member(message.blocks[-1], b'"cache_control":null')
        return put_together(self, mark)

    monkeypatch.setattr(Framed, "messages", mark_for_good)
    with pytest.raises(AssertionError):
        run(check_cached, 2_000, seeded=True)


def test_a_word_that_is_lost_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpair(self: Any, canister: Any) -> UserCanister:
        return UserCanister(canister.contents[1:])

    monkeypatch.setattr(Framed, "unpair", unpair)
    with pytest.raises(AssertionError):
        run(check_complete, 2_000, seeded=True)
