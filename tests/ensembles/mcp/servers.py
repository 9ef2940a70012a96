"""Ensembles over the servers of these tests, and calls of their tools."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes import mcp_asking, mcp_server
from tests.fakes.warm import warm_command
from vibe_llms.base.configuration import load_configuration
from vibe_llms.conversations.hosts import EnsembleConfiguration, EnsembleHost
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble

ASKING = warm_command(mcp_asking.__file__)
FAKE = [sys.executable, str(Path(mcp_server.__file__))]
#: Limits for a loaded machine.
PATIENT = {"open-seconds": 60, "list-seconds": 60, "call-seconds": 60}
#: What row speaks which era.
ERAS = ("handshake", "stateless")


def produce_ensemble(host: EnsembleHost | None = None, **row: Any) -> McpEnsemble:
    """An ensemble `fake` by its row, not yet open."""
    settings = {**PATIENT, **row}
    given = EnsembleConfiguration(load_configuration(), settings, host or EnsembleHost())
    return McpEnsemble("fake", given)


@asynccontextmanager
async def opened(host: EnsembleHost | None = None, **row: Any) -> AsyncIterator[McpEnsemble]:
    """The same, open while the context is."""
    ensemble = produce_ensemble(host, **row)
    try:
        await ensemble.open()
        yield ensemble
    finally:
        await ensemble.close()
