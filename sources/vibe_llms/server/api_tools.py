"""The endpoint `/api/tools`: MCP servers and other sources of tools, with their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from vibe_llms.agents.definitions import Agent, access_agent, survey_optional
from vibe_llms.base.configuration import LOCAL
from vibe_llms.base.credentials import get_logger
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.ensembles.core import EnsembleStatus
from vibe_llms.invocation.invokers import Approval, Invoker
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import describe_failure
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace

_LOGGER = get_logger("vibe_llms.server")


class ToolsQuery(Struct):
    """With `check`, sources that are not open are opened, which may start servers."""

    check: bool = False


class ToolDescription(Struct):
    """A tool.

    `approval` is the rule for its calls, and `blocked` says why it does not run, if it does not.
    With `outside`, its results are untrusted; with `sends`, it may send data out.
    """

    name: str
    description: str
    arguments_schema: Mapping[str, Any]
    approval: Approval
    blocked: str
    outside: bool
    sends: bool


class ToolSource(Struct):
    """A row of `[ensembles]`, and the `agents` that use it.

    It is `ready` if its tools are known; its first call may have to start it. If not, it is
    `unopened`, or `failed` with a `problem`. With `outside`, it is a server that describes its own
    tools, and `details` are facts about the server if it has been started.
    """

    name: str
    agents: list[str]
    state: Literal["ready", "unopened", "failed"]
    problem: str
    outside: bool
    details: Mapping[str, str]
    tools: list[ToolDescription]


class ToolSourceList(Struct):
    """Sources of tools, in the order of the configuration."""

    sources: list[ToolSource]


class _Use(Struct):
    """Use of a row by agents; `tools` are single tools, None for all."""

    agents: list[str]
    tools: set[str] | None


async def list_tools(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List MCP servers and other sources of tools; starts no server unless `check` is true.

    The user `local` sees all rows of the configuration file, others what their agents use.
    """
    query = read_query(ToolsQuery, exchange.query)
    uses = _survey_uses(space)
    if query.check:
        async with exchange.until_disconnect():
            with space.turn():
                found = await space.session.inspect_ensembles(uses, start=True)
    else:
        found = await space.session.inspect_ensembles(uses)
    sources = [_describe(exchange, space, one, uses[one.name]) for one in found]
    await exchange.reply(msgspec.json.encode(ToolSourceList(sources)))


def _survey_uses(space: UserSpace) -> Mapping[str, _Use]:
    """Return the rows that the user sees, in the order of the configuration."""
    configuration = space.session.configuration
    rows = [row.name for row in configuration.rows(ENSEMBLES)]
    found: dict[str, _Use] = {}
    for agent in (access_agent(configuration, name) for name in space.agents):
        whole = {
            *agent.ensembles,
            *survey_optional(configuration, agent, own_rows=False),
        }
        for row in (*whole, *(one for one in agent.tool_rows if one not in whole)):
            use = found.setdefault(row, _Use([], set()))
            use.agents.append(agent.name)
            if row in whole:
                use.tools = None
            elif use.tools is not None:
                use.tools |= _survey_single(agent, row)
    if space.user == LOCAL:
        for row in rows:
            if row in found or configuration.is_of_the_user(ENSEMBLES, row):
                found.setdefault(row, _Use([], None)).tools = None
    return {row: found[row] for row in rows if row in found}


def _survey_single(agent: Agent, row: str) -> set[str]:
    return {one for one in agent.tools if one.partition("/")[0] == row}


def _describe(
    exchange: HttpExchange, space: UserSpace, status: EnsembleStatus, use: _Use
) -> ToolSource:
    problem = ""
    if status.failure is not None:
        _LOGGER.warning("%s: %s", exchange.request_id, status.failure)
        # Others must not learn commands and addresses.
        local = space.user == LOCAL
        problem = str(status.failure) if local else describe_failure(status.failure).message
    state: Literal["ready", "unopened"] = "ready" if status.known else "unopened"
    return ToolSource(
        name=status.name,
        agents=use.agents,
        state="failed" if status.failure is not None else state,
        problem=problem,
        outside=status.outside,
        details=status.details,
        tools=_describe_tools(status.invokers, use.tools),
    )


def _describe_tools(invokers: Sequence[Invoker], names: set[str] | None) -> list[ToolDescription]:
    return [
        ToolDescription(
            name=one.name,
            description=one.description,
            arguments_schema=one.arguments_schema,
            approval=one.approval,
            blocked=one.blocked,
            outside=one.outside,
            sends=one.sends,
        )
        for one in invokers
        if names is None or one.name in names
    ]
