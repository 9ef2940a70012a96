"""The backend in files of the home folder, which every home begins with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress

from vibe_llms.configuration import ARCHIVE, LOCAL, Configuration, Places
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.backends import Confirm, register
from vibe_llms.storage.files import TEMPORARY, make_folder, storage_errors, write_new
from vibe_llms.storage.inspection import inspect_archive
from vibe_llms.storage.interfaces import Diagnosis, Report, ignore

#: As many bytes as a short message; less may fit on a full disk.
_PROBE_BYTES = 4096


class HomeBackend:
    """Folders for conversations and memory, SQLite for runs and budgets."""

    parts: Mapping[str, str] = {
        "runs": "vibe_llms.runs.sqlite",
        "budgets": "vibe_llms.runs.sqlite_budgets",
        "memory": "vibe_llms.memory.home",
        "users": "vibe_llms.server.users",
        "continuations": "vibe_llms.server.continuations",
        "secrets": "vibe_llms.server.secrets",
    }

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.configuration.places.data.resolve())

    async def survey_users(self) -> Sequence[str]:
        """The users who have a folder."""
        with storage_errors(self.configuration.places.users):
            try:
                entries = [*os.scandir(self.configuration.places.users)]
            except FileNotFoundError:
                entries = []
        return [LOCAL, *sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))]

    def open_archive(
        self, user: str, places: Places, *, report: Report = ignore
    ) -> DirectoryArchive:
        """The archive in the user's folder."""
        del user
        return DirectoryArchive(places.data, self.configuration.storage, report=report)

    async def inspect(
        self, homes: Iterable[Places], *, repair: bool = False
    ) -> AsyncIterator[Diagnosis]:
        """The problems of the conversations in each home."""
        for places in homes:
            archive = DirectoryArchive(places.data, self.configuration.storage)
            for one in inspect_archive(archive, repair=repair):
                yield one
            if repair:
                archive.collect_now()

    async def check(self) -> Sequence[Diagnosis]:
        """None: there are only the files of users."""
        return ()

    async def prepare(self) -> None:
        """Raise a `StorageError` if no file can be written."""
        await asyncio.to_thread(self._probe)

    def _probe(self) -> None:
        folder = self.configuration.places.data
        probe = folder / f"{TEMPORARY}probe-{os.urandom(8).hex()}"
        with storage_errors(folder):
            make_folder(folder)
            try:
                write_new(probe, bytes(_PROBE_BYTES), durable=False)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(probe)

    async def tend(self) -> None:
        """Nothing is deferred."""

    async def migrate(self, confirm: Confirm) -> Sequence[str]:
        """Nothing: files are read as they are, and indices are made anew."""
        del confirm
        return ()

    async def close(self) -> None:
        """Nothing is open."""


def _produce(configuration: Configuration) -> HomeBackend:
    """The backend of a home whose `[archive]` has nothing that files do not use."""
    for key in configuration.row("", ARCHIVE).settings:
        raise configuration.error(
            "the archive is in files, which do not use this; for a database, add "
            'module = "vibe_llms.storage.postgres"',
            *(ARCHIVE, key),
        )
    return HomeBackend(configuration)


register("home", _produce)
