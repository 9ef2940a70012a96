"""Named collections of files, and how a store keeps them up to date."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    CollectionNotFound,
    DocumentUnreadable,
    RequestError,
    StorageError,
)
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents.collections import CollectionFile
from vibe_llms.documents.snapshots import Snapshot, take_snapshot
from vibe_llms.documents.store import DocumentStore


class TextReader:
    """Reads files as text. Records which it reads, and waits at `stop`, if that is set."""

    def __init__(self) -> None:
        self.read_names: list[str] = []
        self.stop = ""
        self.reached = asyncio.Event()

    async def snapshot(self, source: Path) -> Snapshot:
        """The bytes of a file."""
        return take_snapshot(source, limit=1_000_000)

    async def read(self, source: Snapshot) -> DocumentText:
        """Its text."""
        if source.name == self.stop:
            self.reached.set()
            await asyncio.Event().wait()
        if source.name.endswith(".bad"):
            raise DocumentUnreadable(f"{source.name}: unknown format")
        self.read_names.append(source.name)
        data = os.pread(source.descriptor, source.size, 0)
        return DocumentText(source.name, data.decode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files, all of them older than the clock's tick."""
    folder = tmp_path / "papers"
    (folder / "deep").mkdir(parents=True)
    write(folder / "a.txt", "Ada planted quinces.")
    write(folder / "b.txt", "Bob planted medlars.")
    write(folder / "deep" / "c.txt", "Cleo planted figs.")
    write(folder / ".hidden", "Not read.")
    return folder


def write(path: Path, text: str, age: int = 100) -> None:
    """Write a file that was last changed so many seconds after the epoch."""
    path.write_text(text)
    os.utime(path, (age, age))


def names_of(files: Sequence[CollectionFile]) -> list[str]:
    """The names of files."""
    return [Path(one.path).name for one in files]


@pytest.mark.parametrize("kept", [True, False])
async def test_only_changed_files_are_read_again(tmp_path: Path, folder: Path, kept: bool) -> None:
    store, reader = DocumentStore(tmp_path / "store" if kept else None), TextReader()
    await store.add_to_collection("papers", [folder])
    seen: list[tuple[int, int]] = []
    first = await store.refresh("papers", reader, lambda done, all_, _: seen.append((done, all_)))
    assert sorted(reader.read_names) == ["a.txt", "b.txt", "c.txt"]
    assert (len(first.read), first.unchanged, first.removed) == (3, 0, 0)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    reader.read_names.clear()
    second = await store.refresh("papers", reader)
    assert (second.read, second.unchanged) == ((), 3)
    write(folder / "b.txt", "Bob planted nothing.", age=200)
    (folder / "a.txt").unlink()
    third = await store.refresh("papers", reader)
    assert reader.read_names == ["b.txt"]
    assert (third.unchanged, third.removed) == (1, 1)
    collection = await store.access_collection("papers")
    assert names_of(collection.files) == ["b.txt", "c.txt"]
    hashes = [one.hash for one in collection.files]
    assert "nothing" in (await store.search("Bob", hashes, characters=25))[0].text
    await store.close()


async def test_a_file_changed_within_a_tick_is_looked_at_again(folder: Path) -> None:
    store, reader = DocumentStore(), TextReader()
    await store.add_to_collection("papers", [folder / "a.txt"])
    now = (folder / "a.txt").stat()
    write(folder / "a.txt", "Ada planted walnuts.", age=4_000_000_000)
    await store.refresh("papers", reader)
    stamp = (folder / "a.txt").stat().st_mtime_ns
    (folder / "a.txt").write_text("Ada planted chestnut")
    os.utime(folder / "a.txt", ns=(stamp, stamp))
    assert (folder / "a.txt").stat().st_size == now.st_size
    await store.refresh("papers", reader)
    assert reader.read_names == ["a.txt", "a.txt"]


async def test_what_is_done_is_kept_if_a_refresh_is_interrupted(
    tmp_path: Path, folder: Path
) -> None:
    store, reader = DocumentStore(tmp_path / "store"), TextReader()
    await store.add_to_collection("papers", [folder])
    reader.stop = "c.txt"
    two = asyncio.Event()
    refreshing = asyncio.create_task(
        store.refresh("papers", reader, lambda done, *_: two.set() if done == 2 else None)
    )
    await reader.reached.wait()
    await two.wait()
    refreshing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await refreshing
    await store.close()
    again, other = DocumentStore(tmp_path / "store"), TextReader()
    result = await again.refresh("papers", other)
    assert other.read_names == ["c.txt"]
    assert result.unchanged == 2
    await again.close()


async def test_files_that_cannot_be_read_are_reported_and_stop_nothing(folder: Path) -> None:
    write(folder / "x.bad", "?")
    store, reader = DocumentStore(), TextReader()
    await store.add_to_collection("papers", [folder, folder / "a.txt"])
    result = await store.refresh("papers", reader)
    assert list(result.problems.values()) == ["x.bad: unknown format"]
    assert len(result.read) == 3
    (folder / "x.bad").unlink()
    (folder / "link").symlink_to(folder / "nowhere")
    assert (await store.refresh("papers", reader)).problems == {}


async def test_a_path_that_is_gone_is_reported(folder: Path) -> None:
    store = DocumentStore()
    await store.add_to_collection("papers", [folder / "a.txt"])
    (folder / "a.txt").unlink()
    result = await store.refresh("papers", TextReader())
    assert result.problems == {str(folder / "a.txt"): "No such file or directory"}


async def test_the_same_content_twice_is_read_once(folder: Path) -> None:
    store, reader = DocumentStore(), TextReader()
    await store.add_to_collection("papers", [folder / "a.txt"])
    await store.refresh("papers", reader)
    write(folder / "copy.txt", "Ada planted quinces.")
    await store.add_to_collection("more", [folder / "copy.txt"])
    result = await store.refresh("more", reader)
    assert len(result.read) == 1
    assert reader.read_names == ["a.txt"]
    both = await store.survey_collections()
    assert [one.name for one in both] == ["more", "papers"]
    assert len({file.hash for one in both for file in one.files}) == 1


async def test_documents_of_collections_are_not_dropped(folder: Path) -> None:
    store, reader = DocumentStore(ttl_hours=-1), TextReader()
    await store.add_to_collection("papers", [folder])
    # The first text that is added is the last one before the next look for unused ones.
    await store.add("other", DocumentText("other", "Other."))
    await store.refresh("papers", reader)
    store._purge()
    hashes = [one.hash for one in (await store.access_collection("papers")).files]
    assert [await store.access(one) is not None for one in hashes] == [True] * 3
    assert await store.access("other") is None
    await store.remove_collection("papers")
    store._purge()
    assert [await store.access(one) for one in hashes] == [None] * 3


async def test_definitions_survive_a_lost_index(tmp_path: Path, folder: Path) -> None:
    store = DocumentStore(tmp_path / "store")
    await store.add_to_collection("papers", [folder])
    await store.refresh("papers", TextReader())
    await store.close()
    (tmp_path / "store" / "index.sqlite").write_bytes(b"damaged" * 1_000)
    again, reader = DocumentStore(tmp_path / "store"), TextReader()
    assert (await again.access_collection("papers")).paths == (str(folder),)
    assert len((await again.refresh("papers", reader)).read) == 3
    await again.close()


async def test_unknown_and_invalid_names_and_paths_are_clear_errors(
    tmp_path: Path, folder: Path
) -> None:
    store = DocumentStore(tmp_path / "store")
    await store.add_to_collection("papers", [folder])
    with pytest.raises(CollectionNotFound, match="collection 'other' not found; available: p"):
        await store.access_collection("other")
    with pytest.raises(CollectionNotFound):
        await store.remove_collection("other")
    for name in ("", "../papers", ".hidden", "a b", "x" * 65):
        with pytest.raises(RequestError, match="is not a valid name of a collection"):
            await store.add_to_collection(name, [folder])
    with pytest.raises(RequestError, match="no such file or folder"):
        await store.add_to_collection("papers", [folder / "nothing"])
    with pytest.raises(CollectionNotFound):
        await store.add_to_collection("typo", [], follow_links=True)
    assert [one.name for one in await store.survey_collections()] == ["papers"]
    (tmp_path / "store" / "collections" / "papers.toml").write_text("paths = 3")
    with pytest.raises(StorageError, match="cannot be read"):
        await store.access_collection("papers")
    await store.close()


@pytest.fixture
def secret(tmp_path: Path, folder: Path) -> Path:
    """A file outside of the folder, and links to it in the folder."""
    secret = tmp_path / "secret.txt"
    write(secret, "The password is Xanadu.")
    (folder / "link.txt").symlink_to(secret)
    (folder / "deep" / "again.txt").symlink_to("../../secret.txt")
    return secret


async def test_links_in_a_folder_are_reported_and_not_followed(
    tmp_path: Path, folder: Path, secret: Path
) -> None:
    store, reader = DocumentStore(tmp_path / "store"), TextReader()
    await store.add_to_collection("papers", [folder])
    done = await store.refresh("papers", reader)
    assert sorted(reader.read_names) == ["a.txt", "b.txt", "c.txt"]
    problems = {Path(path).name: problem for path, problem in done.problems.items()}
    assert sorted(problems) == ["again.txt", "link.txt"]
    assert all("--follow-links" in problem for problem in problems.values())
    # A file that is named itself is read, and so are links from now on.
    await store.add_to_collection("own", [folder / "link.txt"])
    assert len((await store.refresh("own", reader)).read) == 1
    await store.add_to_collection("papers", [], follow_links=True)
    assert len((await store.refresh("papers", reader)).read) == 2
    assert (await store.access_collection("papers")).follow_links
    await store.add_to_collection("papers", [folder])
    assert (await store.access_collection("papers")).follow_links
    await store.close()


async def test_a_folder_that_becomes_a_link_keeps_its_files(folder: Path) -> None:
    store, reader = DocumentStore(None), TextReader()
    await store.add_to_collection("papers", [folder])
    await store.refresh("papers", reader)
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")
    done = await store.refresh("papers", reader)
    assert (done.unchanged, done.removed, done.problems) == (3, 0, {})
    await store.close()


async def test_the_paths_of_a_collection_are_not_searched_one_by_one_for_each_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Paths(tuple[str, ...]):
        __slots__ = ()

        def __contains__(self, path: object) -> bool:
            raise AssertionError(f"searched for {path}")

    store = DocumentStore(None)
    await store.add_to_collection("papers", [folder])
    collection = replace(await store.access_collection("papers"), paths=Paths([str(folder)]))
    monkeypatch.setattr(store, "access_collection", AsyncMock(return_value=collection))
    assert len((await store.refresh("papers", TextReader())).read) == 3
    await store.close()


@pytest.mark.parametrize("place", ["file", "folder"])
async def test_a_file_that_is_swapped_for_a_link_while_it_is_read_is_not_indexed(
    folder: Path, tmp_path: Path, place: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write(outside / "c.txt", "The password is Xanadu.")

    class Attacked(TextReader):
        async def snapshot(self, source: Path) -> Snapshot:
            if source.name == "c.txt":
                swapped = source if place == "file" else source.parent
                swapped.rename(tmp_path / "moved")
                swapped.symlink_to(outside / "c.txt" if place == "file" else outside)
            return await super().snapshot(source)

    store, reader = DocumentStore(), Attacked()
    await store.add_to_collection("papers", [folder])
    done = await store.refresh("papers", reader)
    assert sorted(reader.read_names) == ["a.txt", "b.txt"]
    (problem,) = done.problems.values()
    assert "the file was replaced" in problem
    await store.close()


async def test_names_that_are_no_text_stop_nothing(folder: Path, tmp_path: Path) -> None:
    names = [b"\xff\xfe.txt", b"new\nline.txt", b"\x1b[2J.txt", "\u202etxt.exe".encode()]
    for name in names:
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_text("Odd.")
    store, reader = DocumentStore(tmp_path / "store"), TextReader()
    await store.add_to_collection("papers", [folder])
    done = await store.refresh("papers", reader)
    assert {"a.txt", "b.txt", "c.txt"} <= set(reader.read_names)
    assert len(done.read) + len(done.problems) == 7
    assert len((await store.access_collection("papers")).files) == 7
    with pytest.raises(RequestError, match="is not UTF-8"):
        await store.add_to_collection("odd", [folder / os.fsdecode(names[0])])
    await store.close()
