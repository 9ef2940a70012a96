"""Tools that live and die together: functions of a program, an MCP server, and what comes later."""
