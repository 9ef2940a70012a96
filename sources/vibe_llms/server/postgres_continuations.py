"""`PostgresContinuations`: which stored conversation a history continues, at any server."""

from __future__ import annotations

from vibe_llms.configuration import Places
from vibe_llms.server.continuations import Place
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database


class PostgresContinuations:
    """`Continuations` of one user in PostgreSQL."""

    def __init__(self, database: Database, user: str) -> None:
        self._database = database
        self._user = user

    async def find(self, chain: bytes) -> Place | None:
        """Where a history is stored, if its last reply is one of ours."""
        rows = await self._database.fetch(
            self._user,
            "select conversation, canister, system from vibe.continuations "
            "where owner = %s and chain = %s",
            (self._user, chain),
        )
        return Place(*rows[0]) if rows else None

    async def put(self, chain: bytes, place: Place) -> None:
        """Remember where a history ends; the newest place of equal histories counts."""
        await self._database.execute(
            self._user,
            "insert into vibe.continuations (owner, chain, conversation, canister, system) "
            "values (%s, %s, %s, %s, %s) on conflict (owner, chain) do update set "
            "conversation = excluded.conversation, canister = excluded.canister, "
            "system = excluded.system",
            (self._user, chain, place.conversation, place.canister, place.system),
        )

    async def forget(self, conversation: str) -> None:
        """Nothing: the archive deletes them with the conversation."""

    async def close(self) -> None:
        """Nothing is open; the backend closes the database."""


class PostgresContinuationStore:
    """The `ContinuationStore` of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, user: str, places: Places) -> PostgresContinuations:
        """Those of one user."""
        del places
        return PostgresContinuations(self._database, user)


def produce_store(backend: Backend) -> PostgresContinuationStore:
    """The continuations of all users in the database of a backend."""
    return PostgresContinuationStore(access_database(backend))
