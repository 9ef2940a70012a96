"""Agents as tools of a conversation: each call is one turn with an agent and is not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Budget
from vibe_llms.base.exceptions import EnsembleFailed, VibeLlmsError
from vibe_llms.conversations.hosts import AgentRequest, EnsembleHost
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import StopReason
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import (
    Event,
    InvocationProgressEvent,
    InvocationStartedEvent,
    NoticeEvent,
)
from vibe_llms.providers.interfaces import Model

NAME = "agents"
#: Long, because an agent may make many requests and wait for approvals, each with its own limit.
_TURN_SECONDS = 1800.0
_HINT = "The agent cannot see this conversation. Include everything it needs in the request."


class OfferedAgent(Struct, frozen=True):
    """An agent that can be asked; `equipped` if it has tools, documents or memory."""

    name: str
    description: str = ""
    equipped: bool = False


class AgentsEnsemble:
    """The agents that another one may ask, as `agents/NAME`.

    `depth` counts the agents between the user and an answer, from 1; a call beyond `deepest` is
    refused. `model` answers for an agent that names none. The answers count against the budgets in
    `payers`.
    """

    def __init__(
        self,
        agents: Sequence[OfferedAgent],
        host: EnsembleHost,
        *,
        model: Model,
        depth: int,
        deepest: int,
        payers: Mapping[str, Budget],
    ) -> None:
        self._host = host
        self._model = model
        self._depth = depth
        self._deepest = deepest
        self._payers = payers
        self._invokers = tuple(map(self._produce_invoker, agents))

    @property
    def name(self) -> str:
        """First part of its tools' names."""
        return NAME

    @property
    def invokers(self) -> Sequence[Invoker]:
        """One tool for each agent."""
        return self._invokers

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def _produce_invoker(self, agent: OfferedAgent) -> Invoker:
        async def ask_agent(request: str, context: InvocationContext) -> InvocationOutput:
            return await self._ask(agent.name, request, context)

        return msgspec.structs.replace(
            Invoker.from_function(
                ask_agent,
                name=f"{NAME}/{agent.name}",
                description=f"{agent.description or 'Ask this agent.'}\n{_HINT}",
                # The agent's tools say whether they read or send, but only once they are open.
                outside=agent.equipped,
                sends=agent.equipped,
                timeout_seconds=_TURN_SECONDS,
            ),
            ensemble=NAME,
        )

    async def _ask(self, name: str, request: str, context: InvocationContext) -> InvocationOutput:
        if self._depth > self._deepest:
            return _fail(
                f"Agents may ask each other only {self._deepest} deep (agent-depth). Answer "
                "without this agent."
            )
        if not request.strip():
            return _fail("The request is empty; say what the agent should do.")
        if self._host.ask_agent is None:
            raise EnsembleFailed("agents can be asked only in a session", ensemble=NAME)

        def report(event: Event) -> None:
            if text := _describe(event):
                context.report_progress(text)

        wanted = AgentRequest(
            agent=name,
            text=request,
            model=self._model,
            depth=self._depth,
            payers=self._payers,
        )
        try:
            turn = await self._host.ask_agent(wanted, report)
        except VibeLlmsError as error:
            return _fail(f"The agent failed: {error}")
        if not turn.text:
            return _fail(f"The agent returned no answer; its turn ended as {turn.stop_reason}.")
        text = turn.text
        if turn.stop_reason != StopReason.FINISHED:
            text += f"\n\n(The answer is incomplete; the agent's turn ended as {turn.stop_reason}.)"
        return InvocationOutput((TextualContent(text),))


def _describe(event: Event) -> str:
    """Describe an event as progress of the call; return an empty string for other events."""
    match event:
        case InvocationStartedEvent(invocation=invocation):
            return f"calls {invocation.name}"
        case InvocationProgressEvent(invocation=invocation, text=text) if text:
            return f"{invocation.name}: {text}"
        case NoticeEvent(notice=notice):
            return notice.text
        case _:
            return ""


def _fail(text: str) -> InvocationOutput:
    return InvocationOutput((TextualContent(text),), failed=True)
