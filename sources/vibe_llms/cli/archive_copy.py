"""The command `archive copy`: copies the data of all users from one place to another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from pathlib import Path

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.configuration import (
    Configuration,
    Layer,
    Places,
    assemble,
    load_configuration,
    read_toml,
)
from vibe_llms.base.exceptions import RequestError, StorageError, StorageUnavailable
from vibe_llms.cli.memory.common import open_store
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.memory.copying import copy_memory
from vibe_llms.runs.core import produce_store
from vibe_llms.storage.backends import Backend, open_backend
from vibe_llms.storage.home import HomeBackend
from vibe_llms.storage.transfer import (
    Copied,
    TransferableArchive,
    copy_conversation,
    copy_file,
)
from vibe_llms.storage.user_stores import produce_users
from vibe_llms.storage.users import User, check_name, find_user_places

#: Number of conversations copied at the same time.
_PARALLEL = 4
_HOME, _ARCHIVE = "home", "archive"
_TOML = ".toml"


class Problem(Struct, frozen=True):
    """A failure to copy one thing, with the reason."""

    user: str
    subject: str
    text: str


class Tally(Struct):
    """Counts of a user's data in the source, and of the copies made by this command."""

    user: str
    conversations: int = 0
    copied_conversations: int = 0
    files: int = 0
    copied_files: int = 0
    memories: int = 0
    copied_memories: int = 0
    keys: int = 0
    copied_keys: int = 0
    copied_contents: int = 0
    copied_bytes: int = 0


@click.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--final", is_flag=True, help="Refuse a source with runs that have not ended.")
@json_option
@asynchronous
async def copy_archive(source: str, target: str, final: bool, as_json: bool) -> int:
    """Copy the conversations, contents, files, memory and keys of all users.

    FROM and TO are `home`, the files of your home folder; `archive`, the place in [archive] of your
    configuration; the path of another home folder; or the path of a .toml file with a table
    [archive].

    FROM is not changed, and may be in use. Each copy is read again in TO to check it. Existing
    copies are skipped: run the command again after an interruption, or to copy new data. Exits with
    status 1 if something could not be copied.
    """
    configuration = load_configuration()
    waiting = Waiting(enabled=not as_json)
    problems: list[Problem] = []
    tallies: list[Tally] = []
    async with _opened(source, configuration) as one, _opened(target, configuration) as other:
        if one.address == other.address:
            raise RequestError("FROM and TO are the same")
        if final:
            await _refuse_runs(one)
        waiting.show("copying")
        try:
            keys = await produce_users(one).survey()
            for user in dict.fromkeys([*await one.survey_users(), *keys]):
                tallies.append(tally := Tally(user))
                copier = _Copier(one, other, tally, problems, waiting.change)
                await copier.copy(keys.get(user))
        finally:
            waiting.clear()
    if as_json:
        write_json(msgspec.json.encode({"users": tallies, "problems": problems}).decode())
    else:
        _print(tallies, problems)
    return 1 if problems else 0


class _Copier:
    """The copy of one user's data."""

    def __init__(
        self,
        source: Backend,
        target: Backend,
        tally: Tally,
        problems: list[Problem],
        report: Callable[[str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._tally = tally
        self._problems = problems
        self._report = report
        self._done = 0

    async def copy(self, key: User | None) -> None:
        """Copy everything, ending with the key.

        Failures are recorded as problems and do not stop the copy.
        """
        user = self._tally.user
        try:
            # The name becomes the name of a folder.
            check_name(user)
        except RequestError as error:
            self._problems.append(Problem(user, user, str(error)))
            return
        await self._copy_archive()
        await self._copy_memory()
        if key is not None:
            self._tally.keys = 1
            self._tally.copied_keys = await produce_users(self._target).keep(user, key)

    async def _copy_archive(self) -> None:
        async with AsyncExitStack() as stack:
            source, target = [
                await stack.enter_async_context(_opened_archive(backend, self._tally.user))
                for backend in (self._source, self._target)
            ]
            identities = await source.survey_identities()
            files = await source.survey_files()
            self._tally.conversations, self._tally.files = len(identities), len(files)
            todo = iter(identities)

            async def work() -> None:
                for identity in todo:
                    attempt = copy_conversation(source, target, identity)
                    if await self._try(identity, attempt):
                        self._tally.copied_conversations += 1
                    self._done += 1
                    total = f"{self._done:,} of {len(identities):,} conversations"
                    self._report(f"copying {self._tally.user}: {total}")

            await _join([asyncio.ensure_future(work()) for _ in range(_PARALLEL)])
            for file in files:
                if await self._try(file.name, copy_file(source, target, file)):
                    self._tally.copied_files += 1

    async def _copy_memory(self) -> None:
        user = self._tally.user
        with ExitStack() as stack:
            source, target = [
                stack.enter_context(closing(open_store(backend, user)))
                for backend in (self._source, self._target)
            ]
            copied = await asyncio.to_thread(copy_memory, source, target)
        self._tally.memories, self._tally.copied_memories = copied.entries, copied.copied
        self._problems += [Problem(user, "memory", text) for text in copied.damaged]

    async def _try(self, subject: str, attempt: Awaitable[Copied]) -> bool:
        """Await a copy; return True if something was copied, and record failures as problems."""
        try:
            copied = await attempt
        except StorageUnavailable:
            # The remaining copies would fail too.
            raise
        except (StorageError, RequestError) as error:
            self._problems.append(Problem(self._tally.user, subject, str(error)))
            return False
        self._tally.copied_contents += len(copied.contents)
        self._tally.copied_bytes += sum(copied.contents)
        return copied.changed


def find_backend(place: str, configuration: Configuration) -> Backend:
    """Open the backend that `FROM` or `TO` names."""
    path = Path(place).expanduser()
    if place == _HOME:
        return HomeBackend(configuration)
    if place == _ARCHIVE:
        return open_backend(configuration)
    if path.suffix == _TOML:
        layers = (configuration.layers[0], Layer(str(path), read_toml(path, trusted=True)))
        return open_backend(assemble(configuration.places, layers))
    if path.is_dir() or "/" in place:
        return HomeBackend(replace(configuration, places=Places.under(path)))
    raise RequestError(
        f"{place!r} is not home, archive, a folder or a .toml file; see: "
        "vibe-llms archive copy --help"
    )


@asynccontextmanager
async def _opened(place: str, configuration: Configuration) -> AsyncIterator[Backend]:
    backend = find_backend(place, configuration)
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def _opened_archive(backend: Backend, user: str) -> AsyncIterator[TransferableArchive]:
    archive = backend.open_archive(user, find_user_places(backend.configuration.places, user))
    try:
        if not isinstance(archive, TransferableArchive):
            raise RequestError(f"{type(archive).__name__} cannot be copied")
        yield archive
    finally:
        await archive.close()


async def _join(workers: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all workers; if one fails, cancel the others."""
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


async def _refuse_runs(source: Backend) -> None:
    store = produce_store(source)
    try:
        counts = await store.count_unfinished() if store.exists() else {}
    finally:
        await store.close()
    if left := sum(counts.values()):
        raise RequestError(
            f"{left} {'run has' if left == 1 else 'runs have'} not ended in FROM; wait, or cancel "
            "what is left: vibe-llms runs list"
        )


def _print(tallies: Sequence[Tally], problems: Sequence[Problem]) -> None:
    for one in tallies:
        rows = (
            (one.copied_conversations, one.conversations, "conversations"),
            (one.copied_files, one.files, "files"),
            (one.copied_memories, one.memories, "memories"),
            (one.copied_keys, one.keys, "keys"),
        )
        parts = [f"{copied:,} of {total:,} {what}" for copied, total, what in rows if total]
        if one.copied_contents:
            size = f"{one.copied_bytes / 1e6:,.1f} MB"
            parts.append(f"{one.copied_contents:,} contents ({size})")
        write(sys.stdout, shown(f"{one.user}: copied {', '.join(parts) or 'nothing'}") + "\n")
    for problem in problems:
        note(f"not copied: {problem.user}: {problem.subject}: {problem.text}")
