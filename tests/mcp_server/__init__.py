"""The tests of the MCP server."""
