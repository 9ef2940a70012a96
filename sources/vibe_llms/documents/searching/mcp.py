"""The search tool of an MCP server, whose text is taken as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import SEARCH_ENGINES
from vibe_llms.base.exceptions import ArgumentsInvalid, SearchFailed
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.documents.searching.interfaces import (
    SearchAnswer,
    SearchConfiguration,
    SearchRequest,
    register,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import TextualContent

_MODULE = "vibe_llms.ensembles.mcp"


class McpSearchSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row that names the search tool of an MCP server.

    `server` is the row of `[ensembles]`, and `tool` the tool's name there. The query is given as
    `argument`, next to the arguments in `extras`.
    """

    server: str
    tool: str
    argument: str = "query"
    extras: Mapping[str, Any] = {}


class McpSearchEngine:
    """A tool of an MCP server, which starts at the first query."""

    def __init__(self, name: str, configuration: SearchConfiguration) -> None:
        whole = configuration.configuration
        self._name = name
        self._settings = whole.read(McpSearchSettings, configuration.settings, SEARCH_ENGINES, name)
        self._open_tools = configuration.host.open_tools
        server = self._settings.server
        rows = {row.name: row for row in whole.rows(ENSEMBLES) if row.module == _MODULE}
        if server not in rows:
            known = ", ".join(rows) or "none"
            words = f"MCP server {server!r} not found in [ensembles]; known servers: {known}"
            raise whole.error(words, SEARCH_ENGINES, name, "server")
        self._host = _find_host(rows[server].settings) or f"the MCP server {server}"

    @property
    def host(self) -> str:
        """Host of the server, or its name if it is a program."""
        return self._host

    async def open(self) -> None:
        """Do nothing: the server starts at the first query."""

    async def search(self, request: SearchRequest) -> SearchAnswer:
        """Return the text of the tool's result."""
        tool = await self._find_tool()
        values = {**self._settings.extras, self._settings.argument: request.query}
        arguments = msgspec.json.encode(values).decode()
        try:
            tool.check(arguments)
            context = msgspec.structs.replace(
                request.context,
                invocation=InvocationCanister(name=tool.name, arguments=arguments),
            )
            output = await tool.invoke(arguments, context)
        except ArgumentsInvalid as error:
            words = f"{tool.name} needs other arguments (argument, extras): {error}"
            raise self._fail(words) from error
        text = "\n\n".join(
            one.text for one in output.contents if isinstance(one, TextualContent)
        ).strip()
        if output.failed:
            raise self._fail(f"{tool.name}: {text or 'the tool failed without a reason'}")
        return SearchAnswer(text=text)

    async def _find_tool(self) -> Invoker:
        assert self._open_tools is not None
        server, name = self._settings.server, f"{self._settings.server}/{self._settings.tool}"
        tools = {tool.name: tool for tool in await self._open_tools(server)}
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise self._fail(f"{server} has no tool {self._settings.tool!r}; it has: {known}")
        tool = tools[name]
        if tool.blocked or tool.approval == "deny":
            raise self._fail(f"{name}: {tool.blocked or 'its row denies this tool'}")
        return tool

    def _fail(self, message: str) -> SearchFailed:
        return SearchFailed(message, engine=self._name)


def _find_host(settings: Mapping[str, Any]) -> str:
    url = settings.get("url")
    try:
        return urlsplit(url).netloc.rpartition("@")[2] if isinstance(url, str) else ""
    except ValueError:
        return ""


register("mcp", McpSearchEngine)
