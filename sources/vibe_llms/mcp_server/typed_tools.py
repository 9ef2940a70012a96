"""Tools whose arguments and results are types, from which their schemas are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.mcp_server.calls import McpCall
from vibe_llms.mcp_server.catalog import Listing, ServedTool, ToolOutput

A = TypeVar("A", bound=Struct)

_DEFINITIONS = "$defs"


class ToolEntry(Struct, Generic[A], frozen=True, kw_only=True):
    """The entry of a tool in the list: its words, its types, and its effects.

    A tool with `reads` changes nothing. A tool that is `open` depends on more than the archive,
    such as a model.
    """

    name: str
    title: str
    description: str
    arguments: type[A]
    result: type[Struct]
    reads: bool = False
    open: bool = False
    destroys: bool = False
    repeatable: bool = False


def produce_tool(
    entry: ToolEntry[A], work: Callable[[A, McpCall], Awaitable[Struct | ToolOutput]]
) -> ServedTool:
    """Create a tool; `work` gets the checked arguments, and returns the result."""

    async def run(arguments: Mapping[str, Any], call: McpCall) -> ToolOutput:
        # Models write null for what they leave out.
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            read = msgspec.convert(given, entry.arguments)
        except msgspec.ValidationError as error:
            return ToolOutput.from_text(f"the arguments of {entry.name}: {error}", failed=True)
        result = await work(read, call)
        return result if isinstance(result, ToolOutput) else write_output(result)

    return ServedTool(describe_tool(entry), run)


def write_output(result: Struct, *, failed: bool = False) -> ToolOutput:
    """Return a result as an object, and as its JSON in a text for clients that read texts only."""
    text = msgspec.json.encode(result)
    structured = msgspec.json.decode(text)
    block = {"type": "text", "text": text.decode()}
    return ToolOutput(content=(block,), structured=structured, failed=failed)


@cache
def describe_tool(entry: ToolEntry[Any]) -> Listing:
    """Return the entry of a tool as the protocol writes it."""
    return {
        "name": entry.name,
        "title": entry.title,
        "description": entry.description,
        "inputSchema": _write_schema(entry.arguments),
        "outputSchema": _write_schema(entry.result),
        "annotations": {
            "title": entry.title,
            "readOnlyHint": entry.reads,
            "destructiveHint": entry.destroys,
            "idempotentHint": entry.reads or entry.repeatable,
            "openWorldHint": entry.open,
        },
    }


def _write_schema(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a type, with an object at its root, as the protocol wants."""
    (root,), definitions = msgspec.json.schema_components(
        [kind], ref_template=f"#/{_DEFINITIONS}/{{name}}"
    )
    name = root["$ref"].rpartition("/")[2]
    own = definitions.pop(name)
    # It repeats the name of the type.
    own.pop("title", None)
    return {**own, _DEFINITIONS: definitions} if definitions else own
