"""The MCP server: conversations, runs, memory and documents as tools of an MCP client.

The protocol is written here without a transport: `stdio` serves it to a program that started the
command, and the HTTP server serves it at `/mcp`. Both eras of the protocol are spoken, up to
2025-11-25 with a handshake, and 2026-07-28 without.
"""
