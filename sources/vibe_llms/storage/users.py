"""Users of the server. Only hashes of their keys are stored.

A key has 256 random bits, so a plain SHA-256 of it cannot be reversed. In a home, the hashes are in
a SQLite file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, ValidationError

from vibe_llms.base.configuration import LOCAL, Configuration, Places, read_toml
from vibe_llms.base.databases import explain_failure, open_database
from vibe_llms.base.exceptions import ConfigurationError, RequestError
from vibe_llms.base.files import LARGEST_FILE, UntrustedFile, opened, require_trusted
from vibe_llms.base.folders import make_folder, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.storage.backends import Backend

if TYPE_CHECKING:
    import sqlite3

_KEY_PREFIX = "vl-"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LOCK_SECONDS = 10.0
_VERSION = 2
_LOGINS = """
create table logins (
    id text primary key, token_hash text not null, user text not null, key_hash text not null,
    created real not null, expires real not null, client text not null
) without rowid;
create index by_token on logins (token_hash)
"""
_TABLES = f"""
create table users (
    name text primary key, key_hash text not null, created text not null
) without rowid;
create index by_key on users (key_hash);
{_LOGINS}
"""


class User(Struct, frozen=True, rename="kebab"):
    """A user. `key_hash` is the SHA-256 of the key, in hexadecimal."""

    key_hash: str
    created: datetime


class UserStore(Protocol):
    """Store of users, which several servers and commands use at the same time."""

    async def survey(self) -> Mapping[str, User]:
        """Return the users by name."""
        ...

    async def find(self, key: str) -> str | None:
        """Return the name of the user who has a key."""
        ...

    async def require(self, name: str) -> None:
        """Raise a `RequestError` if the user does not exist."""
        ...

    async def add(self, name: str) -> str:
        """Add a user and return the key, which is not stored."""
        ...

    async def add_first(self) -> str:
        """Add the user `local` if there are no users, and return the key or an empty string.

        Of several servers that start at once, one gets the key.
        """
        ...

    async def rotate(self, name: str) -> str:
        """Replace the key of a user and return the new one."""
        ...

    async def remove(self, name: str) -> None:
        """Delete a user. The conversations stay."""
        ...

    async def keep(self, name: str, user: User) -> bool:
        """Give a new or existing user a key from another store. Return True if that is a change."""
        ...


class UserFile:
    """Users of one machine, in a SQLite file.

    Earlier versions kept them in `users.toml` in the same folder. Its users are moved once, and the
    old file is renamed.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        #: Stamp of the file, and the names found since, by hash of the key.
        self._found: tuple[tuple[int, bytes] | None, dict[str, str]] = None, {}

    def survey(self) -> Mapping[str, User]:
        """Return the users by name."""
        rows = self.ask("select name, key_hash, created from users order by name")
        return {
            name: User(key_hash, datetime.fromisoformat(created))
            for name, key_hash, created in rows
        }

    def recall(self, key: str) -> str | None:
        """Return the name of the user who has a key if it was found since the file last changed."""
        # The lookup uses a hash, so its time does not reveal anything about keys.
        return self._recall().get(hash_key(key))

    def find(self, key: str) -> str | None:
        """Return the name of the user who has a key. Wait while another process locks the file."""
        digest, names = hash_key(key), self._recall()
        if digest not in names:
            rows = self.ask("select name from users where key_hash = ?", digest)
            if not rows:
                return None
            names[digest] = rows[0][0]
        return names[digest]

    def _recall(self) -> dict[str, str]:
        stamp = self.read_stamp()
        if stamp != self._found[0]:
            self._found = stamp, {}
        return self._found[1]

    def require(self, name: str) -> None:
        """Raise a `RequestError` if the user does not exist."""
        if not self.ask("select 1 from users where name = ?", name):
            raise refuse_unknown(name)

    def add(self, name: str) -> str:
        """Add a user and return the key, which is not stored."""
        check_name(name)
        if not (key := self._add(name)):
            raise refuse_known(name)
        return key

    def add_first(self) -> str:
        """Add the user `local` if there are no users; see `UserStore`."""
        if self.ask("select 1 from users limit 1"):
            return ""
        # Another process may have added one in between.
        return self._add(LOCAL, "where not exists (select 1 from users)")

    def rotate(self, name: str) -> str:
        """Replace the key of a user and return the new one."""
        key = produce_key()
        with self.changing() as database:
            changed = database.execute(
                "update users set key_hash = ? where name = ?", (hash_key(key), name)
            )
            if not changed.rowcount:
                raise refuse_unknown(name)
        return key

    def remove(self, name: str) -> None:
        """Delete a user. The conversations stay."""
        with self.changing() as database:
            if not database.execute("delete from users where name = ?", (name,)).rowcount:
                raise refuse_unknown(name)
            database.execute("delete from logins where user = ?", (name,))

    def keep(self, name: str, user: User) -> bool:
        """Give a user the key of another store; see `UserStore`."""
        check_name(name)
        if self.ask(
            "select 1 from users where (name, key_hash, created) = (?, ?, ?)", *_row(name, user)
        ):
            return False
        with self.changing() as database:
            database.execute("insert or replace into users values (?, ?, ?)", _row(name, user))
        return True

    def _add(self, name: str, condition: str = "where true") -> str:
        key = produce_key()
        row = _row(name, User(hash_key(key), datetime.now(UTC)))
        with self.changing() as database:
            statement = f"insert or ignore into users select ?, ?, ? {condition}"
            added = database.execute(statement, row)
            return key if added.rowcount else ""

    def read_stamp(self) -> tuple[int, bytes] | None:
        """Return the inode and the change counter, which differ after each change to the file.

        Source: https://www.sqlite.org/fileformat.html, "File change counter".
        """
        try:
            with opened(self.file) as descriptor:
                return os.fstat(descriptor).st_ino, os.pread(descriptor, 4, 24)
        except OSError:
            return None

    def ask(self, statement: str, *values: str | float) -> list[tuple[str, ...]]:
        """Return the rows of a query, or none if there is no file."""
        if not (self.file.exists() or self._is_unmoved):
            return []
        with self._opened() as database:
            return database.execute(statement, values).fetchall()

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Change the file in a transaction, and create it if it does not exist."""
        with storage_errors(self.file):
            make_folder(self.file.parent)
        with self._opened() as database, _transaction(database):
            yield database

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        try:
            for path in (self.file.parent, self.file):
                with suppress(FileNotFoundError):
                    require_trusted(os.stat(path), path)
            with storage_errors(self.file), closing(self._open()) as database:
                if self._is_unmoved:
                    self._move(database)
                yield database
        except UntrustedFile as error:
            raise ConfigurationError(str(error.strerror), file=str(error.filename)) from error
        except sqlite3.OperationalError as error:
            raise explain_failure(error, "users", self.file) from error
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(
                f"not a list of users: {error}", file=str(self.file)
            ) from error

    def _open(self) -> sqlite3.Connection:
        return open_database(
            self.file,
            version=_VERSION,
            tables=_TABLES,
            upgrades={1: _LOGINS},
            seconds=_LOCK_SECONDS,
            # Unlike an index, it cannot be rebuilt.
            pragmas=("synchronous = full",),
        )

    @property
    def _old(self) -> Path:
        return self.file.with_name("users.toml")

    @property
    def _moved(self) -> Path:
        return self._old.with_suffix(".toml.moved")

    @property
    def _is_unmoved(self) -> bool:
        """True if `users.toml` has not been moved yet. A copy that is restored later is ignored."""
        return self._old.exists() and not self._moved.exists()

    def _move(self, database: sqlite3.Connection) -> None:
        """Import the users of `users.toml`, and rename the file."""
        with locked(self.file.parent, seconds=_LOCK_SECONDS):
            if not self._is_unmoved:
                return
            rows = [_row(name, user) for name, user in _read(self._old).items()]
            with _transaction(database):
                database.executemany("insert or ignore into users values (?, ?, ?)", rows)
            os.rename(self._old, self._moved)


class HomeUserStore:
    """The `UserStore` of a home."""

    def __init__(self, file: UserFile) -> None:
        self._file = file
        self._finding = asyncio.Lock()

    async def survey(self) -> Mapping[str, User]:
        """Return the users by name."""
        return self._file.survey()

    async def find(self, key: str) -> str | None:
        """Return the name of the user who has a key."""
        if (name := self._file.recall(key)) is not None:
            return name
        # Only one thread waits for a file that another process locks.
        async with self._finding:
            return await asyncio.to_thread(self._file.find, key)

    async def require(self, name: str) -> None:
        """Raise a `RequestError` if the user does not exist."""
        self._file.require(name)

    async def add(self, name: str) -> str:
        """Add a user and return the key, which is not stored."""
        return self._file.add(name)

    async def add_first(self) -> str:
        """Add the user `local` if there are no users; see `UserStore`."""
        return self._file.add_first()

    async def rotate(self, name: str) -> str:
        """Replace the key of a user and return the new one."""
        return self._file.rotate(name)

    async def remove(self, name: str) -> None:
        """Delete a user. The conversations stay."""
        self._file.remove(name)

    async def keep(self, name: str, user: User) -> bool:
        """Give a user the key of another store; see `UserStore`."""
        return self._file.keep(name, user)


def produce_home_users(backend: Backend) -> HomeUserStore:
    """Return the users of a home."""
    return HomeUserStore(find_users(backend.configuration))


def find_users(configuration: Configuration) -> UserFile:
    """Return the file with the users of a home."""
    return UserFile(configuration.places.data / "server" / "users.sqlite")


def find_user_places(places: Places, name: str) -> Places:
    """Return the places of a user: the home itself for `local`, otherwise a folder in it."""
    if name == LOCAL:
        return places
    folder = places.users / name
    # The server's configuration and provider keys serve all users.
    return Places(places.configuration, folder, folder)


def survey_homes(configuration: Configuration) -> Iterator[Places]:
    """Yield the places of each user, including removed users."""
    places = configuration.places
    yield places
    if places.users.is_dir():
        for name in sorted(os.listdir(places.users)):
            yield find_user_places(places, name)


def _read(file: Path) -> Mapping[str, User]:
    try:
        tree = read_toml(file, trusted=True, limit=LARGEST_FILE)
        users = msgspec.convert(tree, dict[str, User], strict=False)
    except ValidationError as error:
        raise ConfigurationError(f"not a list of users: {error}", file=str(file)) from error
    for name in users:
        # The name becomes the name of a folder.
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not a valid user name", file=str(file))
    return users


def produce_key() -> str:
    """Return a new key."""
    return _KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """Return the hash of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """Raise a `RequestError` if a name is not valid for a user."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is not a valid user name; use lower-case letters, digits, _ and -"
        )


def refuse_known(name: str) -> RequestError:
    """Return the error for a user that already exists."""
    return RequestError(
        f"user {name!r} already exists; to create a new key: vibe-llms users rotate {name}"
    )


def refuse_unknown(name: str) -> RequestError:
    """Return the error for a user that does not exist."""
    return RequestError(f"user {name!r} not found; see: vibe-llms users list")


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Do all statements of the block or none; by itself, the connection commits each."""
    with database:
        database.execute("begin immediate")
        yield


def _row(name: str, user: User) -> tuple[str, str, str]:
    return name, user.key_hash, user.created.isoformat()
