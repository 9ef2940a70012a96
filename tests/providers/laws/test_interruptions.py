"""T8: however a turn of parallel calls is interrupted, the strict backend takes the next one."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.backends import Interface
from tests.fakes.interfaces import ANTHROPIC, CHAT, RESPONSES, every_interface
from vibe_llms.base.exceptions import ProviderError, VibeLlmsError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.events import Event
from vibe_llms.providers.anthropic import history
from vibe_llms.providers.histories import WireHistory
from vibe_llms.session.core import Session
from vibe_llms.testing import check_events
from vibe_llms.testing.wires.anthropic_replies import (
    reply,
    text_block,
    text_reply,
    thinking_block,
    tool_block,
)

NAMES = ("first", "second", "third")
WAYS = ("cancel", "task", "raise", "crash")
PATIENCE_SECONDS = 60
_NEVER = 10**9


class Interruption(Exception):
    """What a handler raises to end a turn."""


def produce_reply(chance: random.Random) -> list[dict[str, Any]]:
    """Three calls at once, among text and thinking, in pieces of any size."""
    blocks = []
    if chance.random() < 0.7:
        blocks.append(thinking_block(0, "Let me ", "see.", signature=f"S{chance.random()}"))
    if chance.random() < 0.5:
        blocks.append(text_block(len(blocks), *chance.choices(["I ", "call. "], k=2)))
    for name in chance.sample(NAMES, 3):
        text = json.dumps({"number": chance.randrange(9)})
        cut = chance.randrange(len(text))
        index = len(blocks)
        call = f"toolu_{chance.randrange(10**9)}"
        blocks.append(tool_block(index, name, text[:cut], text[cut:], call=call))
        if chance.random() < 0.3:
            blocks.append(text_block(len(blocks), "And "))
    return reply(*blocks, stop_reason="tool_use")


def produce_calls(interface: Interface, chance: random.Random) -> Any:
    """Three calls at once, as an interface has them."""
    if interface is ANTHROPIC:
        return produce_reply(chance)
    names = chance.sample(NAMES, 3)
    return interface.tools(*((name, json.dumps({"number": chance.randrange(9)})) for name in names))


def produce_tools(chance: random.Random) -> list[Callable[..., Any]]:
    """Tools that return at once, late, not at all, or fail."""

    def produce(name: str, kind: str, steps: int) -> Callable[..., Any]:
        async def tool(number: int) -> str:
            for _ in range(steps):
                await asyncio.sleep(0)
            if kind == "fail":
                raise LookupError(f"no {number}")
            if kind == "late":
                await asyncio.sleep(0.002)
            return f"{name} {number}"

        tool.__name__ = name
        return tool

    kinds = [chance.choice(["at once", "late", "fail"]) for _ in NAMES]
    return [produce(n, kind, chance.randrange(4)) for n, kind in zip(NAMES, kinds, strict=True)]


class Interrupter:
    """A handler that interrupts a turn, in some way, at its event number `step`."""

    def __init__(self, way: str, step: int, home: Path) -> None:
        self.way, self.step, self.home = way, step, home
        self.events: list[Event] = []
        self.conversation: Conversation | None = None
        self.running: asyncio.Task[Any] | None = None
        self.copy: Path | None = None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) != self.step + 1:
            return
        assert self.conversation is not None
        match self.way:
            case "cancel":
                self.canceller = asyncio.ensure_future(self.conversation.cancel())
            case "task":
                assert self.running is not None
                self.running.cancel()
            case "raise":
                raise Interruption
            case _:
                # What a process that is killed now leaves behind.
                self.copy = self.home.with_name(f"{self.home.name}-{self.step}")
                shutil.copytree(self.home, self.copy)


async def interrupt(
    interface: Interface,
    session: Session,
    server: Any,
    seed: int,
    way: str,
    step: int,
    home: Path,
) -> int:
    """Interrupt a turn; then two more have to succeed. The number of events that it had."""
    chance = random.Random(seed)
    events = produce_calls(interface, chance)
    tools = produce_tools(chance)
    handler = Interrupter(way, step, home)
    conversation = await session.begin(interface.address, invokers=tools, event_handler=handler)
    handler.conversation = conversation
    await conversation.converse("Hello", event_handler=_ignore)
    server.replies = [events, interface.texts("It is ", "done.")]
    handler.running = asyncio.ensure_future(conversation.converse("Go"))
    done, _ = await asyncio.wait([handler.running], timeout=PATIENCE_SECONDS)
    assert done, "the turn does not end"
    error = None if handler.running.cancelled() else handler.running.exception()
    # What a handler raises reaches the caller, wherever it is raised.
    raised = way == "raise" and step < len(handler.events)
    assert isinstance(error, Interruption) if raised else error is None, error
    if way == "cancel" and step < len(handler.events):
        await handler.canceller
    if way != "raise":
        check_events(handler.events)
    server.replies = []
    kept = conversation.canisters
    await go_on(conversation, kept)
    if handler.copy is not None:
        await go_on_after_crash(handler.copy, conversation.identity, server, interface)
    else:
        await go_on(await session.resume(conversation.identity, event_handler=_ignore), ())
    return len(handler.events)


async def go_on(conversation: Conversation, kept: Sequence[Canister]) -> None:
    """The next turn works, and what was kept of the one before is not rewritten."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        turn = await conversation.converse("And now?", event_handler=_ignore)
    assert turn.text == "Hello."
    assert conversation.canisters[: len(kept)] == tuple(kept)


async def go_on_after_crash(copy: Path, identity: str, server: Any, interface: Interface) -> None:
    async with interface.open_session(server, copy) as session:
        await go_on(await session.resume(identity), ())
    shutil.rmtree(copy)


def _ignore(event: Event) -> None:
    """The events of the turns after it are not looked at."""


async def check_interruptions(
    interface: Interface, server: Any, home: Path, seeds: int, *, every: bool = False
) -> None:
    """Interrupt turns at every step, in `every` way or each in another; the next are accepted."""
    for seed in range(seeds):
        # A crash copies the archive, so each seed has its own.
        place = home / str(seed)
        async with interface.open_session(server, place) as session:
            count = await interrupt(interface, session, server, seed, "cancel", _NEVER, place)
            for step in range(count):
                for way in WAYS if every else (WAYS[(step + seed) % len(WAYS)],):
                    await interrupt(interface, session, server, seed, way, step, place)
                    assert not server.refusals, (seed, way, step)
                    server.requests.clear()
        shutil.rmtree(place)


@pytest.mark.storm
@every_interface
async def test_a_turn_interrupted_at_any_step_is_followed_by_another(
    interface: Interface, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    seeds = rounds(1, 200)
    with interface.serve() as server:
        await check_interruptions(interface, server, tmp_path / "archive", seeds, every=seeds > 1)


async def interrupt_after(
    session: Session, server: FakeAnthropic, seed: int, steps: int
) -> Conversation:
    """Cancel a turn after so many steps of the loop."""
    chance = random.Random(seed)
    events, tools = produce_reply(chance), produce_tools(chance)
    conversation = await session.begin(ANTHROPIC.address, invokers=tools)
    server.replies = [events, text_reply("It is ", "done.")]
    running = asyncio.ensure_future(conversation.converse("Go"))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=PATIENCE_SECONDS)
    assert done, "the turn does not end"
    server.replies = []
    return conversation


@pytest.mark.storm
async def test_a_turn_cancelled_between_any_two_steps_of_the_loop_is_followed_by_another(
    fake_anthropic: FakeAnthropic, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    async with ANTHROPIC.open_session(fake_anthropic, tmp_path / "archive") as session:
        for seed in range(rounds(30, 3_000)):
            steps = random.Random(seed).randrange(400)
            conversation = await interrupt_after(session, fake_anthropic, seed, steps)
            await go_on(conversation, conversation.canisters)
            assert fake_anthropic.refusals == [], (seed, steps)


@pytest.mark.storm
@every_interface
async def test_a_reply_that_fails_anywhere_in_a_turn_is_followed_by_another(
    interface: Interface, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    with interface.serve() as backend:
        async with interface.open_session(backend, tmp_path / "archive") as session:
            for seed in range(rounds(8, 1_000)):
                chance = random.Random(seed)
                first, second = produce_calls(interface, chance), interface.texts("It ", "is.")
                failed = chance.choice([*interface.failures.values()])()
                for one in (first, second):
                    interface.remember(backend, one)
                backend.replies = chance.choice(
                    [
                        [interface.cut(first, chance.random())],
                        [first, interface.cut(second, chance.random())],
                        [first, failed],
                    ]
                )
                tools = produce_tools(chance)
                conversation = await session.begin(interface.address, invokers=tools)
                with suppress(VibeLlmsError):
                    await conversation.converse("Go")
                backend.replies = []
                await go_on(conversation, conversation.canisters)
                assert not backend.refusals, seed


# Bugs that these would find.


def forget_interrupted_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(self: Any, exchange: Any) -> list[Any]:
        answers = exchange.answers
        return [answers[call].blocks[0] for call in exchange.calls if call in answers]

    monkeypatch.setattr(history.AnthropicHistory, "results", results)


def keep_results_as_they_land(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(self: Any, exchange: Any) -> list[Any]:
        return [answer.blocks[0] for answer in exchange.answers.values()]

    monkeypatch.setattr(history.AnthropicHistory, "results", results)


def end_with_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history._Spoken, "finish", lambda self, *, last: list(self.blocks))


def leave_calls_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    add = WireHistory.add_reply

    def add_carelessly(self: Any, canister: Any, piece: Any, call: str) -> None:
        add(self, canister, piece, call)
        self.open.calls.clear()

    monkeypatch.setattr(WireHistory, "add_reply", add_carelessly)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interface", "seed"),
    [
        (ANTHROPIC, forget_interrupted_calls),
        (ANTHROPIC, keep_results_as_they_land),
        (ANTHROPIC, end_with_thinking),
        (CHAT, leave_calls_unanswered),
        (RESPONSES, leave_calls_unanswered),
    ],
)
async def test_an_interruption_that_is_not_mended_would_be_detected(
    interface: Interface,
    seed: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seed(monkeypatch)
    with interface.serve() as server, pytest.raises((AssertionError, ProviderError)):
        await check_interruptions(interface, server, tmp_path / "archive", 20)
