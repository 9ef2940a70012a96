"""Backend protocol: storage for the conversations, runs, budgets, memory, and users of a home.

`[archive]` names the backend. By default, everything is in files of the home folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from vibe_llms.base.configuration import ARCHIVE, Configuration, Places
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.registries import Registry
from vibe_llms.storage.interfaces import Archive, Diagnosis, Report, ignore

S = TypeVar("S")
B = TypeVar("B", bound="Backend")
#: Describes the effect of a step to a person, and returns True if it may proceed.
Confirm: TypeAlias = Callable[[str], bool]


class Backend(Protocol):
    """Storage that opens a home's data. Nothing is read or connected to before its first use.

    `kind` is the name under which a `StoreKind` finds the other stores of this backend.
    """

    configuration: Configuration
    kind: str

    @property
    def address(self) -> str:
        """Location for people to read. Backends with the same data have the same address."""
        ...

    async def survey_users(self) -> Sequence[str]:
        """Return the users who have data here, whether or not they are users of the server."""
        ...

    def open_archive(self, user: str, places: Places, *, report: Report = ignore) -> Archive:
        """Return a user's archive. `places` locates the user's own files."""
        ...

    def inspect(self, homes: Iterable[Places], *, repair: bool = False) -> AsyncIterator[Diagnosis]:
        """Yield the problems of the stored data one by one, and repair them if `repair` is true.

        `homes` locates the files of all users.
        """
        ...

    async def check(self) -> Sequence[Diagnosis]:
        """Return the problems of the storage as a whole, not of the users' data."""
        ...

    async def prepare(self) -> None:
        """Raise a `StorageError` if the backend does not work now."""
        ...

    async def catch_up(self) -> None:
        """Do work that an outage deferred, or raise a `StorageError` if the outage continues."""
        ...

    async def migrate(self, confirm: Confirm) -> Sequence[str]:
        """Migrate the stored data to this version, and return the steps that were done.

        `confirm` gets a warning before programs of older versions are locked out. If it returns
        False, nothing is done.
        """
        ...

    async def close(self) -> None:
        """Close all resources; safe to call twice."""
        ...


BackendFactory: TypeAlias = Callable[[Configuration], Backend]
_REGISTRY: Registry[BackendFactory] = Registry("")


def register(name: str, factory: BackendFactory) -> None:
    """Offer a backend to an `[archive]` table that names the calling module."""
    _REGISTRY.register(name, factory)


def open_backend(configuration: Configuration) -> Backend:
    """Return the backend that `[archive]` names, or raise a `RegistrationError`."""
    return _REGISTRY.access(configuration.row("", ARCHIVE))(configuration)


@asynccontextmanager
async def opened_backend(configuration: Configuration) -> AsyncIterator[Backend]:
    """Yield the backend that `[archive]` names, and close it after the block."""
    backend = open_backend(configuration)
    try:
        yield backend
    finally:
        await backend.close()


class StoreKind(Generic[S]):
    """A kind of store, such as the run store, with one factory for each kind of backend.

    The feature that needs the store defines it and registers the included backends. A backend of
    another package registers its own function under its `kind`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._factories: dict[str, Callable[[Any], S]] = {}

    def register(self, kind: str) -> Callable[[Callable[[B], S]], Callable[[B], S]]:
        """Return a decorator that registers a function as the factory for a kind of backend."""

        def decorate(factory: Callable[[B], S]) -> Callable[[B], S]:
            self._factories[kind] = factory
            return factory

        return decorate

    def find(self, backend: Backend) -> S | None:
        """Return the store of a backend, or `None` if the backend does not have one."""
        factory = self._factories.get(backend.kind)
        return None if factory is None else factory(backend)

    def produce(self, backend: Backend) -> S:
        """Return the store of a backend, or raise a `ConfigurationError` if it does not exist."""
        if (store := self.find(backend)) is None:
            raise ConfigurationError(f"this backend has no store for {self.name}", table=ARCHIVE)
        return store
