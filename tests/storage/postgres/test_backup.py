"""A backup of the database and the bucket, as the page about it says; all of it comes back."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.objects import access_bucket_server
from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from tests.faults.archives import produce_details, say
from vibe_llms.base.exceptions import ContentMissing
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent, Reference
from vibe_llms.storage.interfaces import Restored
from vibe_llms.storage.objects import BucketSettings, BucketStore
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

PAGE = Path(__file__).parents[3] / "documentation/how-to/copy-and-back-up-an-archive.md"
PICTURE = bytes(range(256)) * 100


def open_user(place: TestDatabase, bucket: BucketStore, user: str) -> PostgresArchive:
    database = Database(PostgresSettings(dsn=place.dsn))
    return PostgresArchive(
        database, PostgresContents(database, inline_bytes=1024, objects=bucket), user
    )


async def read_all(place: TestDatabase, bucket: BucketStore) -> dict[str, Restored]:
    """Every conversation, whose contents are read too."""
    found = {}
    for user in ("ada", "bob"):
        archive = open_user(place, bucket, user)
        try:
            for identity in await archive.survey_identities():
                found[f"{user}/{identity}"] = await archive.restore(identity)
            assert await archive.load(Reference.from_bytes(PICTURE)) == PICTURE
            assert (await archive.search("look"))[0].conversation == "one"
        finally:
            await archive.database.close()
    return found


def read_commands(heading: str) -> Sequence[Sequence[str]]:
    """The commands of PostgreSQL's below a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("sudo -u postgres ")]
    return [shlex.split(line)[3:] for line in lines]


def run(command: Sequence[str], database: str, folder: Path) -> None:
    """Run a command of the page, which calls the database `chat`."""
    cluster = access_cluster()
    program, *arguments = (re.sub(r"\bchat$", database, part) for part in command)
    subprocess.run(
        [cluster.programs / program, *arguments],
        check=True,
        cwd=folder,
        env={"PGHOST": str(cluster.socket), "PGUSER": "postgres"},
    )


async def copy_bucket(source: BucketSettings, target: BucketSettings) -> None:
    """What `aws s3 sync` does."""
    for user in ("ada", "bob"):
        for digest in await BucketStore(source).survey(user):
            data = await BucketStore(source).read(user, digest)
            await BucketStore(target).write(user, digest, data)


async def test_what_was_backed_up_comes_back_in_another_database_and_bucket(
    tmp_path: Path,
) -> None:
    server = access_bucket_server()
    first, kept, last = (server.produce_bucket(least_bytes=2_000) for _ in range(3))
    with temporary_database() as place:
        for user in ("ada", "bob"):
            archive = open_user(place, BucketStore(first), user)
            said = [*say(f"I am {user}"), UserCanister((ImageContent(PICTURE),)), *say("look")]
            await archive.create("one", produce_details(), said)
            await archive.fork("one", "fork", produce_details(), at=said[0].identity)
            await archive.upload(b"uploaded", "notes.txt")
            await archive.database.close()
        before = await read_all(place, BucketStore(first))
        # The database first: what it knows is in the bucket then.
        (dump,) = read_commands("Back up PostgreSQL and the bucket")
        run(dump, place.name, tmp_path)
        await copy_bucket(first, kept)
    for user in ("ada", "bob"):
        await BucketStore(first).remove(user, [*await BucketStore(first).survey(user)])
    with temporary_database(bare=True) as place:
        # The roles belong to the cluster, which has them; see tests/documentation.
        *_, create, restore = read_commands("Restore")
        access_cluster().drop(place.name)
        run([one for one in create if "owner" not in one], place.name, tmp_path)
        run(restore, place.name, tmp_path)
        with pytest.raises(ContentMissing):
            await read_all(place, BucketStore(last))
        await copy_bucket(kept, last)
        assert await read_all(place, BucketStore(last)) == before
        # It is used as before: the policies came back too.
        archive = open_user(place, BucketStore(last), "eve")
        assert await archive.survey_identities() == []
        await archive.create("one", produce_details(), say("I am eve"))
        await archive.database.close()
        assert await read_all(place, BucketStore(last)) == before
