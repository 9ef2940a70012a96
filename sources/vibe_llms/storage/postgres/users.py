"""`PostgresUserStore`: the users of all servers of a database, by the hashes of their keys."""

from __future__ import annotations

from collections.abc import Mapping

from vibe_llms.base.configuration import LOCAL
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.pipelines import Statement
from vibe_llms.storage.users import (
    User,
    check_name,
    hash_key,
    produce_key,
    refuse_known,
    refuse_unknown,
)

#: Key of the advisory lock under which users are added one by one: "user" in ASCII.
_LOCK = 0x75736572
_ADD = "insert into vibe.users (owner, key_hash) values (%s, %s) on conflict (owner) do nothing"
_ADD_FIRST = (
    "insert into vibe.users (owner, key_hash) select %s, %s "
    "where not exists (select from vibe.survey_keys()) on conflict (owner) do nothing"
)


class PostgresUserStore:
    """A `UserStore` in PostgreSQL. Changes apply to the next request at any server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def survey(self) -> Mapping[str, User]:
        """Return the users by name."""
        rows = await self._database.fetch("", "select * from vibe.survey_keys()")
        return {name: User(digest, created) for name, digest, created in rows}

    async def find(self, key: str) -> str | None:
        """Return the name of the user who has a key."""
        # The lookup uses a hash, so its time does not reveal anything about keys.
        rows = await self._database.fetch("", "select vibe.find_user(%s)", (hash_key(key),))
        return rows[0][0] if rows else None

    async def require(self, name: str) -> None:
        """Raise a `RequestError` if the user does not exist."""
        known = "select owner from vibe.users where owner = %s"
        if not await self._database.fetch(name, known, (name,)):
            raise refuse_unknown(name)

    async def add(self, name: str) -> str:
        """Add a user and return the key, which is not stored."""
        check_name(name)
        if not (key := await self._add(name)):
            raise refuse_known(name)
        return key

    async def add_first(self) -> str:
        """Add the user `local` if there are no users; see `UserStore`."""
        return await self._add(LOCAL, first=True)

    async def rotate(self, name: str) -> str:
        """Replace the key of a user and return the new one."""
        key = produce_key()
        change = "update vibe.users set key_hash = %s where owner = %s"
        if not await self._database.execute(name, change, (hash_key(key), name)):
            raise refuse_unknown(name)
        return key

    async def remove(self, name: str) -> None:
        """Delete a user. The conversations stay."""
        removed, _ = await self._database.run(
            [
                Statement(name, "delete from vibe.users where owner = %s", (name,)),
                Statement(name, "delete from vibe.logins where owner = %s", (name,)),
            ]
        )
        if not removed.count:
            raise refuse_unknown(name)

    async def keep(self, name: str, user: User) -> bool:
        """Give a user the key of another store; see `UserStore`."""
        check_name(name)
        changed = await self._database.execute(
            name,
            "insert into vibe.users as known (owner, key_hash, created) values (%s, %s, %s) "
            "on conflict (owner) do update "
            "set key_hash = excluded.key_hash, created = excluded.created "
            "where (known.key_hash, known.created) <> (excluded.key_hash, excluded.created)",
            (name, user.key_hash, user.created),
        )
        return changed == 1

    async def _add(self, name: str, *, first: bool = False) -> str:
        key = produce_key()
        # Serialized, because a statement only sees what was committed before it.
        _, made = await self._database.run(
            [
                Statement(name, "select pg_advisory_xact_lock(%s)", (_LOCK,)),
                Statement(name, _ADD_FIRST if first else _ADD, (name, hash_key(key))),
            ]
        )
        return key if made.count else ""


def produce_store(backend: Backend) -> PostgresUserStore:
    """Return the users of the database of a backend."""
    return PostgresUserStore(access_database(backend))
