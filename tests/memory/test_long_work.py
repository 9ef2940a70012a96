"""An index of many entries: each is read once, progress is reported, and what is done is kept."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import pytest

from vibe_llms.embedding import vectors
from vibe_llms.embedding.cache import EmbeddingCache
from vibe_llms.embedding.pace import Pace
from vibe_llms.embedding.vectors import VectorIndex
from vibe_llms.memory import index
from vibe_llms.memory.core import Memory
from vibe_llms.memory.database import IndexDatabase
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.long_work import EMBEDDING, READING, IndexingProgress

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)


class QuickEmbedder:
    model = "quick"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        if not question:
            self.sizes.append(len(texts))
        return [array("f", [1.0, len(text) % 7, crc32(text.encode()) % 11]) for text in texts]

    async def close(self) -> None:
        pass


def fill(folder: Path, count: int) -> MemoryFiles:
    files = MemoryFiles(folder, durable=False)
    with files.changing(GLOBAL):
        for number in range(count):
            files.write(
                Entry(
                    content=f"Thing {number} stands in room x{number}.",
                    identity=f"turn-{number}",
                    role=Role.USER,
                    created=BEGIN + timedelta(minutes=number),
                    conversation="talk",
                )
            )
    return files


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places whose files are read."""
    places: list[str] = []
    reading = MemoryFiles.read

    def note(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        places.append(place)
        return reading(self, scope, place)

    monkeypatch.setattr(MemoryFiles, "read", note)
    return places


async def test_each_file_of_a_new_index_with_vectors_is_read_once(
    tmp_path: Path, read: list[str]
) -> None:
    fill(tmp_path, 150)
    memory = Memory(tmp_path, durable=False, embedder=QuickEmbedder())
    assert await memory.embed([GLOBAL]) == 150
    assert len(read) == len(set(read)) == 150
    await memory.close()


async def test_entries_that_do_not_fit_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setattr(index, "_ROOM", 100)
    fill(tmp_path, 20)
    memory = Memory(tmp_path, durable=False, embedder=QuickEmbedder())
    assert await memory.embed([GLOBAL]) == 20
    assert len(read) > 20
    (found, *_) = await memory.search("x7")
    assert found.entry.identity == "turn-7"
    await memory.close()


def test_a_new_entry_takes_two_statements(tmp_path: Path) -> None:
    statements: list[str] = []
    indexed = ScopeIndex(fill(tmp_path, 60), GLOBAL)
    database = indexed._database
    assert isinstance(database, IndexDatabase)
    database._database.set_trace_callback(statements.append)
    indexed.refresh()
    ours = [one for one in statements if not one.startswith("--")]
    # Besides those of the transaction, and of the first turn of the conversation.
    assert len(ours) <= 2 * 60 + 5


async def test_vectors_of_a_new_index_are_sorted_into_lists_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    learned: list[int] = []
    learn = VectorIndex._learn

    def note(self: VectorIndex) -> None:
        learned.append(len(self))
        learn(self)

    monkeypatch.setattr(VectorIndex, "_learn", note)
    monkeypatch.setattr(vectors, "FLAT", 20)
    fill(tmp_path, 200)
    memory = Memory(tmp_path, durable=False, embedder=QuickEmbedder())
    await memory.search("x7")
    assert learned == [200]
    await memory.close()
    again = Memory(tmp_path, durable=False, embedder=QuickEmbedder())
    await again.search("x7")
    assert learned == [200]
    await again.close()


async def test_a_quick_embedder_gets_more_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    write = EmbeddingCache.write

    def note(self: EmbeddingCache, model: str, made: dict[bytes, array[float]], epoch: int) -> None:
        commits.append(len(made))
        write(self, model, made, epoch)

    monkeypatch.setattr(EmbeddingCache, "write", note)
    monkeypatch.setattr(Pace, "quick_seconds", 1e9)
    fill(tmp_path, 1000)
    memory = Memory(tmp_path, durable=False, embedder=QuickEmbedder())
    await memory.embed([GLOBAL])
    assert commits == [64, 128, 256, 512, 40]
    await memory.close()


def test_slow_work_is_done_in_small_parts() -> None:
    pace = Pace(64, 256)
    for seconds, count in ((0.1, 128), (0.1, 256), (0.1, 256), (1.0, 256), (3.0, 128)):
        pace.note(seconds)
        assert pace.count == count
    for _ in range(3):
        pace.note(3.0)
    assert pace.count == 64


async def test_progress_is_reported_of_many_entries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_READ", 50)
    monkeypatch.setattr(Pace, "quick_seconds", -1.0)
    fill(tmp_path, 120)
    reported: list[IndexingProgress] = []
    memory = Memory(tmp_path, durable=False, embedder=QuickEmbedder(), report=reported.append)
    await memory.search("x7")
    assert reported == [
        *(IndexingProgress(READING, done, 120) for done in (50, 100, 120)),
        *(IndexingProgress(EMBEDDING, done, 120) for done in (64, 120)),
    ]
    await memory.add("The cat is black.", role=Role.USER)
    await memory.search("cat")
    assert len(reported) == 5
    await memory.close()


async def test_what_was_read_before_the_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setattr(index, "_READ", 10)
    fill(tmp_path, 100)
    loop = asyncio.get_running_loop()

    def report(progress: IndexingProgress) -> None:
        if progress.done == 30:
            loop.call_soon_threadsafe(search.cancel)
            memory._work._ended.wait()

    memory = Memory(tmp_path, durable=False, report=report)
    search = asyncio.create_task(memory.search("x7"))
    with pytest.raises(asyncio.CancelledError):
        await search
    await memory.close()
    before = len(read)
    # A part that has begun is completed.
    assert 30 <= before <= 60
    again = Memory(tmp_path, durable=False)
    assert [one.entry.identity for one in await again.search("x99")][:1] == ["turn-99"]
    assert len(set(read)) == 100
    assert len(read) < 100 + 20
    await again.close()


async def test_vectors_made_before_the_end_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "quick_seconds", -1.0)
    fill(tmp_path, 200)
    stopped = QuickEmbedder()

    def report(progress: IndexingProgress) -> None:
        if progress.stage == EMBEDDING:
            search.cancel()

    memory = Memory(tmp_path, durable=False, embedder=stopped, report=report)
    search = asyncio.create_task(memory.search("x7"))
    with pytest.raises(asyncio.CancelledError):
        await search
    await memory.close()
    assert sum(stopped.sizes) == 64
    embedder = QuickEmbedder()
    again = Memory(tmp_path, durable=False, embedder=embedder)
    await again.search("x7")
    assert sum(embedder.sizes) == 200 - 64
    await again.close()
