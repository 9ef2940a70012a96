"""Groups of tools that open and close together: a program's functions, MCP servers and others."""
