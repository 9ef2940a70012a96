"""`PostgresWindow`: requests to a provider in the last minute, counted across all servers."""

from __future__ import annotations

from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database


class PostgresWindow:
    """Request counter for rows with limits; see `vibe_llms.providers.limits.Window`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def enter(
        self, row: str, tokens: int, most_requests: int | None, most_tokens: int | None
    ) -> tuple[int | None, float, bool]:
        """Count a request if it fits; see `Window.enter`."""
        ((number, seconds, asked),) = await self._database.fetch(
            "",
            "select entered, seconds, asked from vibe.enter_limit(%s, %s, %s, %s)",
            (row, tokens, most_requests, most_tokens),
        )
        return number, seconds, asked

    async def record_usage(self, row: str, number: int, tokens: int) -> None:
        """Replace the estimate of a request by its actual use."""
        settle = "select vibe.settle_limit(%s, %s, %s)"
        await self._database.execute("", settle, (row, number, tokens))

    async def pause(self, row: str, seconds: float) -> None:
        """Prevent all servers from sending requests for some seconds."""
        await self._database.execute("", "select vibe.pause_limit(%s, %s)", (row, seconds))


def produce_store(backend: Backend) -> PostgresWindow:
    """Return the window that all servers of a backend's database share."""
    return PostgresWindow(access_database(backend))
