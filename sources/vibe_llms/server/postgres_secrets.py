"""`PostgresSecretStore`: the secret that all servers of a database sign states with."""

from __future__ import annotations

from vibe_llms.server.secrets import produce_secret
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database


class PostgresSecretStore:
    """A `SecretStore` in PostgreSQL, read once by each server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret = b""

    async def access(self) -> bytes:
        """The secret."""
        if not self._secret:
            ((self._secret,),) = await self._database.fetch(
                "", "select vibe.access_secret('state', %s)", (produce_secret(),)
            )
        return self._secret


def produce_store(backend: Backend) -> PostgresSecretStore:
    """The secret in the database of a backend."""
    return PostgresSecretStore(access_database(backend))
