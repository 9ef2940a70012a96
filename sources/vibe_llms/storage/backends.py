"""The backend: where the conversations, runs, budgets, memory and users of a home are kept.

`[archive]` names it. Without a change there, everything is in files of the home folder.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias

from vibe_llms.configuration import ARCHIVE, Configuration, Places
from vibe_llms.registries import Registry
from vibe_llms.storage.interfaces import Archive, Diagnosis, Report, ignore

#: Tells a person what a step leads to, and gives whether it may be done.
Confirm: TypeAlias = Callable[[str], bool]


class Backend(Protocol):
    """Opens what is kept; nothing is read or connected to before it is used.

    `parts` are the modules that keep the rest there: `runs`, `budgets`, `memory`, and for servers
    `users`, `continuations` and `secrets`. With `limits`, processes count requests to providers
    together. The function `produce_store` of each makes a store for a backend.
    """

    configuration: Configuration
    parts: Mapping[str, str]

    @property
    def address(self) -> str:
        """Where it is, for people; the same for what is the same."""
        ...

    async def survey_users(self) -> Sequence[str]:
        """The users who have something in it, whether or not they are users of the server."""
        ...

    def open_archive(self, user: str, places: Places, *, report: Report = ignore) -> Archive:
        """The conversations and contents of a user, whose own files are at `places`."""
        ...

    def inspect(self, homes: Iterable[Places], *, repair: bool = False) -> AsyncIterator[Diagnosis]:
        """The problems of what is kept, one after the other; repaired if `repair` is true.

        `homes` are the files of all users.
        """
        ...

    async def check(self) -> Sequence[Diagnosis]:
        """The problems of what is kept as a whole, and not of what users have in it."""
        ...

    async def prepare(self) -> None:
        """Raise a `StorageError` if it does not work now."""
        ...

    async def tend(self) -> None:
        """Do what was deferred while something was away; a `StorageError` if it still is."""
        ...

    async def migrate(self, confirm: Confirm) -> Sequence[str]:
        """Bring what is kept to this version; returns what was done.

        `confirm` gets a warning where programs of older versions cannot go on after that. If it
        gives False, nothing is done.
        """
        ...

    async def close(self) -> None:
        """Close what is open; safe to call twice."""
        ...


BackendFactory: TypeAlias = Callable[[Configuration], Backend]
_REGISTRY: Registry[BackendFactory] = Registry("")


def register(name: str, factory: BackendFactory) -> None:
    """Offer a backend to an `[archive]` table that names the calling module."""
    _REGISTRY.register(name, factory)


def open_backend(configuration: Configuration) -> Backend:
    """The backend that `[archive]` names; `RegistrationError` if its module cannot be used."""
    return _REGISTRY.access(configuration.row("", ARCHIVE))(configuration)


@asynccontextmanager
async def opened_backend(configuration: Configuration) -> AsyncIterator[Backend]:
    """The backend that `[archive]` names, closed after the block."""
    backend = open_backend(configuration)
    try:
        yield backend
    finally:
        await backend.close()


def produce_part(backend: Backend, part: str, *, required: bool = True) -> Any:
    """A store of the backend for one kind of things, such as runs.

    `None` if it is not `required` and the backend has no such part.
    """
    if not required and part not in backend.parts:
        return None
    return importlib.import_module(backend.parts[part]).produce_store(backend)
