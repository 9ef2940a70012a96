"""`PostgresSecretStore`: the secret with which all servers of a database sign states."""

from __future__ import annotations

from vibe_llms.server.secrets import produce_secret
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database


class PostgresSecretStore:
    """A `SecretStore` in PostgreSQL, read once per server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret = b""

    async def access(self) -> bytes:
        """Return the secret, creating it if necessary."""
        if not self._secret:
            ((self._secret,),) = await self._database.fetch(
                "", "select vibe.access_secret('state', %s)", (produce_secret(),)
            )
        return self._secret


def produce_store(backend: Backend) -> PostgresSecretStore:
    """Open the store of the secret in a backend's database."""
    return PostgresSecretStore(access_database(backend))
