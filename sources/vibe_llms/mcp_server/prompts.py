"""Agents as prompts: those whose row has a `prompt`, a template for messages of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vibe_llms.agents.definitions import Agent
from vibe_llms.agents.templates import INPUT
from vibe_llms.base.exceptions import RequestError
from vibe_llms.mcp_server.calls import McpCall
from vibe_llms.mcp_server.catalog import Listing
from vibe_llms.mcp_server.host import ConverserOpener
from vibe_llms.mcp_server.jsonrpc import INVALID_PARAMS, ProtocolError


class AgentPrompts:
    """The agents with a template that the user may name."""

    def __init__(self, access: ConverserOpener) -> None:
        self._access = access

    async def list(self) -> Sequence[Listing]:
        """Return the agents as prompts."""
        return [
            {
                "name": agent.name,
                "description": agent.description or f"The prompt of the agent {agent.name}.",
                "arguments": [
                    {"name": name, "description": text, "required": name not in agent.defaults}
                    for name, text in _describe_arguments(agent).items()
                ],
            }
            for agent in await self._survey()
        ]

    async def get(self, name: str, arguments: Mapping[str, str], call: McpCall) -> Listing | None:
        """Return the prompt of an agent with its arguments filled in."""
        agent = next((one for one in await self._survey() if one.name == name), None)
        if agent is None:
            return None
        if INPUT not in arguments:
            raise ProtocolError(INVALID_PARAMS, f"the prompt {name!r} needs {INPUT}, the message")
        others = {key: value for key, value in arguments.items() if key != INPUT}
        try:
            write = agent.produce_template(others)
        except RequestError as error:
            raise ProtocolError(INVALID_PARAMS, str(error)) from None
        assert write is not None
        text = {"type": "text", "text": write(arguments[INPUT])}
        message = {"role": "user", "content": text}
        return {"description": agent.description, "messages": [message]}

    async def _survey(self) -> Sequence[Agent]:
        converser = await self._access()
        agents = [converser.session.access_agent(name) for name in converser.prompts]
        return [one for one in agents if one.prompt]


def _describe_arguments(agent: Agent) -> Mapping[str, str]:
    variables = {
        name: f"A variable of the prompt; by default {agent.defaults[name]!r}."
        if name in agent.defaults
        else "A variable of the prompt."
        for name in agent.variables
    }
    return {INPUT: "The message.", **variables}
