"""MCP servers as ensembles. Only this folder imports the official package, `mcp`."""

from vibe_llms.conversations.hosts import register_ensemble
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble

register_ensemble("mcp", McpEnsemble)

__all__ = ["McpEnsemble"]
