"""A pure tool runs once for the same arguments in a conversation; the result says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.invocation.invokers import Invoker, invoker
from vibe_llms.invocation.reuse import NOTE
from vibe_llms.messages.canisters import Canister, InvocationCanister, ResultCanister
from vibe_llms.messages.events import Event, InvocationCompletedEvent
from vibe_llms.opening import open_session
from vibe_llms.testing import (
    Part,
    Script,
    ScriptedModel,
    ScriptedReply,
    check_events,
    scripted_model,
)


class Counter:
    """A tool that counts how often it runs; an answer of `fail` fails once."""

    def __init__(self, text: str = "It rains in {}.") -> None:
        self.text = text
        self.ran: list[str] = []

    def tool(self, **options: Any) -> Invoker:
        def look_up(city: str, deep: bool = False) -> str:
            self.ran.append(city)
            if city == "fail" and len(self.ran) == 1:
                raise LookupError("not now")
            return self.text.format(city)

        return Invoker.from_function(look_up, **options)


def calls(*arguments: str | dict[str, Any], name: str = "look_up") -> ScriptedModel:
    """A model that makes these calls one after the other and then says that it is done."""
    replies = [ScriptedReply(parts=(Part(invocation=name, arguments=one),)) for one in arguments]
    return scripted_model(Script((*replies, ScriptedReply(parts=(Part(text="Done."),)))))


def results(canisters: Any) -> list[ResultCanister]:
    return [one for one in canisters if isinstance(one, ResultCanister)]


async def hold(home: Path, tool: Invoker, *arguments: str | dict[str, Any]) -> list[ResultCanister]:
    async with open_session(home=home) as session:
        conversation = await session.begin(calls(*arguments), invokers=[tool])
        return results((await conversation.converse("Look.")).canisters)


async def test_a_second_call_with_the_same_arguments_gets_the_first_result(
    tmp_path: Path,
) -> None:
    counter = Counter()
    same = '{ "deep": false,\n "city": "Oslo"}'
    first, second, third, other = await hold(
        tmp_path,
        counter.tool(pure=True),
        {"city": "Oslo", "deep": False},
        same,
        '{"deep":false,"city":"\\u004fslo"}',
        {"city": "Rome"},
    )
    assert counter.ran == ["Oslo", "Rome"]
    assert (first.text, first.reused) == ("It rains in Oslo.", "")
    for one in (second, third):
        assert one.text.startswith("It rains in Oslo.")
        assert (one.reused, one.failed) == (first.identity, False)
        assert one.text.count(NOTE) == 1
    assert other.reused == ""


async def test_a_reused_result_is_marked_for_the_model_and_in_the_event(tmp_path: Path) -> None:
    counter, model = Counter(), calls({"city": "Oslo"}, {"city": "Oslo"})
    events: list[Event] = []
    async with open_session(home=tmp_path, event_handler=events.append) as session:
        conversation = await session.begin(model, invokers=[counter.tool(pure=True)])
        await conversation.converse("Look.")
    ended = [event.result for event in events if isinstance(event, InvocationCompletedEvent)]
    assert [one.reused for one in ended] == ["", ended[0].identity]
    sent = model.requests[-1]["messages"][-1]["contents"]
    assert [part["text"] for part in sent] == ["It rains in Oslo.", NOTE]


async def test_equal_calls_of_one_reply_run_once(tmp_path: Path) -> None:
    counter = Counter()
    oslo, rome = ({"city": city} for city in ("Oslo", "Rome"))
    reply = ScriptedReply(
        parts=tuple(Part(invocation="look_up", arguments=one) for one in (oslo, rome, oslo, oslo))
    )
    done = ScriptedReply(parts=(Part(text="Done."),))
    events: list[Event] = []
    async with open_session(home=tmp_path, event_handler=events.append) as session:
        model = scripted_model(Script((reply, done)))
        conversation = await session.begin(model, invokers=[counter.tool(pure=True)])
        turn = await conversation.converse("Look.")
    assert sorted(counter.ran) == ["Oslo", "Rome"]
    calls = [one.identity for one in turn.canisters if isinstance(one, InvocationCanister)]
    landed = {one.invocation: one for one in results(turn.canisters)}
    first, other, *again = (landed[call] for call in calls)
    assert (first.reused, other.reused) == ("", "")
    assert [one.reused for one in again] == [first.identity] * 2
    check_events(events)


async def test_a_tool_that_is_not_marked_runs_each_time(tmp_path: Path) -> None:
    counter = Counter()
    again = await hold(tmp_path, counter.tool(), {"city": "Oslo"}, {"city": "Oslo"})
    assert counter.ran == ["Oslo", "Oslo"]
    assert [one.reused for one in again] == ["", ""]


async def test_a_failed_result_is_not_reused(tmp_path: Path) -> None:
    counter = Counter()
    arguments: list[dict[str, Any]] = [{"city": city} for city in ("fail", "fail", "Rome", "fail")]
    first, second, _, third = await hold(tmp_path, counter.tool(pure=True), *arguments)
    assert counter.ran == ["fail", "fail", "Rome"]
    assert (first.failed, second.failed, third.reused) == (True, False, second.identity)


async def test_arguments_that_are_no_object_are_not_reused(tmp_path: Path) -> None:
    counter = Counter()
    found = await hold(tmp_path, counter.tool(pure=True), "[", "[")
    assert [one.failed for one in found] == [True, True]


def look_once_a_turn(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
    """A model that looks up Oslo in each turn."""
    if isinstance(canisters[-1], ResultCanister):
        return ScriptedReply(parts=(Part(text="Done."),))
    return ScriptedReply(parts=(Part(invocation="look_up", arguments={"city": "Oslo"}),))


@pytest.mark.parametrize("length", [10, 5000])
async def test_a_result_is_reused_after_resuming_and_in_a_fork(length: int, tmp_path: Path) -> None:
    # The longer one lies in the content store when the conversation is resumed.
    counter = Counter("{} " + "x" * length)
    tool = counter.tool(pure=True)
    model = scripted_model(look_once_a_turn)
    async with open_session(home=tmp_path) as session:
        begun = await session.begin(model, invokers=[tool])
        (first,) = results((await begun.converse("Look.")).canisters)
    async with open_session(home=tmp_path) as session:
        resumed = await session.resume(begun.identity, model=model, invokers=[tool])
        fork = await resumed.fork()
        for conversation in (resumed, fork):
            (again,) = results((await conversation.converse("Look again.")).canisters)
            assert again.reused == first.identity
            loaded = await session.archive.restore(conversation.identity)
            assert results(loaded.canisters)[-1].reused == first.identity
        other = await session.begin(model, invokers=[tool])
        (anew,) = results((await other.converse("Look.")).canisters)
    assert (counter.ran, anew.reused) == (["Oslo", "Oslo"], "")
    sent = model.requests[3]["messages"][-1]["contents"]
    assert [part["text"] for part in sent] == ["Oslo " + "x" * length, NOTE]


async def test_a_result_is_found_by_any_name_of_the_tool(tmp_path: Path) -> None:
    counter = Counter()
    tool = counter.tool(pure=True, aliases=["weather"])
    replies = [
        ScriptedReply(parts=(Part(invocation=name, arguments={"city": "Oslo"}),))
        for name in ("weather", "look_up", "Look-Up")
    ]
    model = scripted_model(Script((*replies, ScriptedReply(parts=(Part(text="Done."),)))))
    async with open_session(home=tmp_path) as session:
        conversation = await session.begin(model, invokers=[tool])
        await conversation.converse("Look.")
    assert counter.ran == ["Oslo"]


async def test_a_call_that_is_denied_is_not_answered_from_before(tmp_path: Path) -> None:
    counter = Counter()
    async with open_session(home=tmp_path) as session:
        model = scripted_model(look_once_a_turn)
        begun = await session.begin(model, invokers=[counter.tool(pure=True)])
        await begun.converse("Look.")
        denied = counter.tool(pure=True, approval="deny")
        resumed = await session.resume(begun.identity, model=model, invokers=[denied])
        (result,) = results((await resumed.converse("Again.")).canisters)
    assert (result.failed, result.reused, counter.ran) == (True, "", ["Oslo"])


def test_a_function_is_marked_as_pure() -> None:
    @invoker(pure=True)
    def add(a: int, b: int) -> int:
        return a + b

    assert Invoker.from_function(add).pure
    assert not Invoker.from_function(add, pure=False).pure
