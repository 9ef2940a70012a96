"""Options of the command that starts the agent."""

from __future__ import annotations

from msgspec import Struct


class LaunchOptions(Struct, frozen=True, kw_only=True):
    """Settings of new sessions: an agent, a model, and rows of `[ensembles]` with tools."""

    model: str | None = None
    agent: str | None = None
    ensembles: tuple[str, ...] = ()
