"""A server made with the official package, as people make theirs.

python mcp_official.py [KIND PORT]
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
from mcp.server.mcpserver import Audio, Context, Image, MCPServer
from mcp_types import ToolAnnotations

app = MCPServer("official", version="1.0")


HINTS = ToolAnnotations(read_only_hint=True, open_world_hint=False, idempotent_hint=True)


@app.tool(annotations=HINTS)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
async def slow(seconds: float, ctx: Context) -> str:
    """Take some time."""
    for step in range(3):
        await ctx.report_progress(step, 3, f"step {step}")
        await anyio.sleep(seconds)
    return "done"


@app.tool(structured_output=False)
def show() -> list[Any]:
    """Show a picture and a sound."""
    return ["a picture", Image(data=b"PNG", format="png"), Audio(data=b"WAV", format="wav")]


@app.tool()
def fail() -> str:
    """Fail."""
    raise LookupError("no such thing")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kind: Any = sys.argv[1]
        app.run(kind, host="127.0.0.1", port=int(sys.argv[2]))
    else:
        app.run("stdio")
