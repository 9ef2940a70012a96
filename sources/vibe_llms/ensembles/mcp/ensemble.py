"""`McpEnsemble`: the tools of one MCP server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from vibe_llms.ensembles.interfaces import EnsembleConfiguration
from vibe_llms.ensembles.mcp.connection import Connection
from vibe_llms.ensembles.mcp.contents import assimilate_result
from vibe_llms.ensembles.mcp.settings import LOADING_VARIABLES, McpSettings
from vibe_llms.exceptions import EnsembleFailed
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.invocation.schemata import ArgumentsInvalid
from vibe_llms.messages.contents import repair_text
from vibe_llms.offline import permit_request

if TYPE_CHECKING:
    from mcp_types import Tool

#: Of what a server says of a tool, this is no annotation.
_DEFINED_ELSEWHERE = {"name", "description", "input_schema", "icons", "meta"}
_MAX_PAGES = 1000
_MAX_TOOLS = 10_000


class McpEnsemble:
    """A server that is started, or reached by its address, when it is opened."""

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        read = configuration.configuration
        self._name = name
        self._offline = read.offline
        self._settings = read.read(McpSettings, configuration.settings, "ensembles", name)
        settings = self._settings
        if bool(settings.command) == bool(settings.url):
            raise read.error("a server has either a command or a url", "ensembles", name, "command")
        for variable in settings.environment:
            if variable in LOADING_VARIABLES:
                raise read.error(
                    "it makes a program load code that its command does not name",
                    *("ensembles", name, "environment", variable),
                )
        settings.remember_keys()
        self._connection = Connection(name, settings)
        self._tools: dict[str, Tool] = {}
        self._invokers: tuple[Invoker, ...] = ()
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """The name of its row."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The server's tools, as they were when it was opened."""
        return self._invokers

    @property
    def origin(self) -> str:
        """The command that starts it, or its address."""
        return self._settings.origin

    @property
    def details(self) -> Mapping[str, str]:
        """The protocol that is spoken, and what the server calls itself."""
        return self._connection.details

    async def open(self) -> None:
        """Start or reach the server and list its tools."""
        await self._connect()

    async def close(self) -> None:
        """End the connection, and the server's process."""
        self._closed = True
        # What is being opened is given up, and then nobody opens it any more.
        await self._connection.close()
        async with self._opening:
            await self._connection.close()

    async def _connect(self) -> None:
        async with self._opening:
            if self._closed:
                raise EnsembleFailed("it has been closed", ensemble=self._name)
            if url := self._settings.url:
                purpose = f"a connection of the ensemble {self._name!r}"
                permit_request(url, purpose, offline=self._offline)
            if self._connection.alive:
                return
            await self._connection.close()
            if self._closed:
                raise EnsembleFailed("it has been closed", ensemble=self._name)
            self._connection = Connection(self._name, self._expand())
            await self._connection.open()
            try:
                tools = await self._list_tools()
                self._tools = {tool.name: tool for tool in tools}
                self._invokers = tuple(map(self._assimilate_tool, tools))
            except EnsembleFailed:
                await self._connection.close()
                raise

    def _expand(self) -> McpSettings:
        try:
            settings = self._settings.expand(os.environ)
        except KeyError as error:
            raise EnsembleFailed(
                f"opening: its row speaks of ${{{error.args[0]}}}, which is not set in the "
                "environment; set it",
                ensemble=self._name,
            ) from error
        settings.remember_keys()
        return settings

    async def _list_tools(self) -> list[Tool]:
        async def walk(client: Any) -> list[Tool]:
            tools: list[Tool] = []
            cursor: str | None = None
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    return tools
                if len(tools) > _MAX_TOOLS:
                    break
            raise EnsembleFailed(
                f"listing: it has more than {_MAX_TOOLS:,} tools or {_MAX_PAGES:,} pages of them",
                ensemble=self._name,
            )

        return await self._connection.request(self._settings.list_seconds, "listing", walk)

    def _assimilate_tool(self, tool: Tool) -> Invoker:
        marks = tool.annotations
        reads_only = bool(marks and marks.read_only_hint)
        open_world = marks is None or marks.open_world_hint is not False
        schema = dict(tool.input_schema)

        async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
            return await self._invoke(tool, seconds, arguments, context)

        invoker = Invoker(
            name=f"{self._name}/{tool.name}",
            description=repair_text(tool.description or tool.title or ""),
            arguments_schema=schema,
            invoke=invoke,
            ensemble=self._name,
            outside=open_world,
            sends=open_world and not reads_only,
            annotations=tool.model_dump(
                mode="json", by_alias=True, exclude_none=True, exclude=_DEFINED_ELSEWHERE
            ),
        )
        settled = self._settings.settle(invoker, reads_only=reads_only)
        seconds = settled.timeout_seconds or self._settings.call_seconds
        if settled.timeout_seconds is None:
            # A server that has ended is started again first.
            spare = self._settings.open_seconds + self._settings.list_seconds
            settled = msgspec.structs.replace(settled, timeout_seconds=seconds + spare)
        return settled

    async def _invoke(
        self, tool: Tool, seconds: float, arguments: str, context: InvocationContext
    ) -> InvocationOutput:
        try:
            values = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise ArgumentsInvalid(f"This is not a JSON object: {error}") from error

        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.report_progress(message or "", done=progress, total=total)

        await self._connect()
        if self._tools.get(tool.name) != tool:
            raise EnsembleFailed(
                f"calling {tool.name}: it has been started anew and describes the tool otherwise "
                "now, so nothing was called",
                ensemble=self._name,
            )
        result = await self._connection.request(
            seconds,
            f"calling {tool.name}",
            lambda client: client.call_tool(
                tool.name, values, read_timeout_seconds=seconds, progress_callback=report
            ),
        )
        return assimilate_result(result)
