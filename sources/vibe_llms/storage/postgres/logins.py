"""`PostgresLoginStore`: the logins at all servers of a database, by the hashes of their tokens."""

# ruff: noqa: S608  (all of it is made of constants)

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.storage.backends import Backend
from vibe_llms.storage.logins import MOST_LOGINS, Login, produce_login
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.pipelines import Statement
from vibe_llms.storage.users import hash_key

_KEY = "coalesce((select key_hash from vibe.users where owner = %(owner)s), '')"
_REMOVE_OLD = (
    "delete from vibe.logins where owner = %(owner)s and (expires <= clock_timestamp() "
    f"or key_hash <> {_KEY} or identity not in (select identity from vibe.logins "
    "where owner = %(owner)s order by created desc limit %(left)s))"
)
_BEGIN = (
    "insert into vibe.logins (owner, identity, token_hash, key_hash, created, expires, client) "
    "values (%(owner)s, %(identity)s, %(token)s, "
    f"coalesce(%(key)s, {_KEY}), %(created)s, %(expires)s, %(client)s)"
)


class PostgresLoginStore:
    """A `LoginStore` in PostgreSQL. Changes apply to the next request at any server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, user: str, key: str, seconds: float, client: str) -> tuple[str, Login]:
        """Begin a login; see `LoginStore`."""
        token, login = produce_login(user, seconds, client)
        values = {
            "owner": user,
            "identity": login.id,
            "token": hash_key(token),
            "key": hash_key(key) if key else None,
            "created": login.created,
            "expires": login.expires,
            "client": login.client,
            "left": MOST_LOGINS - 1,
        }
        await self._database.run(
            [Statement(user, _REMOVE_OLD, values), Statement(user, _BEGIN, values)]
        )
        return token, login

    async def find(self, token: str) -> Login | None:
        """Return the valid login with a token."""
        query = "select * from vibe.find_login(%s)"
        rows = await self._database.fetch("", query, (hash_key(token),))
        return Login(*rows[0]) if rows else None

    async def survey(self, user: str = "") -> Sequence[Login]:
        """Return the valid logins of a user, or of all users, newest first."""
        query = "select * from vibe.survey_logins() where %(user)s in ('', name)"
        return [Login(*row) for row in await self._database.fetch("", query, {"user": user})]

    async def end(self, login: Login) -> None:
        """End a login."""
        removal = "delete from vibe.logins where owner = %s and identity = %s"
        await self._database.execute(login.user, removal, (login.user, login.id))


def produce_store(backend: Backend) -> PostgresLoginStore:
    """Return the logins of the database of a backend."""
    return PostgresLoginStore(access_database(backend))
