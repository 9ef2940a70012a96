"""Groups of tools that open and close together: functions of a program, MCP servers, and others."""
