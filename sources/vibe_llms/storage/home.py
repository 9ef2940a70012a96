"""Default backend, which keeps everything in files of the home folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

from vibe_llms.base.configuration import ARCHIVE, LOCAL, Configuration, Places
from vibe_llms.base.folders import TEMPORARY, make_folder, storage_errors, write_new
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.backends import Confirm, register
from vibe_llms.storage.inspection import inspect_archive
from vibe_llms.storage.interfaces import Diagnosis, Report, ignore

#: Size of a short message in bytes. Fewer bytes may still fit on a full disk.
_PROBE_BYTES = 4096


class HomeBackend:
    """Backend with folders for conversations and memory, and SQLite for runs and budgets."""

    kind = "home"

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    @property
    def address(self) -> str:
        """Path of the home folder."""
        return str(self.configuration.places.data.resolve())

    async def survey_users(self) -> Sequence[str]:
        """Return the names of the users who have a folder."""
        with storage_errors(self.configuration.places.users):
            try:
                entries = [*os.scandir(self.configuration.places.users)]
            except FileNotFoundError:
                entries = []
        return [LOCAL, *sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))]

    def open_archive(
        self, user: str, places: Places, *, report: Report = ignore
    ) -> DirectoryArchive:
        """Return the archive in the user's folder."""
        del user
        return DirectoryArchive(places.data, self.configuration.storage, report=report)

    async def inspect(
        self, homes: Iterable[Places], *, repair: bool = False
    ) -> AsyncIterator[Diagnosis]:
        """Yield the problems of the conversations in each home."""
        for places in homes:
            archive = DirectoryArchive(places.data, self.configuration.storage)
            for one in inspect_archive(archive, repair=repair):
                yield one
            if repair:
                archive.collect_now()

    async def check(self) -> Sequence[Diagnosis]:
        """Return nothing, because each user's files are checked by `inspect`."""
        return ()

    async def prepare(self) -> None:
        """Raise a `StorageError` if files cannot be written."""
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

    async def catch_up(self) -> None:
        """Do nothing, because this backend defers nothing."""

    async def migrate(self, confirm: Confirm) -> Sequence[str]:
        """Do nothing, because files are read as they are and indices are rebuilt."""
        del confirm
        return ()

    async def close(self) -> None:
        """Do nothing, because this backend holds nothing open."""


def _produce(configuration: Configuration) -> HomeBackend:
    """Return the backend of a home. Reject settings in `[archive]` that files do not use."""
    for key in configuration.row("", ARCHIVE).settings:
        raise configuration.error(
            "not used by an archive in files; for a database, add "
            'module = "vibe_llms.storage.postgres"',
            ARCHIVE,
            key,
        )
    return HomeBackend(configuration)


register("home", _produce)
