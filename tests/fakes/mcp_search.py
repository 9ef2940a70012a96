"""An MCP server with a search tool, made with the official package.

python mcp_search.py TEXT
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

app = MCPServer("duckduckgo", version="1.0")


@app.tool()
def search_web(query: str, max_results: int = 10) -> str:
    """Search the web."""
    if query == "nothing":
        return ""
    if query == "broken":
        raise ValueError("the engine is down")
    return sys.argv[1].replace("QUERY", query).replace("MAX", str(max_results))


if __name__ == "__main__":
    app.run("stdio")
