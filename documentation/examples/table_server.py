"""A server that asks back, and has something to read."""

from typing import Annotated

from mcp.server.mcpserver import Elicit, ElicitationResult, MCPServer, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

tables = MCPServer("tables")


class Booking(BaseModel):
    name: str = Field(title="Your name")
    seats: int = Field(default=2, ge=1, le=9)


async def ask_booking() -> Elicit[Booking]:
    return Elicit("For whom is the table?", Booking)


@tables.tool(annotations=ToolAnnotations(read_only_hint=True))
def book(answer: Annotated[ElicitationResult[Booking], Resolve(ask_booking)]) -> str:
    """Book a table."""
    if answer.action != "accept":
        return "Nothing was booked."
    return f"{answer.data.seats} seats for {answer.data.name}."


@tables.resource("tables://menu", description="What there is to eat", mime_type="text/markdown")
def menu() -> str:
    return "- fish\n- beans"


@tables.prompt()
def order(dish: str) -> str:
    """Order a dish."""
    return f"I would like to have {dish}, please."


if __name__ == "__main__":
    tables.run("stdio")
