from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

clock = MCPServer("clock")


@clock.tool(annotations=ToolAnnotations(read_only_hint=True))
def hour(city: str) -> int:
    """Tell the hour in a city."""
    return {"Oslo": 13, "Lima": 7}.get(city, 12)


@clock.tool()
def set_alarm(city: str) -> str:
    """Set an alarm."""
    return f"The alarm in {city} is set."


if __name__ == "__main__":
    clock.run("stdio")
