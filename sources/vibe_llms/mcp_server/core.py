"""`McpServer`: answers the requests of both eras, without a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from vibe_llms.mcp_server.calls import InputRequired, McpCall, McpChannel
from vibe_llms.mcp_server.catalog import McpCatalog, ToolOutput
from vibe_llms.mcp_server.eras import (
    HANDSHAKE_VERSIONS,
    LEVELS,
    SERVER_KEY,
    STATELESS_VERSIONS,
    McpClient,
)
from vibe_llms.mcp_server.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    ProtocolError,
    RpcRequest,
)
from vibe_llms.mcp_server.states import StateSeal

#: Milliseconds for which clients may keep a list that changes with the configuration only.
_LIST_MS = 60_000
#: Maximum number of values of a completion. Source: MCP 2025-11-25, "Completion".
_MOST_COMPLETIONS = 100
#: Versions whose results have the error code for unknown resources that later ones dropped.
_OLD_CODES = frozenset(HANDSHAKE_VERSIONS)
#: Answers a request.
_Handler = Callable[[RpcRequest, McpCall], Awaitable[dict[str, Any]]]


class McpIdentity(Struct, frozen=True, kw_only=True):
    """Name, version and instructions of a server."""

    name: str
    version: str
    title: str = ""
    instructions: str = ""

    def describe(self) -> Mapping[str, Any]:
        """Return what the protocol calls an implementation."""
        described = {"name": self.name, "version": self.version}
        return {**described, "title": self.title} if self.title else described


class McpServer:
    """Answers the requests of one user's clients.

    `describe_error` returns the text for an error of a tool, and logs unexpected errors.
    """

    def __init__(
        self,
        identity: McpIdentity,
        catalog: McpCatalog,
        seal: StateSeal,
        describe_error: Callable[[Exception], str],
    ) -> None:
        self._identity = identity
        self._catalog = catalog
        self._seal = seal
        self._describe_error = describe_error
        both: dict[str, _Handler] = {"tools/list": self._list_tools, "tools/call": self._call_tool}
        if catalog.resources is not None:
            both |= {
                "resources/list": self._list_resources,
                "resources/templates/list": self._list_templates,
                "resources/read": self._read_resource,
                "completion/complete": self._complete,
            }
        if catalog.prompts is not None:
            both |= {"prompts/list": self._list_prompts, "prompts/get": self._get_prompt}
        self._stateless: Mapping[str, _Handler] = {**both, "server/discover": self._discover}
        self._handshake: Mapping[str, _Handler] = {
            **both,
            "ping": self._ping,
            "logging/setLevel": self._check_level,
        }

    def introduce(self, client: McpClient) -> Mapping[str, Any]:
        """Return the result of `initialize`."""
        return {
            "protocolVersion": client.version,
            "capabilities": self._capabilities,
            "serverInfo": self._identity.describe(),
            "instructions": self._identity.instructions,
        }

    async def answer(
        self, request: RpcRequest, client: McpClient, channel: McpChannel
    ) -> Mapping[str, Any]:
        """Return the result of a request other than `initialize`, or raise `ProtocolError`."""
        handlers = self._stateless if client.stateless else self._handshake
        handler = handlers.get(request.method)
        if handler is None:
            raise ProtocolError(METHOD_NOT_FOUND, f"method {request.method!r} not found")
        call = McpCall(request, client, channel, self._seal)
        try:
            result = {"resultType": "complete", **await handler(request, call)}
        except InputRequired as required:
            result = dict(call.describe(required))
        except ProtocolError:
            raise
        except Exception as error:
            text = self._describe_error(error)
            if handler != self._call_tool:
                raise ProtocolError(INTERNAL_ERROR, text) from error
            # Models read the results of tools, but no errors of the protocol.
            result = _write_output(ToolOutput.from_text(text, failed=True))
            result["resultType"] = "complete"
        if not client.stateless:
            for member in ("resultType", "ttlMs", "cacheScope"):
                result.pop(member, None)
            return result
        return {**result, "_meta": {SERVER_KEY: self._identity.describe()}}

    @property
    def _capabilities(self) -> Mapping[str, Any]:
        capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
        if self._catalog.resources is not None:
            capabilities |= {"resources": {}, "completions": {}}
        if self._catalog.prompts is not None:
            capabilities |= {"prompts": {}}
        return capabilities

    async def _discover(self, _: RpcRequest, __: McpCall) -> dict[str, Any]:
        return _cached(
            _LIST_MS,
            supportedVersions=[*STATELESS_VERSIONS],
            capabilities=self._capabilities,
            instructions=self._identity.instructions,
        )

    async def _ping(self, _: RpcRequest, __: McpCall) -> dict[str, Any]:
        return {}

    async def _check_level(self, request: RpcRequest, _: McpCall) -> dict[str, Any]:
        read_level(request)
        return {}

    async def _list_tools(self, request: RpcRequest, _: McpCall) -> dict[str, Any]:
        _refuse_cursor(request)
        return _cached(_LIST_MS, tools=[tool.listing for tool in self._catalog.tools])

    async def _call_tool(self, request: RpcRequest, call: McpCall) -> dict[str, Any]:
        name, arguments = _read_text(request, "name"), request.params.get("arguments") or {}
        tool = next((one for one in self._catalog.tools if one.name == name), None)
        if tool is None:
            raise ProtocolError(INVALID_PARAMS, f"tool {name!r} not found; see tools/list")
        if not isinstance(arguments, Mapping):
            raise ProtocolError(INVALID_PARAMS, "arguments is an object")
        return _write_output(await tool.run(arguments, call))

    async def _list_resources(self, request: RpcRequest, _: McpCall) -> dict[str, Any]:
        assert self._catalog.resources is not None
        page = await self._catalog.resources.list(_read_text(request, "cursor", ""))
        listed = _cached(0, resources=[*page.resources])
        return {**listed, "nextCursor": page.cursor} if page.cursor else listed

    async def _list_templates(self, request: RpcRequest, _: McpCall) -> dict[str, Any]:
        assert self._catalog.resources is not None
        _refuse_cursor(request)
        templates = await self._catalog.resources.list_templates()
        return _cached(_LIST_MS, resourceTemplates=[*templates])

    async def _read_resource(self, request: RpcRequest, call: McpCall) -> dict[str, Any]:
        assert self._catalog.resources is not None
        uri = _read_text(request, "uri")
        contents = await self._catalog.resources.read(uri)
        if contents is None:
            code = RESOURCE_NOT_FOUND if call.client.version in _OLD_CODES else INVALID_PARAMS
            raise ProtocolError(code, f"resource {uri!r} not found", {"uri": uri})
        return _cached(0, contents=[*contents])

    async def _complete(self, request: RpcRequest, _: McpCall) -> dict[str, Any]:
        assert self._catalog.resources is not None
        reference, argument = request.params.get("ref"), request.params.get("argument")
        if not isinstance(reference, Mapping) or not isinstance(argument, Mapping):
            raise ProtocolError(INVALID_PARAMS, "completion needs ref and argument, both objects")
        values: list[str] = []
        if reference.get("type") == "ref/resource":
            asked = [str(one.get(key) or "") for one, key in _asked(reference, argument)]
            values = [*await self._catalog.resources.complete(*asked)]
        completion = {
            "values": values[:_MOST_COMPLETIONS],
            "total": len(values),
            "hasMore": len(values) > _MOST_COMPLETIONS,
        }
        return {"completion": completion}

    async def _list_prompts(self, request: RpcRequest, _: McpCall) -> dict[str, Any]:
        assert self._catalog.prompts is not None
        _refuse_cursor(request)
        return _cached(_LIST_MS, prompts=[*await self._catalog.prompts.list()])

    async def _get_prompt(self, request: RpcRequest, call: McpCall) -> dict[str, Any]:
        assert self._catalog.prompts is not None
        name, arguments = _read_text(request, "name"), request.params.get("arguments") or {}
        if not isinstance(arguments, Mapping) or not all(
            isinstance(one, str) for one in arguments.values()
        ):
            raise ProtocolError(INVALID_PARAMS, "arguments is an object of strings")
        prompt = await self._catalog.prompts.get(name, arguments, call)
        if prompt is None:
            raise ProtocolError(INVALID_PARAMS, f"prompt {name!r} not found; see prompts/list")
        return dict(prompt)


def _write_output(output: ToolOutput) -> dict[str, Any]:
    result: dict[str, Any] = {"content": [*output.content], "isError": output.failed}
    if output.structured is not None:
        result["structuredContent"] = output.structured
    return result


def read_level(request: RpcRequest) -> str:
    """Return the severity that `logging/setLevel` sets."""
    level = _read_text(request, "level")
    if level not in LEVELS:
        raise ProtocolError(INVALID_PARAMS, f"level is one of {', '.join(LEVELS)}")
    return level


def _asked(
    reference: Mapping[str, Any], argument: Mapping[str, Any]
) -> tuple[tuple[Mapping[str, Any], str], ...]:
    return (reference, "uri"), (argument, "name"), (argument, "value")


def _cached(milliseconds: int, **members: Any) -> dict[str, Any]:
    """Return a result that the client may keep for some time; it belongs to one user."""
    return {**members, "ttlMs": milliseconds, "cacheScope": "private"}


def _read_text(request: RpcRequest, member: str, default: str | None = None) -> str:
    value = request.params.get(member, default)
    if not isinstance(value, str):
        raise ProtocolError(INVALID_PARAMS, f"{request.method} needs {member}, a string")
    return value


def _refuse_cursor(request: RpcRequest) -> None:
    """Raise `ProtocolError` for a cursor of a list that has one page."""
    if request.params.get("cursor"):
        raise ProtocolError(INVALID_PARAMS, "cursor is not valid: the list has one page")
