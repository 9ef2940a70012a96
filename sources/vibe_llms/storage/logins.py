"""Logins of browsers. Only hashes of their tokens are stored, beside the users.

A login is valid until it expires, is ended, or the key of its user is another than at its begin. A
user of the command may have no key; then the login ends when the first one is made.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec import Struct

from vibe_llms.storage.backends import Backend
from vibe_llms.storage.users import UserFile, find_users, hash_key

#: Logins of a user at the same time; a new one ends the oldest.
MOST_LOGINS = 100
_LONGEST_CLIENT = 200
_VALID = (
    "select one.id, one.user, one.created, one.expires, one.client from logins one "
    "left join users on users.name = one.user "
    "where one.key_hash = coalesce(users.key_hash, '') and one.expires > ?"
)
_REMOVE_OLD = (
    "delete from logins where expires <= :now or user = :user and ("
    "key_hash <> coalesce((select key_hash from users where name = :user), '') or id not in ("
    "select id from logins where user = :user order by created desc limit :left))"
)
_BEGIN = (
    "insert into logins values (:id, :token, :user, coalesce("
    ":key, (select key_hash from users where name = :user), ''), :created, :expires, :client)"
)


class Login(Struct, frozen=True):
    """A login; `client` is the name with which its browser introduced itself."""

    id: str
    user: str
    created: datetime
    expires: datetime
    client: str


class LoginStore(Protocol):
    """Store of logins, which several servers and commands use at the same time."""

    async def begin(self, user: str, key: str, seconds: float, client: str) -> tuple[str, Login]:
        """Begin a login with a key, or without one, and return its token, which is not stored."""
        ...

    async def find(self, token: str) -> Login | None:
        """Return the valid login with a token."""
        ...

    async def survey(self, user: str = "") -> Sequence[Login]:
        """Return the valid logins of a user, or of all users, newest first."""
        ...

    async def end(self, login: Login) -> None:
        """End a login."""
        ...


class LoginFile:
    """Logins of one machine, in the file of its users."""

    def __init__(self, file: UserFile) -> None:
        self._file = file
        #: State of the file, and the logins found in it, by hash of the token.
        self._found: tuple[object, dict[str, Login]] = None, {}

    def begin(self, user: str, key: str, seconds: float, client: str) -> tuple[str, Login]:
        """Begin a login; see `LoginStore`."""
        token, login = produce_login(user, seconds, client)
        created, expires = login.created.timestamp(), login.expires.timestamp()
        values = {
            "now": created,
            "left": MOST_LOGINS - 1,
            "id": login.id,
            "token": hash_key(token),
            "user": user,
            "key": hash_key(key) if key else None,
            "created": created,
            "expires": expires,
            "client": login.client,
        }
        with self._file.changing() as database:
            database.execute(_REMOVE_OLD, values)
            database.execute(_BEGIN, values)
        return token, login

    def recall(self, token: str) -> Login | None:
        """Return the login with a token if it was found since the file last changed."""
        login = self._recall().get(hash_key(token))
        return login if login is not None and login.expires > datetime.now(UTC) else None

    def find(self, token: str) -> Login | None:
        """Return the login with a token. Wait while another process locks the file."""
        digest, found = hash_key(token), self._recall()
        rows = self._ask(" and one.token_hash = ?", digest)
        if rows:
            found[digest] = rows[0]
        return rows[0] if rows else None

    def survey(self, user: str = "") -> Sequence[Login]:
        """Return the valid logins of a user, or of all users, newest first."""
        one = " and one.user = ?" if user else ""
        return self._ask(f"{one} order by one.created desc", *filter(None, [user]))

    def end(self, login: Login) -> None:
        """End a login."""
        with self._file.changing() as database:
            database.execute("delete from logins where id = ?", (login.id,))

    def _recall(self) -> dict[str, Login]:
        stamp = self._file.read_stamp()
        if stamp != self._found[0]:
            self._found = stamp, {}
        return self._found[1]

    def _ask(self, condition: str, *values: str) -> list[Login]:
        rows = self._file.ask(f"{_VALID}{condition}", time.time(), *values)
        return [
            Login(
                identity,
                user,
                datetime.fromtimestamp(float(created), UTC),
                datetime.fromtimestamp(float(expires), UTC),
                client,
            )
            for identity, user, created, expires, client in rows
        ]


class HomeLoginStore:
    """The `LoginStore` of a home."""

    def __init__(self, file: LoginFile) -> None:
        self._file = file
        self._finding = asyncio.Lock()

    async def begin(self, user: str, key: str, seconds: float, client: str) -> tuple[str, Login]:
        """Begin a login; see `LoginStore`."""
        return await asyncio.to_thread(self._file.begin, user, key, seconds, client)

    async def find(self, token: str) -> Login | None:
        """Return the valid login with a token."""
        if (login := self._file.recall(token)) is not None:
            return login
        # Only one thread waits for a file that another process locks.
        async with self._finding:
            return await asyncio.to_thread(self._file.find, token)

    async def survey(self, user: str = "") -> Sequence[Login]:
        """Return the valid logins of a user, or of all users, newest first."""
        return await asyncio.to_thread(self._file.survey, user)

    async def end(self, login: Login) -> None:
        """End a login."""
        await asyncio.to_thread(self._file.end, login)


def produce_home_logins(backend: Backend) -> HomeLoginStore:
    """Return the logins of a home."""
    return HomeLoginStore(LoginFile(find_users(backend.configuration)))


def produce_login(user: str, seconds: float, client: str) -> tuple[str, Login]:
    """Return a new token and its login, of a client that introduced itself as `client`."""
    now = datetime.now(UTC)
    shown = "".join(one for one in client if one.isprintable())[:_LONGEST_CLIENT]
    login = Login(secrets.token_hex(6), user, now, now + timedelta(seconds=seconds), shown)
    return secrets.token_urlsafe(32), login
