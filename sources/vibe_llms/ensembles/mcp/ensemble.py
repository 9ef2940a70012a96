"""`McpEnsemble`: the tools of one MCP server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import EnsembleFailed, InvokerInvalid, SessionLost
from vibe_llms.base.meta import CONVERSATION_KEY
from vibe_llms.base.network.offline import permit_request
from vibe_llms.conversations.hosts import EnsembleConfiguration
from vibe_llms.ensembles.mcp.answering import Answerer
from vibe_llms.ensembles.mcp.connection import McpConnection, require_packages
from vibe_llms.ensembles.mcp.contents import assimilate_result
from vibe_llms.ensembles.mcp.oauth import SignIn, produce_sign_in
from vibe_llms.ensembles.mcp.reading import (
    ResourceTemplate,
    ServerPrompt,
    ServerResource,
    assimilate_listed,
    assimilate_messages,
    assimilate_prompt,
    assimilate_read,
    assimilate_template,
    gather_pages,
)
from vibe_llms.ensembles.mcp.settings import LOADING_VARIABLES, McpSettings
from vibe_llms.ensembles.mcp.tokens import TokenStore
from vibe_llms.ensembles.mcp.tool_lists import ServerTool, ToolListFile, assimilate_tool
from vibe_llms.invocation.checks import SchemaCheck
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.limits import Pause, SharedLimits
from vibe_llms.invocation.other_names import OTHER_NAMES, OtherNames
from vibe_llms.invocation.questions import decline
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.contents import Content
from vibe_llms.messages.events import Notice

#: Maximum restarts of a server that answers no call in between.
MAX_RESTARTS = 3
_RESTART_SECONDS = 0.5
_REFRESH_SECONDS = 0.1
#: End of the command of the interpreter that comes with the library.
_INTERPRETER = ("-m", "vibe_llms.interpreter")
_NO_CAGE = "it runs without a cage: its code can use the network, your files, and your programs"

T = TypeVar("T")
_LOGGER = get_logger("vibe_llms.ensembles.mcp")


class McpEnsemble:
    """A server that is started, or connected to by its URL, when it is opened."""

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        read = configuration.configuration
        self._name = name
        self._offline = read.offline
        self._settings = read.read(McpSettings, configuration.settings, "ensembles", name)
        settings = self._settings
        if bool(settings.command) == bool(settings.url):
            raise read.error(
                "a server must have either a command or a url", "ensembles", name, "command"
            )
        for variable in settings.environment:
            if variable in LOADING_VARIABLES:
                raise read.error(
                    "it can make the program load other code, so it is not allowed",
                    "ensembles",
                    name,
                    "environment",
                    variable,
                )
        settings.remember_keys()
        self._limits = SharedLimits()
        self._answerer = Answerer(name, settings, configuration.host, self._limits)
        self._keys_file = read.places.keys_file
        self._vault = configuration.host.vault
        self._notify = configuration.host.notify
        self._left_out: set[tuple[str, str]] = set()
        # Nobody can sign in if the session cannot ask a user.
        self._asks = configuration.host.elicitor not in (None, decline)
        self._connection = self._produce_connection(settings)
        self._list = ToolListFile(read.places.state, name)
        self._tools: dict[str, ServerTool] = {}
        self._invokers: tuple[Invoker, ...] = ()
        #: Settings of the current or most recent connection.
        self._begun: McpSettings | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._restarts = 0
        self._refresh: asyncio.Task[None] | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self._stale = False

    @property
    def name(self) -> str:
        """Name of its row."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """Tools of the server's most recent list."""
        return self._invokers

    @property
    def origin(self) -> str:
        """Command that starts the server, or its URL."""
        return self._settings.origin

    @property
    def details(self) -> Mapping[str, str]:
        """Protocol version, and the server's name and version."""
        return self._connection.details

    def recall(self) -> bool:
        """Offer the tools that the server listed in an earlier session, if the list is still valid.

        The first call then starts the server.
        """
        # The list of a server with a URL may depend on who signs in.
        if self._begun is not None or self._settings.url:
            return False
        tools = self._list.read(self._expand())
        if tools is None:
            return False
        if [*self._tools.values()] != [*tools]:
            require_packages(self._name, self._settings)
            self._offer(tools)
        return True

    async def open(self) -> None:
        """Start or connect to the server and list its tools."""
        self._restarts = 0
        await self._connect()

    async def close(self) -> None:
        """End the connection and the server's process."""
        self._closed = True
        # Cancels an opening in progress; `_connect` then refuses to open another connection.
        await self._connection.close()
        async with self._opening:
            await self._connection.close()
        ending = [*self._retired, *([self._refresh] if self._refresh is not None else [])]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def invoke(self, name: str, arguments: str = "{}") -> InvocationOutput:
        """Call a tool without a model and without approval; `arguments` is JSON."""
        canonical = name if name.startswith(f"{self._name}/") else f"{self._name}/{name}"
        found = [one for one in self._invokers if one.name == canonical]
        if not found:
            known = ", ".join(one.name for one in self._invokers) or "none"
            raise InvokerInvalid(f"{self._name!r} has no tool {name!r}; known tools: {known}")
        invocation = InvocationCanister(name=canonical, arguments=arguments)
        context = InvocationContext("", invocation, lambda *_, **__: None)
        return await found[0].invoke(arguments, context)

    async def survey_prompts(self) -> Sequence[ServerPrompt]:
        """List the server's prompts; empty if it does not support them."""
        return await self._gather("prompts", "list_prompts", assimilate_prompt)

    async def read_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> Sequence[Canister]:
        """Fill in a prompt, and return the messages to begin a conversation with."""
        filled = dict(arguments or {})
        result = await self._request(
            self._settings.call_seconds,
            f"reading the prompt {name}",
            lambda client: client.get_prompt(name, filled),
        )
        return assimilate_messages(result)

    async def survey_resources(self) -> Sequence[ServerResource]:
        """List the server's resources; empty if it does not support them."""
        return await self._gather("resources", "list_resources", assimilate_listed)

    async def survey_templates(self) -> Sequence[ResourceTemplate]:
        """List the URI templates of further resources."""
        return await self._gather("resources", "list_resource_templates", assimilate_template)

    async def read_resource(self, uri: str) -> Sequence[Content]:
        """Read a resource by its URI: text, images, audio, files."""
        result = await self._request(
            self._settings.call_seconds,
            f"reading {uri}",
            lambda client: client.read_resource(uri),
        )
        return assimilate_read(result)

    def _expand(self) -> McpSettings:
        try:
            settings = self._settings.expand(os.environ)
        except KeyError as error:
            raise EnsembleFailed(
                f"opening: its row uses ${{{error.args[0]}}}, which is not set in the "
                "environment; set it",
                ensemble=self._name,
            ) from error
        settings.remember_keys()
        return settings

    def _produce_connection(self, settings: McpSettings) -> McpConnection:
        return McpConnection(
            self._name,
            settings,
            limits=self._limits,
            callbacks=self._answerer.callbacks(),
            produce_sign_in=partial(self._produce_sign_in, settings),
            changed=self._refresh_soon,
            refuse=self._leave_out,
            offline=self._offline,
        )

    async def _produce_sign_in(
        self, settings: McpSettings, notify: Callable[[Exception], None]
    ) -> SignIn:
        return await produce_sign_in(
            self._name,
            settings,
            TokenStore(self._name, settings.url, self._vault),
            self._answerer.ask if self._asks else None,
            notify,
            self._limits,
            self._keys_file,
        )

    async def _connect(self) -> None:
        async with self._opening:
            if self._closed:
                raise EnsembleFailed("it has been closed", ensemble=self._name)
            if url := self._settings.url:
                purpose = f"a connection of the ensemble {self._name!r}"
                permit_request(url, purpose, offline=self._offline)
            if self._connection.alive:
                return
            await self._wait_before_restart()
            if self._connection.has_lost_session:
                # Other calls may still receive results, or the error that the session is lost.
                self._retire(self._connection)
            else:
                await self._connection.close()
            if self._closed:
                raise EnsembleFailed("it has been closed", ensemble=self._name)
            self._begun = self._expand()
            self._connection = self._produce_connection(self._begun)
            try:
                await self._connection.open()
                await self._list_tools()
            except EnsembleFailed:
                self._list.forget()
                await self._connection.close()
                raise

    def _retire(self, connection: McpConnection) -> None:
        task = asyncio.create_task(connection.close_when_idle(), name=f"mcp {self._name} ends")
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    async def _wait_before_restart(self) -> None:
        """Wait longer before each restart; raise `EnsembleFailed` after `MAX_RESTARTS`."""
        if self._restarts > MAX_RESTARTS:
            raise EnsembleFailed(
                f"it was restarted {MAX_RESTARTS} times and answered no call, so it is not "
                "used until a conversation names it again",
                ensemble=self._name,
            )
        if self._restarts > 1:
            await asyncio.sleep(_RESTART_SECONDS * 2 ** (self._restarts - 2))
        self._restarts += 1

    async def _request(
        self,
        seconds: float,
        phase: str,
        call: Callable[[Any], Awaitable[T]],
        pause: Pause = nullcontext,
    ) -> T:
        """Return the server's answer; reconnect if the server ended or lost the session."""
        with self._limits.register(pause):
            await self._connect()
            try:
                answer = await self._connection.request(seconds, phase, call)
            except SessionLost:
                # The server did not carry out the request, so it is safe to repeat.
                await self._connect()
                answer = await self._connection.request(seconds, phase, call)
        self._restarts = min(self._restarts, 1)
        return answer

    def _refresh_soon(self) -> None:
        """Schedule a new listing after a change of tools; changes in quick succession share one."""
        self._stale = True
        if self._closed or (self._refresh is not None and not self._refresh.done()):
            return
        self._refresh = asyncio.create_task(self._refresh_tools(), name=f"mcp {self._name} tools")

    async def _refresh_tools(self) -> None:
        while self._stale:
            await asyncio.sleep(_REFRESH_SECONDS)
            # Cleared first, so that changes during the listing cause another one.
            self._stale = False
            try:
                await self._list_tools()
            except EnsembleFailed as error:
                _LOGGER.warning("the tools of %s were not listed again: %s", self._name, error)

    async def _list_tools(self) -> None:
        seconds: list[float] = []

        async def walk(client: Any) -> list[Any]:
            async def turn(cursor: str | None) -> Any:
                page = await client.list_tools(cursor=cursor)
                seconds.append(page.ttl_ms / 1000)
                return page

            return await self._walk(turn, "tools")

        listed = await self._connection.request(self._settings.list_seconds, "listing", walk)
        tools: dict[str, ServerTool] = {}
        for tool in map(assimilate_tool, listed):
            if tool.name in tools:
                self._leave_out(tool.name, "it is listed twice, and the first one is offered")
            tools.setdefault(tool.name, tool)
        self._offer([*tools.values()])
        if self._begun is not None and not self._settings.url:
            kept = [*tools.values()]
            await asyncio.to_thread(self._list.keep, self._begun, kept, min(seconds))

    def _offer(self, tools: Sequence[ServerTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        for tool in tools:
            if tool.needs_task:
                self._leave_out(tool.name, "it runs only as a task, which is not supported")
        self._invokers = tuple(self._produce_invoker(one) for one in tools if not one.needs_task)

    def _leave_out(self, name: str, reason: str) -> None:
        """Report once that a tool of a list is not offered, and why."""
        if (name, reason) not in self._left_out:
            self._left_out.add((name, reason))
            text = f"{self._name}: the tool {name} is not offered: {reason}"
            self._notify(Notice("ensemble", text))

    async def _gather(
        self, capability: str, method: str, assimilate: Callable[[Any], T]
    ) -> Sequence[T]:
        async def walk(client: Any) -> list[Any]:
            if getattr(client.server_capabilities, capability) is None:
                return []
            return await self._walk(getattr(client, method), capability)

        found = await self._request(self._settings.list_seconds, "listing", walk)
        return [assimilate(one) for one in found]

    async def _walk(self, turn: Callable[..., Awaitable[Any]], what: str) -> list[Any]:
        async def turn_page(cursor: str | None) -> tuple[list[Any], str | None]:
            page = await turn(cursor=cursor)
            items = "resource_templates" if hasattr(page, "resource_templates") else what
            return getattr(page, items), page.next_cursor

        return await gather_pages(self._name, what, turn_page)

    def _produce_invoker(self, tool: ServerTool) -> Invoker:
        schema = dict(tool.arguments_schema)
        check = SchemaCheck(schema, trusted=False)

        async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
            return await self._invoke(tool, seconds, await check.run(arguments), context)

        invoker = Invoker(
            name=f"{self._name}/{tool.name}",
            description=tool.description,
            arguments_schema=schema,
            invoke=invoke,
            check=check,
            ensemble=self._name,
            outside=tool.open_world,
            # A read-only tool may still send its arguments to others.
            sends=tool.open_world,
            caution=_NO_CAGE if self._settings.cage == "none" else "",
            annotations=tool.annotations,
        )
        if self._settings.command[-2:] == _INTERPRETER:
            names = OTHER_NAMES.get(f"python/{tool.name}", OtherNames())
            invoker = msgspec.structs.replace(invoker, other_names=names)
        settled = self._settings.apply(invoker, reads_only=tool.reads_only)
        seconds = settled.timeout_seconds or self._settings.call_seconds
        if settled.timeout_seconds is None:
            # Time to restart a server that has ended.
            spare = self._settings.open_seconds + self._settings.list_seconds
            settled = msgspec.structs.replace(settled, timeout_seconds=seconds + spare)
        return settled

    async def _invoke(
        self, tool: ServerTool, seconds: float, values: dict[str, Any], context: InvocationContext
    ) -> InvocationOutput:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.report_progress(message or "", done=progress, total=total)

        def call(client: Any) -> Awaitable[Any]:
            if self._tools.get(tool.name) != tool:
                raise EnsembleFailed(
                    f"calling {tool.name}: its server has changed the tool's description, so "
                    "it was not called",
                    ensemble=self._name,
                )
            answer: Awaitable[Any] = client.call_tool(
                tool.name,
                values,
                progress_callback=report,
                meta=self._describe_conversation(context),
            )
            return answer

        with self._answerer.serve(context):
            result = await self._request(seconds, f"calling {tool.name}", call, context.pause_limit)
        return assimilate_result(result)

    def _describe_conversation(self, context: InvocationContext) -> Any:
        """Return a value with which the server can keep state for each conversation.

        It is a hash that differs for each server, so servers cannot compare conversations.
        """
        if not context.conversation:
            return None
        words = f"{self._name}\0{context.conversation}".encode()
        return {CONVERSATION_KEY: sha256(words).hexdigest()[:32]}
