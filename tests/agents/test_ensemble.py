"""Agents as tools of other agents: what they are asked, how deep, and what their answers taint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.models import LONG, QUICK
from vibe_llms.agents.ensemble import AgentsEnsemble, OfferedAgent
from vibe_llms.base.exceptions import ConfigurationError, EnsembleFailed
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
)
from vibe_llms.messages.events import Event, InvocationProgressEvent
from vibe_llms.opening import open_session
from vibe_llms.providers.scripted.demo import last_words
from vibe_llms.testing import Part, Script, ScriptedModel, ScriptedReply, scripted_model


def call(agent: str, request: str, *, when: str) -> ScriptedReply:
    """The reply to a message, which asks an agent."""
    part = Part(invocation=f"agents/{agent}", arguments={"request": request})
    return ScriptedReply(parts=(part,), when=when)


def says(text: str, *, when: str) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=(text,)),), when=when)


def team(*replies: ScriptedReply) -> ScriptedModel:
    """One model that plays all agents, each by what it is asked."""
    return scripted_model(Script(replies), stream=QUICK)


def rows(**agents: Any) -> dict[str, Any]:
    return {"agents": agents, "tools": {"identical-calls": 50}}


def results(conversation: Conversation) -> Sequence[ResultCanister]:
    return [one for one in conversation.canisters if isinstance(one, ResultCanister)]


LEAD = {"agents": ["researcher"], "supervisor": "You lead."}
RESEARCHER = {"description": "Finds facts.", "supervisor": "You find facts."}


async def test_an_agent_is_asked_in_a_conversation_of_its_own() -> None:
    model = team(
        call("researcher", "How high is it?", when="^Please"),
        says("324 m", when="^How high"),
        says("It is 324 m high.", when="^324 m$"),
    )
    async with open_session(configuration=rows(lead=LEAD, researcher=RESEARCHER)) as session:
        conversation = await session.begin(model, agent="lead")
        (tool,) = conversation.invokers.values()
        assert (tool.name, tool.approval) == ("agents/researcher", "allow")
        assert tool.description.startswith("Finds facts.\nThe agent cannot see this conversation")
        assert list(tool.arguments_schema["properties"]) == ["request"]
        turn = await conversation.converse("Please ask about the tower.")
        assert turn.text == "It is 324 m high."
        assert [one.text for one in results(conversation)] == ["324 m"]
        (summary,) = await session.survey_conversations()
        assert summary.identity == conversation.identity
    asked = model.requests[1]["messages"]
    assert [one["role"] for one in asked] == ["supervisor", "user"]
    assert [one["contents"][0]["text"] for one in asked] == ["You find facts.", "How high is it?"]


async def test_an_agent_answers_with_its_own_model_and_prompt(home: Path) -> None:
    home.mkdir()
    (home / "s.toml").write_text('[[replies]]\nparts = [{ text = "found" }]\nwhen = "^Look: x$"\n')
    own = {"model": "scripted/mine", "prompt": "Look: $input"}
    configuration = {
        **rows(lead=LEAD, researcher=own),
        "providers": {"scripted": {"scripts": {"mine": "s.toml"}}},
    }
    model = team(call("researcher", "x", when="^Please"), says("Done", when="^found$"))
    async with open_session(configuration=configuration) as session:
        conversation = await session.begin(model, agent="lead")
        assert (await conversation.converse("Please")).text == "Done"
    assert len(model.requests) == 2


async def test_agents_that_ask_each_other_are_stopped() -> None:
    model = team(
        says("stopped", when="^Agents may ask each other only 3 deep"),
        says("passed on", when="^stopped$|^passed on$"),
        call("one", "again", when="^again$"),
    )
    circle = rows(one={"agents": ["one"]})
    async with open_session(configuration=circle) as session:
        conversation = await session.begin(model, agent="one")
        assert (await conversation.converse("again")).text == "passed on"
    # One request and one answer for each conversation: the user's, and three below it.
    assert len(model.requests) == 8
    assert max(len(request["messages"]) for request in model.requests) == 3


async def test_the_depth_is_a_setting() -> None:
    model = team(
        says("stopped", when="^Agents may ask each other only 1 deep"),
        says("passed on", when="^stopped$"),
        call("one", "again", when="^again$"),
    )
    configuration = {**rows(one={"agents": ["one"]}), "tools": {"agent-depth": 1}}
    async with open_session(configuration=configuration) as session:
        conversation = await session.begin(model, agent="one")
        await conversation.converse("again")
    assert len(model.requests) == 4


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            ScriptedReply(parts=(Part(error="overloaded"),), when="^How"),
            "The agent failed: scripted: as the script says",
        ),
        (
            ScriptedReply(parts=(), when="^How"),
            "The agent failed: scripted: the reply is empty",
        ),
    ],
)
async def test_a_failure_of_an_agent_is_a_result(reply: ScriptedReply, words: str) -> None:
    model = team(call("researcher", "How?", when="^Please"), reply, says("Sorry", when="."))
    async with open_session(configuration=rows(lead=LEAD, researcher=RESEARCHER)) as session:
        conversation = await session.begin(model, agent="lead")
        assert (await conversation.converse("Please")).text == "Sorry"
        (result,) = results(conversation)
        assert result.failed
        assert words in result.text


async def test_an_answer_that_was_cut_says_so() -> None:
    cut = ScriptedReply(parts=(Part(text=("half",)),), when="^How", stop_reason="length")
    model = team(call("researcher", "How?", when="^Please"), cut, says("Fine", when="."))
    async with open_session(configuration=rows(lead=LEAD, researcher=RESEARCHER)) as session:
        conversation = await session.begin(model, agent="lead")
        await conversation.converse("Please")
        (result,) = results(conversation)
        assert (
            result.text == "half\n\n(The answer is incomplete; the agent's turn ended as length.)"
        )


async def test_an_empty_request_is_refused_and_needs_a_session() -> None:
    model = team()
    ensemble = AgentsEnsemble(
        [OfferedAgent("one")], EnsembleHost(), model=model, depth=1, deepest=3, payers={}
    )
    (tool,) = ensemble.invokers
    context = InvocationContext("", InvocationCanister(name=tool.name), lambda *_, **__: None)
    refused = await tool.invoke('{"request": " "}', context)
    assert (refused.failed, refused.text[:20]) == (True, "The request is empty")
    with pytest.raises(EnsembleFailed, match="agents can be asked only in a session"):
        await tool.invoke('{"request": "x"}', context)
    await ensemble.open()
    await ensemble.close()


async def test_what_an_agent_does_is_progress_of_the_call() -> None:
    reads = Part(invocation="documents/list_documents", arguments={})
    model = team(
        call("researcher", "How?", when="^Please"),
        ScriptedReply(parts=(reads,), when="^How"),
        says("none", when="^There are no documents"),
        says("Done", when="^none$"),
    )
    events: list[Event] = []
    equipped = {**RESEARCHER, "ensembles": ["documents"]}
    async with open_session(
        configuration=rows(lead=LEAD, researcher=equipped), event_handler=events.append
    ) as session:
        conversation = await session.begin(model, agent="lead")
        await conversation.converse("Please")
    progress = [one for one in events if isinstance(one, InvocationProgressEvent)]
    assert [one.text for one in progress] == ["calls documents/list_documents"]
    assert {one.conversation for one in progress} == {conversation.identity}
    # Nothing else of the agent's turn reaches the handler of the conversation.
    assert {getattr(one, "conversation", "") for one in events} == {conversation.identity}


@pytest.mark.parametrize(("ensembles", "asked"), [([], []), (["documents"], ["agents/researcher"])])
async def test_an_agent_with_tools_may_read_outside_and_send(
    ensembles: Sequence[str], asked: Sequence[str]
) -> None:
    model = team(
        call("researcher", "How?", when="^Please"),
        says("found", when="^How"),
        call("researcher", "More?", when="^found$"),
        says("more", when=r"^More\?$"),
        says("Done", when="^more$"),
    )
    requests: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Decision:
        requests.append(request)
        return Decision.ALLOW

    equipped = {**RESEARCHER, "ensembles": list(ensembles)}
    async with open_session(
        configuration=rows(lead=LEAD, researcher=equipped), approver=approve
    ) as session:
        conversation = await session.begin(model, agent="lead")
        assert (await conversation.converse("Please")).text == "Done"
    # The first answer taints the turn, so that the second request is asked about.
    assert [one.invoker.name for one in requests] == list(asked)


async def test_cancelling_the_turn_cancels_the_turn_of_the_agent() -> None:
    asked = asyncio.Event()

    def improvise(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
        if last_words(canisters) == "Please":
            return call("researcher", "How?", when=".")
        asked.set()
        return ScriptedReply(parts=(Part(text=("It ",)), LONG))

    model = scripted_model(improvise, stream=QUICK)
    async with open_session(configuration=rows(lead=LEAD, researcher=RESEARCHER)) as session:
        conversation = await session.begin(model, agent="lead")
        running = asyncio.create_task(conversation.converse("Please"))
        await asked.wait()
        assert len(turns()) == 2
        await conversation.cancel()
        assert (await running).stop_reason == StopReason.INTERRUPTED
        assert turns() == []
        (result,) = results(conversation)
        assert result.failed


def turns() -> Sequence[str]:
    """The turns that run now."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("turn of ")]


async def test_an_agent_that_needs_variables_cannot_be_asked() -> None:
    agents = rows(lead=LEAD, researcher={"prompt": "In $language: $input"})
    async with open_session(configuration=agents) as session:
        with pytest.raises(ConfigurationError, match=r"'researcher' needs \$language") as caught:
            await session.begin(team(), agent="lead")
        assert caught.value.path == ("agents", "lead", "agents")
