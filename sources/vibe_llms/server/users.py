"""The users of the server and their keys, of which only hashes are kept.

A key is 256 random bits, so that a plain SHA-256 of it cannot be reversed. In a home, the hashes
are in a file, which a running server reads again when it has changed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct, ValidationError

from vibe_llms.configuration import LOCAL, Configuration, Places, read_toml
from vibe_llms.exceptions import ConfigurationError, RequestError
from vibe_llms.storage.backends import Backend, produce_part
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_PREFIX = "vl-"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LOCK_SECONDS = 10.0


class User(Struct, frozen=True, rename="kebab"):
    """A user; `key_hash` is the SHA-256 of the key, in hexadecimal."""

    key_hash: str
    created: datetime


class UserStore(Protocol):
    """Knows the users; several servers and commands use it at the same time."""

    async def survey(self) -> Mapping[str, User]:
        """The users by their names."""
        ...

    async def find(self, key: str) -> str | None:
        """The name of the user who has a key."""
        ...

    async def require(self, name: str) -> None:
        """`RequestError` if there is no such user."""
        ...

    async def add(self, name: str) -> str:
        """A new user; returns the key, which is not kept."""
        ...

    async def add_first(self) -> str:
        """The key of the user `local` if there is none yet; of several servers, one gets it."""
        ...

    async def rotate(self, name: str) -> str:
        """A new key for a user; the old one is not valid any more."""
        ...

    async def remove(self, name: str) -> None:
        """Delete a user; the conversations stay."""
        ...

    async def keep(self, name: str, user: User) -> bool:
        """Give a user the key of another store, new or not; returns whether that is a change."""
        ...


class UserFile:
    """The users in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._stamp: tuple[int, int, int] | None = None
        self._users: Mapping[str, User] = {}
        self._names: Mapping[str, str] = {}

    def survey(self) -> Mapping[str, User]:
        """The users by their names; the file is read again if it has changed."""
        try:
            status = os.stat(self.file)
        except FileNotFoundError:
            self._stamp, self._users, self._names = None, {}, {}
            return self._users
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._users = _read(self.file)
            self._names = {user.key_hash: name for name, user in self._users.items()}
            self._stamp = stamp
        return self._users

    def find(self, key: str) -> str | None:
        """The name of the user who has a key."""
        users, digest = self.survey(), hash_key(key)
        name = self._names.get(digest)
        # The table is one of hashes, so the time of a look-up says nothing about keys.
        if name is None or not hmac.compare_digest(users[name].key_hash, digest):
            return None
        return name

    def require(self, name: str) -> None:
        """`RequestError` if there is no such user."""
        _require(self.survey(), name)

    def add(self, name: str) -> str:
        """A new user; returns the key, which is not kept."""
        check_name(name)
        with self._changing() as users:
            if name in users:
                raise refuse_known(name)
            return _give_key(users, name, datetime.now(UTC))

    def add_first(self) -> str:
        """The key of the user `local` if there is none yet; of several servers, one gets it."""
        if LOCAL in self.survey():
            return ""
        with self._changing() as users:
            return "" if LOCAL in users else _give_key(users, LOCAL, datetime.now(UTC))

    def rotate(self, name: str) -> str:
        """A new key for a user; the old one is not valid any more."""
        with self._changing() as users:
            return _give_key(users, name, _require(users, name).created)

    def remove(self, name: str) -> None:
        """Delete a user; the conversations stay."""
        with self._changing() as users:
            _require(users, name)
            del users[name]

    def keep(self, name: str, user: User) -> bool:
        """Give a user the key of another store; see `UserStore`."""
        check_name(name)
        if self.survey().get(name) == user:
            return False
        with self._changing() as users:
            users[name] = user
        return True

    @contextmanager
    def _changing(self) -> Iterator[dict[str, User]]:
        with storage_errors(self.file):
            make_folder(self.file.parent)
            with locked(self.file.parent, seconds=_LOCK_SECONDS):
                users = dict(self.survey())
                yield users
                import tomli_w

                rows = {name: msgspec.to_builtins(user) for name, user in users.items()}
                replace_file(self.file, tomli_w.dumps(rows).encode())


class HomeUserStore:
    """The `UserStore` of a home."""

    def __init__(self, file: UserFile) -> None:
        self._file = file

    async def survey(self) -> Mapping[str, User]:
        """The users by their names."""
        return self._file.survey()

    async def find(self, key: str) -> str | None:
        """The name of the user who has a key."""
        return self._file.find(key)

    async def require(self, name: str) -> None:
        """`RequestError` if there is no such user."""
        self._file.require(name)

    async def add(self, name: str) -> str:
        """A new user; returns the key, which is not kept."""
        return self._file.add(name)

    async def add_first(self) -> str:
        """The key of the user `local` if there is none yet; of several servers, one gets it."""
        return self._file.add_first()

    async def rotate(self, name: str) -> str:
        """A new key for a user; the old one is not valid any more."""
        return self._file.rotate(name)

    async def remove(self, name: str) -> None:
        """Delete a user; the conversations stay."""
        self._file.remove(name)

    async def keep(self, name: str, user: User) -> bool:
        """Give a user the key of another store; see `UserStore`."""
        return self._file.keep(name, user)


def produce_users(backend: Backend) -> UserStore:
    """The users of a backend."""
    store: UserStore = produce_part(backend, "users")
    return store


def produce_store(backend: Backend) -> HomeUserStore:
    """The users of a home, as a store."""
    return HomeUserStore(find_users(backend.configuration))


def find_users(configuration: Configuration) -> UserFile:
    """The file with the users of a home."""
    return UserFile(configuration.places.data / "server" / "users.toml")


def find_user_places(places: Places, name: str) -> Places:
    """The files of a user: the home itself for `local`, a folder in it for any other."""
    if name == LOCAL:
        return places
    folder = places.users / name
    # The configuration, and the keys of providers, are those of the server.
    return Places(places.configuration, folder, folder)


def survey_homes(configuration: Configuration) -> Iterator[Places]:
    """The files of each user, of those who were removed too."""
    places = configuration.places
    yield places
    if places.users.is_dir():
        for name in sorted(os.listdir(places.users)):
            yield find_user_places(places, name)


def _read(file: Path) -> Mapping[str, User]:
    try:
        users = msgspec.convert(read_toml(file, trusted=True), dict[str, User], strict=False)
    except ValidationError as error:
        raise ConfigurationError(f"this is not a list of users: {error}", file=str(file)) from error
    for name in users:
        # It becomes the name of a folder.
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not a valid user name", file=str(file))
    return users


def produce_key() -> str:
    """A new key."""
    return _PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """`RequestError` if a user cannot have this name."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is not a valid user name; use lower-case letters, digits, _ and -"
        )


def refuse_known(name: str) -> RequestError:
    """The error that a user is there already."""
    return RequestError(
        f"there is a user {name!r} already; a new key: vibe-llms users rotate {name}"
    )


def refuse_unknown(name: str) -> RequestError:
    """The error that there is no such user."""
    return RequestError(f"there is no user {name!r}; see: vibe-llms users list")


def _give_key(users: dict[str, User], name: str, created: datetime) -> str:
    key = produce_key()
    users[name] = User(hash_key(key), created)
    return key


def _require(users: Mapping[str, User], name: str) -> User:
    if name not in users:
        raise refuse_unknown(name)
    return users[name]
