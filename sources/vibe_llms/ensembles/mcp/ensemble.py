"""`McpEnsemble`: the tools of one MCP server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from hashlib import sha256
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
from vibe_llms.meta import CONVERSATION_KEY
from vibe_llms.offline import permit_request
from vibe_llms.redaction import remember

if TYPE_CHECKING:
    from mcp_types import Tool

#: What names a header or a variable that holds a key.
_SECRET = re.compile("authorization|cookie|key|password|secret|token", re.IGNORECASE)
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
        for key, value in (*settings.headers.items(), *settings.environment.items()):
            if _SECRET.search(key):
                remember(value.rpartition(" ")[2])
        self._connection = Connection(name, settings)
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
            self._connection = Connection(self._name, self._settings)
            await self._connection.open()
            try:
                self._invokers = tuple(map(self._assimilate_tool, await self._list_tools()))
            except EnsembleFailed:
                await self._connection.close()
                raise

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
        name, schema = tool.name, dict(tool.input_schema)

        async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
            return await self._invoke(name, arguments, context)

        invoker = Invoker(
            name=f"{self._name}/{name}",
            description=repair_text(tool.description or tool.title or ""),
            arguments_schema=schema,
            invoke=invoke,
            ensemble=self._name,
            outside=open_world,
            sends=open_world and not reads_only,
            timeout_seconds=self._settings.call_seconds,
        )
        return self._settings.settle(invoker, reads_only=reads_only)

    async def _invoke(
        self, name: str, arguments: str, context: InvocationContext
    ) -> InvocationOutput:
        try:
            values = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise ArgumentsInvalid(f"This is not a JSON object: {error}") from error

        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.report_progress(message or "", done=progress, total=total)

        await self._connect()
        result = await self._connection.request(
            self._settings.call_seconds,
            f"calling {name}",
            lambda client: client.call_tool(
                name, values, progress_callback=report, meta=self._tell_conversation(context)
            ),
        )
        return assimilate_result(result)

    def _tell_conversation(self, context: InvocationContext) -> Any:
        """What lets the server keep something for each conversation, without knowing which it is.

        It is another one for each server, so that they cannot compare what they know.
        """
        if not context.conversation:
            return None
        words = f"{self._name}\0{context.conversation}".encode()
        return {CONVERSATION_KEY: sha256(words).hexdigest()[:32]}
