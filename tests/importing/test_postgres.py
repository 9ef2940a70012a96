"""Imports into PostgreSQL, which give what imports into a folder give."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.postgres import TestDatabase, temporary_database
from tests.importing import claude_ai
from tests.importing.conftest import Import, only, write_json
from tests.importing.fixtures import FIXTURES
from vibe_llms.base.configuration import load_configuration
from vibe_llms.importing.core import import_conversations
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings


@pytest.fixture(scope="module")
def place() -> Iterator[TestDatabase]:
    with temporary_database() as found:
        yield found


@pytest.fixture
async def rows(place: TestDatabase) -> AsyncIterator[PostgresArchive]:
    """The archive of a user in a database."""
    database = Database(PostgresSettings(dsn=place.dsn))
    contents = PostgresContents(database, inline_bytes=1024)
    yield PostgresArchive(database, contents, "ada")
    await database.close()


async def test_every_source_gives_the_same_in_a_database(
    bring: Import, archive: DirectoryArchive, rows: PostgresArchive, tmp_path: Path
) -> None:
    configuration = load_configuration(environment={})
    (tmp_path / "exports").mkdir()
    paths = [write(tmp_path / "exports") for write in FIXTURES.values()]
    in_folder = [await bring(path) for path in paths]
    in_rows = [
        await import_conversations(path, rows, configuration=configuration) for path in paths
    ]
    assert in_rows == in_folder
    for identity in await archive.survey_identities():
        one = await archive.export_conversation(identity)
        other = await rows.export_conversation(identity)
        assert (one.metadata, one.lines) == (other.metadata, other.lines)
        contents = [await rows.restore(identity), await archive.restore(identity)]
        assert contents[0].canisters == contents[1].canisters
    for path in paths:
        again = await import_conversations(path, rows, configuration=configuration)
        assert again.messages == 0
    grown = [claude_ai.talk(), claude_ai.talk(longer=True)]
    for tree, status in zip(grown, ("imported", "extended"), strict=True):
        path = write_json(tmp_path / "grown.json", [{**tree, "uuid": "grown"}])
        report = await import_conversations(path, rows, configuration=configuration)
        assert only(report).status == status
