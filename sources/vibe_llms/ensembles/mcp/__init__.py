"""MCP servers as ensembles. Only this folder imports the official package, `mcp`."""

from vibe_llms.ensembles.core import register
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble

register("mcp", McpEnsemble)

__all__ = ["McpEnsemble"]
