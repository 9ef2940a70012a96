"""A server made with the official package that asks back, and has something to read.

python mcp_asking.py
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import (
    Context,
    Elicit,
    ElicitationResult,
    Image,
    ListRoots,
    MCPServer,
    Resolve,
    Sample,
)
from mcp_types import (
    CreateMessageResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

app = MCPServer("asking", version="1.0")
READS = ToolAnnotations(read_only_hint=True)


class Booking(BaseModel):
    name: str = Field(min_length=2, title="Your name")
    seats: int = Field(default=2, ge=1, le=9)
    smoking: bool = False
    meal: Literal["fish", "beans"] = "beans"


async def ask_booking() -> Elicit[Booking]:
    return Elicit("Book a table?", Booking)


@app.tool(annotations=READS)
async def book(answer: Annotated[ElicitationResult[Booking], Resolve(ask_booking)]) -> str:
    """Book a table."""
    if answer.action != "accept":
        return answer.action
    data = answer.data
    return f"{data.name} {data.seats} {data.smoking} {data.meal}"


@app.tool(annotations=READS)
async def visit(address: str, ctx: Context) -> str:
    """Let a page be opened."""
    return (await ctx.elicit_url("Please pay.", address, "1")).action


async def ask_model() -> Sample:
    said = SamplingMessage(role="user", content=TextContent(type="text", text="Say something."))
    return Sample([said], max_tokens=50, system_prompt="Be brief.")


@app.tool(annotations=READS)
async def think(answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Ask the client's model."""
    content: Any = answer.content
    return f"{answer.model}: {content.text}"


async def ask_roots() -> ListRoots:
    return ListRoots()


@app.tool(annotations=READS)
async def where(answer: Annotated[ListRootsResult, Resolve(ask_roots)]) -> str:
    """List the client's folders."""
    return " ".join(str(root.uri) for root in answer.roots)


def grown() -> str:
    """Be new."""
    return "new"


@app.tool(annotations=READS)
async def grow(ctx: Context) -> str:
    """Have one tool more."""
    app.add_tool(grown, annotations=READS)
    if ctx.protocol_version == "2026-07-28":
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_tool_list_changed()
    return "grown"


lingering = {"begun": 0, "stopped": 0}


@app.tool(annotations=READS)
async def linger() -> str:
    """Return very late."""
    lingering["begun"] += 1
    try:
        await anyio.sleep(3600)
    finally:
        lingering["stopped"] += 1
    return "at last"


@app.tool(annotations=READS)
def count() -> str:
    """Report how many calls of `linger` have begun, and have been stopped."""
    return f"{lingering['begun']} {lingering['stopped']}"


@app.resource("notes://today", title="Today", description="What is to be done", mime_type="text/md")
def today() -> str:
    return "# Today"


@app.resource("notes://picture", mime_type="image/png")
def picture() -> bytes:
    return b"PNG"


@app.resource("notes://day/{day}", description="One day")
def some_day(day: str) -> str:
    return f"on {day}"


@app.prompt(title="Review", description="Look at something")
def review(code: str, style: str = "kind") -> list[Any]:
    return [f"Review {code}, be {style}.", Image(data=b"PNG", format="png")]


if __name__ == "__main__":
    app.run("stdio")
