"""The catalog: collections of a library and of uploaded files, each with its own texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import CollectionNotFound, RequestError
from vibe_llms.documents.core import Documents, produce_documents
from vibe_llms.documents.store import DocumentStore
from vibe_llms.storage.archive import DirectoryArchive


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[DirectoryArchive]:
    opened = DirectoryArchive(tmp_path / "home")
    yield opened
    await opened.close()


def open_documents(
    folder: Path, archive: DirectoryArchive, offered: Sequence[str] | None = None
) -> Documents:
    """The documents of a user, whose library is another folder."""
    configuration = load_configuration(places=Places.under(folder), environment={})
    library = DocumentStore(folder / "library")
    return produce_documents(
        configuration, lambda _: None, library=library, archive=archive, offered=offered
    )


async def test_documents_are_read_once_and_in_the_order_of_their_arrival(
    tmp_path: Path, archive: DirectoryArchive
) -> None:
    documents = open_documents(tmp_path, archive)
    for name in ("b.txt", "a.txt", "c.pdf"):
        uploaded = await documents.catalog.upload("papers", name.encode(), name, "text/plain")
        assert uploaded.state == "waiting"
        # Two files of one moment have no order.
        await asyncio.sleep(0.01)
    seen: list[tuple[int, int, str]] = []
    first = await documents.refresh("papers", lambda *step: seen.append(step))
    again = await documents.refresh("papers")
    known = await documents.catalog.access("papers")
    found = await documents.catalog.search("b.txt", [known])
    await documents.close()
    assert seen == [(1, 3, "b.txt"), (2, 3, "a.txt"), (3, 3, "c.pdf")]
    assert ({*first.read}, first.unchanged) == ({"b.txt", "a.txt", "c.pdf"}, 0)
    assert (again.read, again.unchanged) == ((), 3)
    assert [one.name for one in known.documents] == ["a.txt", "b.txt", "c.pdf"]
    assert {(one.document.name, one.text) for one in found} >= {("b.txt", "b.txt")}


async def test_texts_of_deleted_documents_expire_and_others_stay(
    tmp_path: Path, archive: DirectoryArchive
) -> None:
    documents = open_documents(tmp_path, archive)
    for name in ("a.txt", "b.txt"):
        await documents.catalog.upload("papers", name.encode(), name, "text/plain")
    await documents.refresh("papers")
    known = await documents.catalog.access("papers")
    await documents.catalog.remove("papers", [known.documents[0].id, "0" * 32])
    # Of a file that was deleted as such, by its id.
    await documents.catalog.upload("papers", b"c", "c.txt", "text/plain")
    await documents.refresh("papers")
    await archive.remove_file((await documents.catalog.access("papers")).documents[1].id)
    assert (await documents.refresh("papers")).removed == 1
    unused = documents.store._index.survey_unused(2e9)
    kept = await documents.catalog.access("papers")
    await documents.close()
    assert len(unused) == 2
    assert [one.hash in unused for one in kept.documents] == [False]


async def test_of_a_library_only_what_is_offered_is_found(
    tmp_path: Path, archive: DirectoryArchive
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a.txt").write_text("shared")
    library = DocumentStore(tmp_path / "library")
    for name in ("open", "hidden"):
        await library.add_to_collection(name, [tmp_path / "shared"])
    await library.close()
    documents = open_documents(tmp_path, archive, ["open", "later"])
    catalog = documents.catalog
    for name in ("own", "open", "hidden"):
        await catalog.upload(name, b"mine", "mine.txt", "text/plain")
    surveyed = {one.name: one.own for one in await catalog.survey()}
    accessed = {name: (await catalog.access(name)).own for name in surveyed}
    with pytest.raises(
        CollectionNotFound, match=r"'later' not found; available: hidden, open, own"
    ):
        await catalog.access("later")
    with pytest.raises(CollectionNotFound):
        await catalog.access("")
    with pytest.raises(RequestError, match="not a valid name"):
        await catalog.upload("a/b", b"mine", "mine.txt", "text/plain")
    await documents.close()
    everything = open_documents(tmp_path, archive)
    assert not (await everything.catalog.access("hidden")).own
    await everything.close()
    assert surveyed == accessed == {"hidden": True, "open": False, "own": True}


async def test_a_store_that_lost_its_texts_reads_again(
    tmp_path: Path, archive: DirectoryArchive
) -> None:
    documents = open_documents(tmp_path / "one", archive)
    await documents.catalog.upload("papers", b"The keeper is Ada.", "a.txt", "text/plain")
    await documents.refresh("papers")
    await documents.close()
    other = open_documents(tmp_path / "two", archive)
    waiting = (await other.catalog.access("papers")).count("waiting")
    # A model's search reads it first.
    found = await other.find("keeper", [], ["papers"])
    indexed = (await other.catalog.access("papers")).count("indexed")
    await other.close()
    assert (waiting, [one.text for one in found], indexed) == (1, ["The keeper is Ada."], 1)
