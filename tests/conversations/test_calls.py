"""The calls of a turn: who decides on them, and what is left where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vibe_llms import Decision, Invoker, open_session
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.invocation.approval import ApprovalRequest
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister, UserCanister
from vibe_llms.runs import ApprovalRequested, RunStatus
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

NOT_BEGUN = "The call did not run: the turn ended before it began."


class DecisionsLost(Exception):
    """An error that only the user's program knows."""


async def approve(request: ApprovalRequest) -> Decision:
    raise DecisionsLost(request.invocation.name)


def approve_in_a_thread(request: ApprovalRequest) -> Decision:
    raise DecisionsLost(request.invocation.name)


def calls_of(*names: str) -> Any:
    parts = tuple(Part(invocation=name) for name in names)
    done = ScriptedReply(parts=(Part(text="Done."),), when=".")
    return scripted_model(Script((ScriptedReply(parts=parts, when="^Go$"), done)))


async def converse(conversation: Conversation) -> None:
    await conversation.converse("Go")


async def stream(conversation: Conversation) -> None:
    async for _ in conversation.stream("Go"):
        pass


@pytest.mark.parametrize("hold", [converse, stream])
@pytest.mark.parametrize("approver", [approve, approve_in_a_thread])
async def test_an_approver_that_raises_ends_the_turn_and_loses_nothing(
    home: Path, approver: Callable[..., Any], hold: Callable[..., Any]
) -> None:
    sent: list[str] = []

    async def read() -> str:
        """Wait until the turn ends."""
        await asyncio.Event().wait()
        return ""

    send = Invoker.from_function(lambda: sent.append("mail"), name="send", approval="ask")
    async with open_session(home=home, approver=approver) as session:
        conversation = await session.begin(calls_of("read", "send"), invokers=[read, send])
        with pytest.raises(DecisionsLost, match="send"):
            await hold(conversation)
        assert sent == []
        said, *calls, first, second = conversation.canisters
        assert isinstance(said, UserCanister)
        assert [one.name for one in calls if isinstance(one, InvocationCanister)] == [
            "read",
            "send",
        ]
        results = {one.invocation: one for one in (first, second)}  # type: ignore[union-attr]
        texts = [results[one.identity].text for one in calls]  # type: ignore[union-attr]
        assert texts == [INTERRUPTED, NOT_BEGUN]
        stored = await session.resume(conversation.identity, model=calls_of())
        assert stored.canisters == conversation.canisters
        assert (await conversation.converse("And now?")).text == "Done."


async def test_an_elicitor_that_raises_ends_the_turn_and_loses_nothing(home: Path) -> None:
    async def answer(request: ElicitationRequest) -> ElicitationAnswer:
        raise DecisionsLost(request.message)

    async with open_session(home=home, elicitor=answer) as session:
        conversation = await session.begin("scripted/demo", ensembles=["user"])
        asks = Script(
            (ScriptedReply(parts=(Part(invocation="user/ask", arguments={"question": "Why?"}),)),)
        )
        await conversation.switch(scripted_model(asks))
        with pytest.raises(DecisionsLost, match="Why"):
            await conversation.converse("Go")
        assert isinstance(last := conversation.canisters[-1], ResultCanister)
        assert last.text == NOT_BEGUN


async def test_the_approver_of_a_session_is_not_asked_in_a_run(home: Path) -> None:
    tools = [Invoker.from_function(lambda: "sent", name="send", approval="ask")]
    async with open_session(home=home, approver=approve, invokers=tools) as session:
        run = await session.start(await session.begin(calls_of("send"), invokers=tools), "Go")
        async for _, event in run.events():
            if isinstance(event, ApprovalRequested):
                break
        assert (await run.access()).status is RunStatus.WAITING
