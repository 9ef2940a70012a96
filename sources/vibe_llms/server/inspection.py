"""Checks of the server's prerequisites: address, users, budgets, packages, and run file."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from vibe_llms.base.configuration import LOCAL, Configuration
from vibe_llms.base.exceptions import ConfigurationError, RequestError, StorageError
from vibe_llms.runs.database import inspect_runs
from vibe_llms.server.settings import ServerSettings, read_server_settings
from vibe_llms.server.sockets import bind, is_loopback
from vibe_llms.storage.backends import opened_backend
from vibe_llms.storage.inspection import inspect_mode
from vibe_llms.storage.interfaces import Diagnosis
from vibe_llms.storage.mounts import find_network_mount
from vibe_llms.storage.user_stores import produce_users
from vibe_llms.storage.users import User, find_users

_PACKAGES = ("uvicorn", "prometheus_client", "python_multipart")
_REMEDY = "stop the server and move the file away; runs are then lost, conversations are not"


def inspect_server(configuration: Configuration, *, repair: bool = False) -> Iterator[Diagnosis]:
    """Yield the problems of a server with this configuration and home.

    Nothing is checked if no server was ever configured or started here.
    """
    file = find_users(configuration).file
    folder = file.parent
    if not (folder.exists() or configuration.server):
        return
    yield from _inspect_packages()
    yield from inspect_mode(folder, 0o077, repair)
    yield from inspect_mode(file, 0o077, repair)
    try:
        users = asyncio.run(_survey_users(configuration))
    except ConfigurationError as error:
        text = str(error).removeprefix(f"{error.file}: ")
        yield Diagnosis("users", error.file, text, "restore it from a backup, or create it again")
        return
    except StorageError as error:
        yield Diagnosis("users", "server", str(error), "see dsn in [archive]")
        return
    yield from _inspect_address(read_server_settings(configuration), users)
    yield from _inspect_budgets(configuration, users)
    if kind := find_network_mount(folder):
        text = f"it is on a network file system ({kind}), where runs and budgets are not safe"
        yield Diagnosis("server", str(folder), text, "set VIBE_LLMS_HOME to a local folder")
    runs = folder / "runs.sqlite"
    if not runs.exists():
        return
    for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"):
        yield from inspect_mode(folder / name, 0o077, repair)
    try:
        for problem in inspect_runs(runs, configuration.storage.lock_seconds):
            yield Diagnosis("runs", str(runs), problem, _REMEDY)
    except sqlite3.Error as error:
        yield Diagnosis("runs", str(runs), f"it cannot be read: {error}", _REMEDY)


async def _survey_users(configuration: Configuration) -> Mapping[str, User]:
    async with opened_backend(configuration) as backend:
        return await produce_users(backend).survey()


def _inspect_packages() -> Iterator[Diagnosis]:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        text = f"the server needs {' and '.join(missing)}"
        yield Diagnosis("server", "server", text, "pip install 'vibe-llms[server]'")


def _inspect_address(settings: ServerSettings, users: Mapping[str, User]) -> Iterator[Diagnosis]:
    try:
        bind(settings.host, settings.port).close()
    except RequestError as error:
        # A port in use belongs to a running server.
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
            yield Diagnosis("server", "server", str(error), "set host and port in [server]")
    if not users and not is_loopback(settings.host):
        text = f"it listens on {settings.host}, so its first start would print a key to its log"
        yield Diagnosis("users", "server", text, f"vibe-llms users add {LOCAL}")


def _inspect_budgets(
    configuration: Configuration, users: Mapping[str, User]
) -> Iterator[Diagnosis]:
    for kind, named in (
        ("budget", configuration.budgets.users),
        ("limit", configuration.limits.users),
    ):
        for name in named:
            if name not in users and name != LOCAL:
                yield Diagnosis(
                    kind,
                    f"{kind}s.users.{name}",
                    f"user {name!r} not found",
                    f"vibe-llms users add {name}, or correct the name",
                )
