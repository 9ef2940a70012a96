"""Another model answers a turn if the first fails before its reply begins; no text comes twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import KEY, FakeAnthropic, failure
from tests.fakes.interfaces import VENDORS, VERTEX, RecordedInterface, slow_if_repeated
from vibe_llms import Session, open_session
from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialRefused,
    PaymentRequired,
    ProviderOverloaded,
    RateLimited,
    RequestRefused,
)
from vibe_llms.messages.canisters import AssistantCanister, StopReason
from vibe_llms.messages.events import Event, MessageFailedEvent, NoticeEvent
from vibe_llms.providers.breakers import LONGEST_SECONDS, OPEN_SECONDS, Breakers
from vibe_llms.testing.wires.anthropic_replies import text_reply

PARTS = {
    "well": 'text = "All is well."',
    "other": 'text = "I am another."',
    "late": 'text = "Be"\n[[replies.parts]]\nerror = "overloaded"',
    "cut": "cut = true",
    "stall": "stall = true",
    "wait": 'error = "rate-limited"\nretry-after-seconds = 90',
    **{
        name: f'error = "{name}"'
        for name in (
            "rate-limited",
            "overloaded",
            "unreachable",
            "malformed",
            "payment-required",
            "context-overflow",
            "refused",
            "credential-refused",
            "model-unavailable",
        )
    },
}
TOO_LONG = "prompt is too long: 2000 tokens > 1000 maximum"
FAILING = ("rate-limited", "overloaded", "unreachable", "malformed", "payment-required", "cut")


class Heard:
    """An event handler that keeps notices about the fallback, and counts failed messages."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.failed = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, NoticeEvent) and event.notice.subject == "fallback":
            self.notices.append(event.notice.text)
        self.failed += isinstance(event, MessageFailedEvent)


def configure(folder: Path, **row: Any) -> dict[str, Any]:
    for name, parts in PARTS.items():
        (folder / f"{name}.toml").write_text(
            f'[[replies]]\nwhen = ".*"\n[[replies.parts]]\n{parts}\n'
        )
    scripts = {name: str(folder / f"{name}.toml") for name in PARTS}
    return {
        "stream": {"retries": 0},
        "storage": {"durability": "fast"},
        "providers": {"scripted": {"scripts": scripts, **row}},
    }


def open_scripts(folder: Path, heard: Heard | None = None, **row: Any) -> Session:
    return open_session(
        home=folder, configuration=configure(folder, **row), event_handler=heard or Heard()
    )


@pytest.mark.parametrize("failing", FAILING)
async def test_the_next_model_answers_and_is_named(tmp_path: Path, failing: str) -> None:
    heard = Heard()
    async with open_scripts(tmp_path, heard) as session:
        conversation = await session.begin(
            f"scripted/{failing}", fallback=["scripted/overloaded", "scripted/well"]
        )
        turn = await conversation.converse("How is it?")
        assert turn.text == "All is well."
        reply = turn.canisters[-1]
        assert isinstance(reply, AssistantCanister)
        assert reply.provenance is not None
        assert reply.provenance.model == "well"
        assert conversation.model.name == failing
        assert [one.text for one in conversation.canisters] == ["How is it?", "All is well."]  # type: ignore[union-attr]
    assert heard.failed == 0
    assert f"scripted/{failing} did not answer" in heard.notices[0]
    assert "scripted/well answers this turn" in heard.notices[-1]


@pytest.mark.parametrize("refused", ["refused", "credential-refused", "model-unavailable"])
async def test_what_another_model_cannot_mend_is_raised(tmp_path: Path, refused: str) -> None:
    heard = Heard()
    async with open_scripts(tmp_path, heard) as session:
        conversation = await session.begin(f"scripted/{refused}", fallback=["scripted/well"])
        with pytest.raises((RequestRefused, CredentialRefused)):
            await conversation.converse("How is it?")
    assert heard.notices == []
    assert heard.failed == 1


async def test_a_turn_that_is_cancelled_before_the_first_word_reports_its_message(
    tmp_path: Path,
) -> None:
    heard = Heard()
    async with open_scripts(tmp_path, heard) as session:
        conversation = await session.begin("scripted/stall", fallback=["scripted/well"])
        task = asyncio.create_task(conversation.converse("How is it?"))
        while not conversation.busy:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)  # the request waits for the first word
        await conversation.cancel()
        turn = await task
    assert turn.stop_reason == StopReason.INTERRUPTED
    assert heard.failed == 1
    assert heard.notices == []


async def test_no_other_model_answers_after_the_first_word(tmp_path: Path) -> None:
    heard = Heard()
    async with open_scripts(tmp_path, heard) as session:
        conversation = await session.begin("scripted/late", fallback=["scripted/well"])
        with pytest.raises(ProviderOverloaded):
            await conversation.converse("How is it?")
        assert [one.text for one in conversation.canisters] == ["How is it?", "Be"]  # type: ignore[union-attr]
    assert heard.notices == []


async def test_the_first_error_is_raised_if_none_can_answer(tmp_path: Path) -> None:
    heard = Heard()
    names = ["scripted/nobody", "nowhere/nobody", "scripted/refused", "scripted/overloaded"]
    async with open_scripts(tmp_path, heard) as session:
        conversation = await session.begin("scripted/payment-required", fallback=names)
        with pytest.raises(PaymentRequired):
            await conversation.converse("How is it?")
        assert conversation.model.name == "payment-required"
    assert heard.failed == 1
    missing = [text for text in heard.notices if "cannot answer instead" in text]
    assert [text.split()[0] for text in missing] == [*names[:2], names[-1]]


@pytest.mark.parametrize(("row", "agent", "option", "expected"), [
    (("scripted/well",), None, None, "All is well."),
    (("scripted/well",), ["scripted/other"], None, "I am another."),
    (("scripted/well",), ["scripted/well"], ["scripted/other"], "I am another."),
    (("scripted/well",), None, [], None),
])  # fmt: skip
async def test_the_call_comes_before_the_agent_and_the_row(
    tmp_path: Path,
    row: Sequence[str],
    agent: Sequence[str] | None,
    option: Sequence[str] | None,
    expected: str | None,
) -> None:
    settings = configure(tmp_path, fallback=row)
    if agent is not None:
        settings["agents"] = {"clerk": {"supervisor": "Be kind.", "fallback": agent}}
    async with open_session(home=tmp_path, configuration=settings, event_handler=Heard()) as one:
        conversation = await one.begin(
            "scripted/overloaded", agent=None if agent is None else "clerk", fallback=option
        )
        if expected is None:
            with pytest.raises(ProviderOverloaded):
                await conversation.converse("How is it?")
        else:
            assert (await conversation.converse("How is it?")).text == expected


async def test_a_model_that_failed_is_not_asked_again_for_a_while(tmp_path: Path) -> None:
    heard = Heard()
    async with open_scripts(tmp_path, heard) as session:
        conversation = await session.begin("scripted/wait", fallback=["scripted/well"])
        for _ in range(2):
            assert (await conversation.converse("How is it?")).text == "All is well."
        other = await session.begin("scripted/wait")
        # Without a fallback, it is asked in every case.
        with pytest.raises(RateLimited):
            await other.converse("How is it?")
    assert "did not answer" in heard.notices[0]
    assert heard.notices[1:] == [
        "scripted/wait failed a short time ago; scripted/well answers this turn"
    ]


async def test_if_all_failed_the_first_is_asked_again(tmp_path: Path) -> None:
    async with open_scripts(tmp_path) as session:
        conversation = await session.begin("scripted/wait", fallback=["scripted/overloaded"])
        for _ in range(2):
            with pytest.raises(RateLimited):
                await conversation.converse("How is it?")


def test_a_breaker_closes_after_a_while_and_after_an_answer() -> None:
    now = 0.0
    breakers = Breakers(lambda: now)
    error = ProviderOverloaded("busy", provider="a")
    breakers.open("a/b", error)
    assert breakers.is_open("a/b")
    assert not breakers.is_open("a/c")
    now = OPEN_SECONDS
    assert not breakers.is_open("a/b")
    error.retry_after = LONGEST_SECONDS * 9
    breakers.open("a/b", error)
    now += LONGEST_SECONDS - 1
    assert breakers.is_open("a/b")
    breakers.close("a/b")
    assert not breakers.is_open("a/b")


async def test_a_history_too_long_goes_to_a_larger_window_only(tmp_path: Path) -> None:
    """Both what a server refuses and what is too long before anything is sent."""
    heard = Heard()
    windows = {"claude-opus-5": 1_000, "claude-sonnet-5": 1_000, "claude-haiku-5": 200_000}
    models = {name: {"context-tokens": tokens} for name, tokens in windows.items()}
    small, same, large = (f"anthropic/{name}" for name in windows)
    with FakeAnthropic() as server:
        server.replies[:] = [failure(400, "invalid_request_error", TOO_LONG), text_reply("Well.")]
        settings = merge(configure(tmp_path), {"providers": {"anthropic": {
            "base-url": server.url, "models": models,
        }}})  # fmt: skip
        async with open_session(
            home=tmp_path, configuration=settings, keys={"anthropic": KEY}, event_handler=heard
        ) as session:
            conversation = await session.begin(small, fallback=["scripted/well", same, large])
            assert (await conversation.converse("How is it?")).text == "Well."
            assert len(heard.notices) == 3
            server.count = 5_000
            await conversation.converse("word " * 4_000)
            tight = await session.begin(small, fallback=[same])
            with pytest.raises(ContextOverflow):
                await tight.converse("word " * 4_000)
            assert tight.canisters == ()
    models_asked = [json.loads(one.body)["model"] for one in server.requests if one.body]
    assert models_asked.count("claude-haiku-5") >= 2
    assert any("not known to accept more than 1000 tokens" in one for one in heard.notices)


async def test_a_fallback_answers_the_rest_of_its_turn(tmp_path: Path) -> None:
    (tmp_path / "calls.toml").write_text(
        '[[replies]]\n[[replies.parts]]\ninvocation = "look"\n'
        '[[replies]]\n[[replies.parts]]\ntext = "I looked."\n'
    )
    heard = Heard()

    def look() -> str:
        """Look."""
        return "nothing"

    settings = configure(tmp_path)
    settings["providers"]["scripted"]["scripts"]["calls"] = str(tmp_path / "calls.toml")
    async with open_session(home=tmp_path, configuration=settings, event_handler=heard) as session:
        conversation = await session.begin(
            "scripted/overloaded", fallback=["scripted/calls"], invokers=[look]
        )
        turn = await conversation.converse("Look.")
    assert turn.text == "I looked."
    assert turn.stop_reason == StopReason.FINISHED
    assert len(heard.notices) == 1


async def test_a_request_that_was_turned_away_leaves_the_budget_to_the_fallback(
    tmp_path: Path,
) -> None:
    settings = configure(tmp_path)
    settings["budgets"] = {"tokens": 3_000, "period": "day"}
    async with open_session(home=tmp_path, configuration=settings, event_handler=Heard()) as one:
        conversation = await one.begin("scripted/rate-limited", fallback=["scripted/well"])
        assert (await conversation.converse("How is it?")).text == "All is well."
        # Nothing was charged for the request that was turned away.
        assert (await conversation.converse("And now?")).text == "All is well."


async def test_a_run_continues_with_the_model_that_answered(tmp_path: Path) -> None:
    (tmp_path / "calls.toml").write_text(
        '[[replies]]\n[[replies.parts]]\ninvocation = "look"\n'
        '[[replies]]\n[[replies.parts]]\ntext = "I looked."\n'
    )
    began, seen = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        """Look."""
        began.set()
        await seen.wait()
        return "nothing"

    settings = configure(tmp_path)
    settings["providers"]["scripted"]["scripts"]["calls"] = str(tmp_path / "calls.toml")

    def open_one(heard: Heard) -> Session:
        return open_session(
            home=tmp_path, configuration=settings, event_handler=heard, invokers=[look]
        )

    async with open_one(Heard()) as session:
        conversation = await session.begin(
            "scripted/overloaded",
            fallback=["scripted/calls"],
            invokers=session.registered_invokers.values(),
        )
        run = await session.start(conversation, "Look.")
        await began.wait()
        record = (await session.access_run(run.identity)).record
        seen.set()
        assert (await run.result()).text == "I looked."
        assert record.state.fallback == "scripted/calls"
        assert record.recipe.fallback == ("scripted/calls",)


ROWS = (*VENDORS.values(), *VERTEX.values())
PAIRS = [(one, other) for one in ROWS for other in ROWS if one is not other]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(a, b, id=f"{a.row}-{b.row}", marks=slow_if_repeated(a.row, b.row))
        for a, b in PAIRS
    ],
)
async def test_a_model_of_another_wire_takes_over_the_history(
    one: RecordedInterface, other: RecordedInterface, tmp_path: Path
) -> None:
    """The strict fakes refuse a history that their own interface would refuse."""
    heard = Heard()

    def speak(word: str) -> str:
        """Speak."""
        return word

    with ExitStack() as stack:
        thoughts = one.thoughts("Hm.", "Let me see.", '{"word":"a"}')
        first = stack.enter_context(one.serve())
        first.replies[:] = [thoughts, one.failures["overloaded"](), one.texts("Third.")]
        second = stack.enter_context(other.serve())
        second.replies[:] = [other.texts("Second.")]
        settings: dict[str, Any] = merge(one.configure(first), other.configure(second))
        keys: Mapping[str, str] = {**one.keys(first), **other.keys(second)}
        async with open_session(
            home=tmp_path, configuration=settings, keys=keys, event_handler=heard
        ) as session:
            conversation = await session.begin(
                one.address, fallback=[other.address], invokers=[speak]
            )
            turn = await conversation.converse("One.")
            assert turn.text == "Second."
            assert turn.stop_reason == StopReason.FINISHED
            assert len(heard.notices) == 1
            conversation = await session.resume(
                conversation.identity, fallback=[], invokers=[speak]
            )
            assert (await conversation.converse("Two.")).text == "Third."


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of both."""
    merged = dict(one)
    for name, value in other.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge(merged[name], value) if nested else value
    return merged
