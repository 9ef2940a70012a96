"""Whether there is room: an estimate from behind, and a count only near the limit.

How turns refuse what is too long is tested with them, in `test_turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.models import endless
from vibe_llms.base.exceptions import ContextOverflow
from vibe_llms.conversations import context_window
from vibe_llms.conversations.context_window import (
    SizeMeter,
    TokenMeter,
    check_context_window,
    estimate_tokens,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Ending,
    InvocationCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import TokenCount, refuse_loading


def test_the_last_reply_counts_for_all_before_it() -> None:
    ending = Ending("finished", Usage(uncached_input_tokens=100, output_tokens=7))
    reply = AssistantCanister.from_text("x" * 900)
    counted = AssistantCanister(contents=reply.contents, ending=ending)
    said: list[Canister] = [UserCanister.from_text("y" * 9000), counted]
    assert estimate_tokens(reversed([*said, UserCanister.from_text("z" * 30)])) == 107 + 10
    assert estimate_tokens(reversed([said[0], reply])) == 3000 + 300


def test_calls_references_and_pictures_are_estimated_too() -> None:
    call = InvocationCanister(name="look", arguments='{"a":"' + "x" * 52 + '"}')
    long = UserCanister(
        (TextualContent(Reference("a" * 64, 3000)), ImageContent(b"x", "image/png"))
    )
    assert estimate_tokens([call]) == 20
    assert estimate_tokens([long]) == 1000 + 1600


@pytest.mark.parametrize(("length", "counted"), [(30, 0), (3000, 1)])
async def test_the_model_counts_only_near_its_limit(length: int, counted: int) -> None:
    asked: list[int] = []

    async def count(canisters: Sequence[Canister], *_: object) -> TokenCount:
        asked.append(len(canisters))
        return TokenCount(2000, estimated=False)

    model = endless()
    model.attributes = ModelAttributes(context_tokens=1000)
    model.count_tokens = count  # type: ignore[method-assign, assignment]
    said = [UserCanister.from_text("x" * length)]
    if counted:
        with pytest.raises(ContextOverflow, match="2000 tokens, but script accepts 1000") as caught:
            await check_context_window(
                model, said, said, (), refuse_loading, model.attributes.context_tokens
            )
        assert (caught.value.tokens, caught.value.limit) == (2000, 1000)
    else:
        await check_context_window(
            model, said, said, (), refuse_loading, model.attributes.context_tokens
        )
    assert asked == [2] * counted


class Limited:
    """A model whose provider takes so many bytes."""

    def __init__(self, limit: int) -> None:
        self.attributes = ModelAttributes(request_bytes=limit)


def check_meter(model: Any) -> None:
    """A history is measured as it grows, and anew where it was cut or replaced."""
    meter = SizeMeter()
    history = [UserCanister.from_text("x" * 10) for _ in range(4)]
    said = [UserCanister.from_text("y" * 10)]
    assert not meter.is_near_size(model, history, said)
    history += [UserCanister.from_text("x" * 10)]
    assert meter.is_near_size(model, history, said)
    assert not meter.is_near_size(model, history[:-1], said)
    other = [UserCanister.from_text("z" * 60)]
    assert meter.is_near_size(model, other, ())
    assert not meter.is_near_size(model, [UserCanister.from_text("z")], said)
    assert not meter.is_near_size(model, [], said)


def test_a_growing_history_is_measured_once() -> None:
    check_meter(Limited(110))


def test_measuring_only_what_is_new_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = SizeMeter._measure

    def forget_to_compare(self: SizeMeter, history: Sequence[Canister]) -> int:
        self._last = history[self._count - 1] if 0 < self._count <= len(history) else self._last
        return measure(self, history)

    monkeypatch.setattr(SizeMeter, "_measure", forget_to_compare)
    with pytest.raises(AssertionError):
        check_meter(Limited(110))


def test_a_meter_of_tokens_returns_the_estimate_of_the_whole_history() -> None:
    """Also where replies have no usage, and after a digest has replaced the messages."""
    used = Ending("finished", Usage(uncached_input_tokens=300, output_tokens=7))
    history: list[Canister] = []
    meter = TokenMeter()
    said = [UserCanister.from_text("y" * 30)]
    for number in range(12):
        history.append(UserCanister.from_text("x" * 30 * number))
        ending = used if number % 4 == 2 else None
        history.append(AssistantCanister((TextualContent("z" * 60),), ending=ending))
        whole = estimate_tokens(reversed([*history, *said]))
        assert meter.estimate(history, said) == whole
        assert meter.estimate(history, said) == whole
    shorter = [UserCanister.from_text("summary"), *history[-3:]]
    assert meter.estimate(shorter, ()) == estimate_tokens(reversed(shorter))
    assert meter.estimate([], said) == 10


def test_a_meter_of_tokens_measures_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Canister] = []

    def measure(canister: Canister) -> int:
        measured.append(canister)
        return 1

    monkeypatch.setattr(context_window, "measure_tokens", measure)
    meter = TokenMeter()
    history: list[Canister] = [UserCanister.from_text("x") for _ in range(50)]
    meter.estimate(history, ())
    for _ in range(10):
        history.append(UserCanister.from_text("x"))
        meter.estimate(history, ())
    assert len(measured) == 60
