"""The contract of an archive: our own keep it, and an archive with a bug does not."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.pooler import pooled
from tests.fakes.postgres import ROLE, access_cluster, temporary_database
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ConversationMoved, StorageError
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference
from vibe_llms.messages.events import Notice
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Details, Finding, Restored, Summary
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings
from vibe_llms.testing import check_archive

FAST = StorageSettings(durability="fast")


def open_folders(
    folder: Path, kind: type[DirectoryArchive] = DirectoryArchive
) -> Callable[[str], Awaitable[Archive]]:
    """Opens the archives of users in a folder."""

    async def open_archive(user: str) -> Archive:
        return kind(folder / user, FAST)

    return open_archive


@asynccontextmanager
async def opened_tables(
    settings: PostgresSettings,
) -> AsyncIterator[Callable[[str], Awaitable[Archive]]]:
    """Opens the archives of users in one database, as two processes would in turn."""
    databases = [Database(settings), Database(settings)]
    turns = itertools.cycle(databases)

    async def open_archive(user: str) -> Archive:
        database = next(turns)
        contents = PostgresContents(database, inline_bytes=FAST.inline_bytes)
        return PostgresArchive(database, contents, user, FAST)

    try:
        yield open_archive
    finally:
        for database in databases:
            await database.close()


async def test_folders_keep_the_contract(tmp_path: Path) -> None:
    await check_archive(open_folders(tmp_path))


async def test_tables_keep_the_contract() -> None:
    with temporary_database() as place:
        async with opened_tables(PostgresSettings(dsn=place.dsn)) as open_archive:
            await check_archive(open_archive)


async def count_often(archive: Archive) -> None:
    for _ in range(200):
        await archive.count()


async def test_tables_keep_the_contract_behind_a_pooler() -> None:
    cluster = access_cluster()
    with temporary_database() as place, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        async with pooled(Path(folder), cluster.socket, ROLE, place.name) as (dsn, pooler):
            async with opened_tables(PostgresSettings(dsn=dsn, pooler=True)) as open_archive:
                await check_archive(open_archive)
            assert len({*pooler.used}) == 6
            # That there is a pooler shows if a connection is relied on.
            async with opened_tables(PostgresSettings(dsn=dsn)) as open_archive:
                archive = await open_archive("ada")
                with pytest.raises(StorageError, match="prepared statement"):
                    await count_often(archive)


class Hasty(DirectoryArchive):
    """It looks for the last message before it waits for its turn."""

    async def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> tuple[tuple[Canister, ...], tuple[Notice, ...]]:
        held = (await self.restore(identity)).canisters
        if after is not None and (held[-1].identity if held else "") != after:
            raise ConversationMoved("moved")
        return await super().append(identity, canisters, after=None)


class Overwriting(DirectoryArchive):
    """A conversation that exists is begun anew."""

    async def create(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        try:
            return await super().create(identity, details, canisters)
        except ConversationMoved:
            await self.remove(identity)
            return await super().create(identity, details, canisters)


class Forgetful(DirectoryArchive):
    """What newer versions wrote is not written again."""

    async def restore(self, identity: str, *, lenient: bool = False) -> Restored:
        restored = await super().restore(identity, lenient=lenient)
        known = tuple(msgspec.structs.replace(one, source_line=None) for one in restored.canisters)
        return msgspec.structs.replace(restored, canisters=known)


class Whole(DirectoryArchive):
    """A fork has all messages of its parent."""

    async def fork(
        self, identity: str, target: str, details: Details, *, at: str | None = None
    ) -> None:
        await super().fork(identity, target, details)


class Careless(DirectoryArchive):
    """Messages are taken back whatever follows them."""

    async def retract(self, identity: str, *, after: str, last: str) -> None:
        last = (await self.restore(identity)).canisters[-1].identity
        await super().retract(identity, after=after, last=last)


class Heedless(DirectoryArchive):
    """It looks for the last message before it waits for its turn to remove."""

    async def remove(self, *identities: str, last: str | None = None) -> None:
        for identity in identities:
            held = self.restore_now(identity).canisters
            if last is not None and (held[-1].identity if held else "") != last:
                raise ConversationMoved("moved")
        # Its turn comes when the others have had theirs.
        await asyncio.sleep(0.1)
        await super().remove(*identities)


class Loose(DirectoryArchive):
    """One of the words is enough."""

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        found: dict[str, Finding] = {}
        for word in text.split():
            for one in await super().search(word, limit=limit, superseded=superseded):
                found[one.canister] = one
        return [*found.values()][:limit]


class Oldest(DirectoryArchive):
    """The oldest conversations come first."""

    async def survey(
        self,
        *,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        found = await super().survey(tag=tag, superseded=superseded, after=after)
        return [*reversed(found)][:limit]


class Repeating(DirectoryArchive):
    """A later page begins with the last one of the page before."""

    async def survey(
        self,
        *,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        found = await super().survey(tag=tag, superseded=superseded)
        places = [place for place, one in enumerate(found) if one.identity == after]
        return found[places[0] if places else 0 :][:limit]


class Greedy(DirectoryArchive):
    """What was just put is collected, too."""

    async def collect(self) -> Sequence[str]:
        return self.collect_now(grace_seconds=-1)


class Keeping(DirectoryArchive):
    """Nothing is ever collected."""

    async def collect(self) -> Sequence[str]:
        return ()


class Trusting(DirectoryArchive):
    """Any reference is taken for one whose bytes are there."""

    def _deposit(
        self, canisters: Sequence[Canister]
    ) -> tuple[tuple[Canister, ...], tuple[Canister, ...]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.contents, "holds", lambda reference: True)
            return super()._deposit(canisters)


class Blending(DirectoryArchive):
    """A stranger gets the archive of the user."""

    def __init__(self, folder: Path, *arguments: Any, **options: Any) -> None:
        owner = folder.name.removeprefix("not-")
        super().__init__(folder.with_name(owner), *arguments, **options)


class Guessing(DirectoryArchive):
    """Of several conversations that fit, one is taken."""

    async def resolve(self, text: str) -> str:
        wanted = text.casefold()
        for one in await self.survey():
            if len(text) > 3 and (
                wanted in one.title.casefold() or one.identity.startswith(wanted)
            ):
                return one.identity
        return await super().resolve(text)


class Unlisted(DirectoryArchive):
    """Conversations that another one replaced are not searched even where all are wanted."""

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        return await super().search(text, limit=limit)


class Deaf(DirectoryArchive):
    """Bytes are given without a look at their hash."""

    async def load(self, reference: Reference) -> bytes:
        path = self.contents.folder / reference.hash / "data"
        return path.read_bytes() if path.exists() else b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Hasty, "appends after the same message succeed"),
        (Overwriting, "have the same identity"),
        (Forgetful, "messages of a newer version|is rewritten"),
        (Whole, "a fork: 2 messages are expected"),
        (Careless, "retracting a conversation that does not end with"),
        (Heedless, "removals and appends after the same message"),
        (Loose, "finds"),
        (Oldest, "the newest is not the first"),
        (Repeating, "a page begins at the wrong place"),
        (Greedy, "was just stored, is collected"),
        (Keeping, "contents are unused"),
        (Trusting, "refers to an unknown content"),
        (Blending, "another user's list"),
        (Guessing, "means|no ConversationAmbiguous is raised"),
        (Unlisted, "not all are searched"),
        (Deaf, "no ContentMissing is raised"),
    ],
)
async def test_an_archive_with_a_bug_does_not(
    kind: type[DirectoryArchive], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await check_archive(open_folders(tmp_path, kind))
