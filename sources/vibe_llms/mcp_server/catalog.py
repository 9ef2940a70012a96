"""Things that an MCP server offers: tools, resources and prompts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from vibe_llms.mcp_server.calls import McpCall

#: A member of the protocol in JSON.
Listing: TypeAlias = Mapping[str, Any]


class ToolOutput(Struct, frozen=True, kw_only=True):
    """The result of a tool: blocks of content, and the same as one object if it has a schema."""

    content: Sequence[Listing]
    structured: Listing | None = None
    failed: bool = False

    @classmethod
    def from_text(cls, text: str, *, failed: bool = False) -> ToolOutput:
        """Return an output that is a text."""
        return cls(content=({"type": "text", "text": text},), failed=failed)


class ServedTool(Struct, frozen=True):
    """A tool: its entry in the list, and the function that runs it with its arguments."""

    listing: Listing
    run: Callable[[Mapping[str, Any], McpCall], Awaitable[ToolOutput]]

    @property
    def name(self) -> str:
        """Name of the tool."""
        name: str = self.listing["name"]
        return name


class ResourcePage(Struct, frozen=True):
    """A page of a list of resources, and the cursor of the next one; empty for the last."""

    resources: Sequence[Listing]
    cursor: str = ""


class ResourceSource(Protocol):
    """The resources of a server."""

    async def list(self, cursor: str) -> ResourcePage:
        """Return a page of resources."""
        ...

    async def list_templates(self) -> Sequence[Listing]:
        """Return the templates of addresses."""
        ...

    async def read(self, uri: str) -> Sequence[Listing] | None:
        """Return the contents of a resource; None if it does not exist."""
        ...

    async def complete(self, uri: str, argument: str, begun: str) -> Sequence[str]:
        """Return values that an argument of a template may have, given its beginning."""
        ...


class PromptSource(Protocol):
    """The prompts of a server."""

    async def list(self) -> Sequence[Listing]:
        """Return all prompts."""
        ...

    async def get(self, name: str, arguments: Mapping[str, str], call: McpCall) -> Listing | None:
        """Return a prompt with its arguments filled in; None if it does not exist."""
        ...


class McpCatalog(Struct, frozen=True, kw_only=True):
    """Everything that a server offers to one user."""

    tools: Sequence[ServedTool] = ()
    resources: ResourceSource | None = None
    prompts: PromptSource | None = None
