"""Telemetry that fails: its errors are logged, and the turn goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import pytest

from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.events import Event, EventHandler, MessageProgressEvent
from vibe_llms.messages.tracing import Span, Tracer, guard
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, ScriptedReply, scripted_model

PLACES = ("make", "enter", "exit", "watch", "read", "record")
REPLY = ScriptedReply(parts=(Part(text=("Yes, ", "of course.")),), when=".")


class Failing(Tracer):
    """Fails in one place of every span, or in all of them."""

    def __init__(self, *places: str) -> None:
        self.places = places
        self.events: list[Event] = []

    def fail(self, place: str) -> None:
        if place in self.places:
            raise ValueError(place)

    def turn(self, requested: object) -> Span:
        self.fail("make")
        return FailingSpan(self)

    def request(self, requested: object) -> Span:
        return self.turn(requested)

    def attempt(self, number: int) -> Span:
        return self.turn(number)

    def write_parent(self) -> Mapping[str, str]:
        self.fail("make")
        return {}

    def continuing(self, parent: Mapping[str, str]) -> AbstractContextManager[None]:
        self.fail("make")
        return super().continuing(parent)

    async def close(self) -> None:
        self.fail("exit")


class FailingSpan(Span):
    def __init__(self, tracer: Failing) -> None:
        self._tracer = tracer

    def __enter__(self) -> Self:
        self._tracer.fail("enter")
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.fail("exit")

    def watch(self, handler: EventHandler) -> EventHandler:
        self._tracer.fail("watch")

        def read(event: Event) -> None:
            self._tracer.events.append(event)
            self._tracer.fail("read")
            handler(event)

        return read

    def record(self, canisters: Sequence[Canister]) -> None:
        self._tracer.fail("record")


@pytest.mark.parametrize("places", [*((place,) for place in PLACES), PLACES], ids="-".join)
async def test_no_error_of_telemetry_ends_a_turn(
    tmp_path: Path, places: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    tracer = Failing(*places)
    with caplog.at_level(logging.WARNING, "vibe_llms.messages.tracing"):
        async with open_session(
            home=tmp_path, tracer=tracer, event_handler=events.append
        ) as session:
            conversation = await session.begin(scripted_model(REPLY))
            for _ in range(2):
                turn = await conversation.converse("Well?")
                assert text_of(turn.canisters[-1].contents) == "Yes, of course."
    assert any(isinstance(one, MessageProgressEvent) for one in events)
    assert caplog.records
    told = [(one.getMessage(), type(one.exc_info[1])) for one in caplog.records if one.exc_info]
    assert len(told) == len({*told}), "the same failure is logged once"


async def test_an_error_of_the_event_handler_is_not_one_of_telemetry(tmp_path: Path) -> None:
    def handle(event: Event) -> None:
        if isinstance(event, MessageProgressEvent):
            raise LookupError("the program's own")

    async with open_session(home=tmp_path, tracer=Failing(), event_handler=handle) as session:
        conversation = await session.begin(scripted_model(["Yes."]))
        with pytest.raises(LookupError):
            await conversation.converse("Well?")


async def test_spans_get_no_pieces_of_text_and_a_plain_tracer_is_not_wrapped(
    tmp_path: Path,
) -> None:
    tracer = Failing()
    async with open_session(home=tmp_path, tracer=tracer) as session:
        await (await session.begin(scripted_model(["Yes."]))).converse("Well?")
    assert tracer.events
    assert not any(isinstance(one, MessageProgressEvent) for one in tracer.events)
    plain, guarded = Tracer(), guard(tracer)
    assert guard(plain) is plain
    assert guard(guarded) is guarded


def test_the_error_of_a_block_is_not_hidden() -> None:
    span: Any = guard(Failing("exit")).request(None)  # type: ignore[arg-type]
    with pytest.raises(KeyError), span:
        raise KeyError("ours")
