"""A server made with the official package whose list of tools holds for a time.

    python mcp_lasting.py FOLDER

`list.json` of the folder has the description of its tool, and for how many milliseconds the list
holds; with `broken` in the folder the server ends at once. Each start is a line of `starts`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

SCHEMA = {"type": "object", "properties": {"b": {"type": "number"}, "a": {"maximum": 1.5}}}


async def serve(folder: Path) -> None:
    async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
        listed = json.loads((folder / "list.json").read_text())
        marks = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        tool = Tool(
            name="look", description=listed["description"], input_schema=SCHEMA, annotations=marks
        )
        return ListToolsResult(tools=[tool], ttl_ms=listed["holds"])

    async def call_tool(_context: Any, _params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="a meadow")])

    server = Server("lasting", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with (place / "starts").open("a") as starts:
        starts.write("started\n")
    if (place / "broken").exists():
        sys.exit("it is broken")
    anyio.run(serve, place)
