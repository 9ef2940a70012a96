"""What is kept of vectors: each made once, none left behind, and whatever happens to the file."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sqlite3
import stat
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.cross_loop_lock import CrossLoopLock
from vibe_llms.base.exceptions import ProviderUnreachable, StorageError
from vibe_llms.base.locks import locked
from vibe_llms.embedding import cache as cache_module
from vibe_llms.embedding.cache import (
    FILE,
    CachedEmbedder,
    EmbeddingCache,
    digest_text,
)
from vibe_llms.embedding.interfaces import Embedder

TEXTS = [f"the {number}th thing to remember" for number in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "embeddings"


def produce(embedder: Embedder, folder: Path, **options: Any) -> CachedEmbedder:
    return CachedEmbedder(embedder, EmbeddingCache(folder, **options))


def forget(folder: Path, texts: Iterable[str], **options: Any) -> None:
    EmbeddingCache(folder, **options).forget(map(digest_text, texts))


def retain(folder: Path, texts: Iterable[str]) -> None:
    EmbeddingCache(folder).retain(map(digest_text, texts))


def count(folder: Path) -> int:
    database = sqlite3.connect(folder / FILE)
    try:
        (found,) = database.execute("select count(*) from vectors").fetchone()
    finally:
        database.close()
    return int(found)


async def test_a_text_is_embedded_once(folder: Path) -> None:
    inner = WordsEmbedder()
    embedder = produce(inner, folder)
    assert embedder.model == "words"
    first = await embedder.embed([*TEXTS, TEXTS[0]])
    assert inner.texts == TEXTS
    assert first == await WordsEmbedder().embed([*TEXTS, TEXTS[0]])
    again = await produce(inner, folder).embed([*reversed(TEXTS), "a new one"])
    assert inner.texts == [*TEXTS, "a new one"]
    assert again[:-1] == [*reversed(first[:-1])]
    assert await embedder.embed([]) == []
    await embedder.close()
    assert inner.closed


class Slow(WordsEmbedder):
    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        await asyncio.sleep(0.01)
        return await super().embed(texts, question=question)


def embed_in_loops(folder: Path, lock: Callable[[], Any]) -> list[str]:
    """What goes wrong where one embedder is used in several event loops, with tasks that wait."""

    inner = Slow()
    embedder = produce(inner, folder)
    embedder._turn = lock()
    wrong: list[str] = []

    async def embed() -> None:
        try:
            async with asyncio.timeout(30 if lock is CrossLoopLock else 2):
                await asyncio.gather(*(embedder.embed(TEXTS[start:]) for start in range(8)))
        except (RuntimeError, TimeoutError) as error:
            wrong.append(repr(error))

    # One after the other, and then some at the same time in threads of their own.
    for _ in range(2):
        asyncio.run(embed())
    cache = EmbeddingCache(folder)
    cache.discard("words")
    threads = [threading.Thread(target=lambda: asyncio.run(embed())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sorted(inner.texts) != sorted(2 * TEXTS):
        wrong.append("texts were embedded more than once")
    return wrong


def test_one_embedder_serves_several_event_loops(folder: Path) -> None:
    assert embed_in_loops(folder, CrossLoopLock) == []


def test_a_lock_of_one_event_loop_is_detected(folder: Path) -> None:
    assert any("event loop" in one for one in embed_in_loops(folder, asyncio.Lock))


async def test_questions_are_not_kept(folder: Path) -> None:
    inner = WordsEmbedder()
    embedder = produce(inner, folder)
    await embedder.embed(["where do I live?"], question=True)
    await embedder.embed(["where do I live?"], question=True)
    assert len(inner.batches) == 2
    assert not folder.exists()


async def test_models_are_kept_apart(folder: Path) -> None:
    one, other = WordsEmbedder(model="one"), WordsEmbedder(model="other", dimensions=8)
    for embedder in (one, other, one, other):
        (vector,) = await produce(embedder, folder).embed(["cheese"])
        assert vector == (await embedder.embed(["cheese"]))[0]
    assert (len(one.batches), len(other.batches)) == (3, 3)


async def test_a_model_with_other_vectors_under_the_same_name_is_detected(folder: Path) -> None:
    await produce(WordsEmbedder(8), folder).embed(TEXTS)
    await produce(WordsEmbedder(8, model="other"), folder).embed(TEXTS)
    inner = WordsEmbedder(16)
    found = await produce(inner, folder).embed([*TEXTS, "one more"])
    assert {len(vector) for vector in found} == {16}
    # Nothing of it is left, and the other model's are untouched.
    assert count(folder) == len(TEXTS)


async def test_what_was_made_before_a_failure_is_not_made_again(folder: Path) -> None:
    class Failing(WordsEmbedder):
        async def embed(
            self, texts: Sequence[str], *, question: bool = False
        ) -> Sequence[array[float]]:
            if len(self.batches) == 2:
                self.failure = ProviderUnreachable("gone", provider="x")
            return await super().embed(texts, question=question)

    texts = [f"text {number}" for number in range(1000)]
    failing = Failing(4)
    with pytest.raises(ProviderUnreachable):
        await produce(failing, folder).embed(texts)
    inner = WordsEmbedder(4)
    assert len(await produce(inner, folder).embed(texts)) == 1000
    assert len(inner.texts) == 1000 - sum(map(len, failing.batches[:2]))


async def test_two_tasks_embed_a_text_once(folder: Path) -> None:
    inner = Slow()
    embedder = produce(inner, folder)
    await asyncio.gather(*(embedder.embed(TEXTS[start:]) for start in range(8)))
    assert sorted(inner.texts) == sorted(TEXTS)


async def test_the_file_is_only_for_its_owner(folder: Path) -> None:
    before = os.umask(0)
    try:
        await produce(WordsEmbedder(), folder).embed(TEXTS)
    finally:
        os.umask(before)
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# Nothing is left behind.


def holds(folder: Path, vector: array[float], text: str) -> bool:
    """Whether any file has a part of a vector, or a digest, anywhere in its bytes."""
    parts = (vector.tobytes()[:64], vector.tobytes()[-64:], digest_text(text))
    found = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return any(part in found for part in parts)


async def test_what_is_forgotten_leaves_no_trace(folder: Path) -> None:
    embedder = produce(WordsEmbedder(), folder)
    other = produce(WordsEmbedder(model="other"), folder)
    texts = [f"text {number} of many" for number in range(300)]
    vectors = dict(zip(texts, await embedder.embed(texts), strict=True))
    others = dict(zip(texts, await other.embed(texts), strict=True))
    gone = texts[50:250:3]
    assert all(holds(folder, vectors[text], text) for text in gone)
    forget(folder, gone)
    for text in gone:
        assert not holds(folder, vectors[text], text)
        assert not holds(folder, others[text], text)
    left = set(texts) - set(gone)
    assert count(folder) == 2 * len(left)
    assert all(holds(folder, vectors[text], text) for text in left)


async def test_what_is_forgotten_while_it_is_made_is_not_kept(folder: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(WordsEmbedder):
        async def embed(
            self, texts: Sequence[str], *, question: bool = False
        ) -> Sequence[array[float]]:
            begun.set()
            await go_on.wait()
            return await super().embed(texts, question=question)

    cache = EmbeddingCache(folder)
    making = asyncio.create_task(CachedEmbedder(Slow(), cache).embed(["a secret"]))
    await begun.wait()
    cache.forget([digest_text("a secret")])
    go_on.set()
    assert len(await making) == 1
    assert cache.read("words", [digest_text("a secret")]) == {}


async def test_what_no_entry_has_any_more_is_removed(folder: Path) -> None:
    inner = WordsEmbedder()
    embedder = produce(inner, folder)
    (gone, *_) = await embedder.embed(TEXTS)
    retain(folder, [*TEXTS[1:10], "what was never embedded"])
    assert count(folder) == 9
    assert not holds(folder, gone, TEXTS[0])
    await embedder.embed(TEXTS[:10])
    assert inner.texts == [*TEXTS, TEXTS[0]]
    retain(folder, [])
    assert count(folder) == 0


def fill(folder: Path) -> tuple[EmbeddingCache, dict[bytes, array[float]]]:
    """A cache with so many vectors that rows move from page to page."""
    chance = random.Random(3)
    cache = EmbeddingCache(folder)
    vectors = {
        chance.randbytes(16): array("f", [chance.random() for _ in range(64)]) for _ in range(3000)
    }
    digests = list(vectors)
    for start in range(0, len(digests), 100):
        cache.write("m", {one: vectors[one] for one in digests[start : start + 100]})
    return cache, vectors


def count_digests(folder: Path, digests: Iterable[bytes]) -> int:
    data = (folder / FILE).read_bytes()
    return sum(one in data for one in digests)


def test_no_copy_of_a_digest_stays_where_rows_have_moved(folder: Path) -> None:
    cache, vectors = fill(folder)
    digests = random.Random(4).sample(list(vectors), 3000)
    for end in range(2500, 1000, -500):
        gone, kept = digests[end : end + 500], digests[:end]
        cache.forget(gone)
        cache.retain(kept)
        assert count_digests(folder, gone) == 0
        assert count_digests(folder, kept) == len(kept)


@pytest.mark.slow
def test_such_a_copy_would_be_detected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddingCache, "_write_anew", lambda self, database: None)
    cache, vectors = fill(folder)
    digests = random.Random(4).sample(list(vectors), 3000)
    for end in range(2900, 0, -100):
        cache.retain(digests[:end])
        if count_digests(folder, digests[end:]):
            return
    raise AssertionError("no copy was left")


def test_where_the_disk_is_full_the_file_is_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, database: sqlite3.Connection) -> None:
            self.database = database

        def __getattr__(self, name: str) -> object:
            return getattr(self.database, name)

        def execute(self, statement: str, *rest: object) -> sqlite3.Cursor:
            if statement == "vacuum":
                (pages,) = self.database.execute("pragma page_count").fetchone()
                self.database.execute(f"pragma max_page_count = {pages}")
                self.database.execute("create table filling (data)")
                self.database.execute("insert into filling values (zeroblob(1000000))")
            return self.database.execute(statement, *rest)  # type: ignore[arg-type]

    cache, vectors = fill(folder)
    opened = cache._open
    monkeypatch.setattr(cache, "_open", lambda: Full(opened()))
    cache.retain(list(vectors)[:10])
    assert not (folder / FILE).exists()
    monkeypatch.undo()
    assert cache.read("m", list(vectors)) == {}


async def test_without_the_forgetting_there_would_be_traces(folder: Path) -> None:
    embedder = produce(WordsEmbedder(), folder)
    vectors = await embedder.embed(TEXTS)
    database = sqlite3.connect(folder / FILE, isolation_level=None)
    # As SQLite deletes by itself: the bytes stay in the pages.
    database.execute("pragma secure_delete = off")
    database.execute("delete from vectors where digest != ?", [digest_text(TEXTS[-1])])
    database.close()
    assert any(map(holds, [folder] * 19, vectors, TEXTS))


async def test_forgetting_makes_no_file(folder: Path) -> None:
    forget(folder, TEXTS)
    retain(folder, TEXTS)
    assert not folder.exists()


async def test_the_oldest_go_where_there_are_too_many(folder: Path) -> None:
    inner = WordsEmbedder(8)
    embedder = produce(inner, folder, limit_bytes=10 * (8 * 4 + 4))
    for text in TEXTS:
        await embedder.embed([text])
    assert count(folder) == 10
    size = (folder / FILE).stat().st_size
    inner.batches.clear()
    await embedder.embed(TEXTS[10:])
    assert inner.batches == []
    for number in range(300):
        await embedder.embed([f"further {number}"])
    assert count(folder) == 10
    assert (folder / FILE).stat().st_size <= 2 * size


# What happens to the file.


def truncate(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(40):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def overwrite(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(4096))


def age(path: Path, chance: random.Random) -> None:
    database = sqlite3.connect(path)
    database.execute(f"pragma user_version = {chance.randrange(4, 99)}")
    database.close()


def empty_out(path: Path, chance: random.Random) -> None:
    database = sqlite3.connect(path)
    database.execute(chance.choice(["drop table vectors", "drop table models"]))
    database.commit()
    database.close()


@pytest.mark.parametrize("harm", [truncate, flip, overwrite, age, empty_out])
async def test_a_damaged_file_is_made_anew(
    folder: Path, harm: Callable[[Path, random.Random], None]
) -> None:
    expected = await WordsEmbedder().embed(TEXTS)
    chance = random.Random(4)
    for _ in range(15):
        await produce(WordsEmbedder(), folder).embed(TEXTS)
        harm(folder / FILE, chance)
        inner = WordsEmbedder()
        # Nothing that is wrong comes out, whatever was hit.
        assert await produce(inner, folder).embed(TEXTS) == expected
        assert await produce(inner, folder).embed(TEXTS) == expected
        harm(folder / FILE, chance)
        forget(folder, TEXTS[:3])
        assert not any(map(holds, [folder] * 3, expected, TEXTS))


async def test_a_vector_that_changed_on_the_disk_would_be_detected(folder: Path) -> None:
    cache = EmbeddingCache(folder)
    digest, other = digest_text("one"), digest_text("other")
    cache.write("m", {digest: array("f", [0.6, 0.8]), other: array("f", [0.8, 0.6])})
    database = sqlite3.connect(folder / FILE, isolation_level=None)
    (first,) = database.execute("select vector from vectors where digest = ?", [digest]).fetchone()
    # One row with the vector of the other, one with a bit that has changed, and some nonsense.
    database.execute("update vectors set vector = ? where digest = ?", [first, other])
    assert list(cache.read("m", [digest, other])) == [digest]
    for data in (first[:-1] + b"x", b"", b"1234", "text", 7):
        database.execute("update vectors set vector = ? where digest = ?", [data, digest])
        assert cache.read("m", [digest]) == {}
    database.close()


def leaves_to_the_writer_what_is_damaged(folder: Path) -> bool:
    """Whether a reader removes no damaged file, which another process may be making anew."""
    cache = EmbeddingCache(folder, lock_seconds=0.05)
    digest = digest_text("one")
    cache.write("m", {digest: array("f", [0.6, 0.8])})
    overwrite(folder / FILE, random.Random(4))
    before = (folder / FILE).read_bytes()
    with locked(folder, seconds=1):
        assert cache.read("m", [digest]) == {}
    left = (folder / FILE).read_bytes() == before
    cache.write("m", {digest: array("f", [0.6, 0.8])})
    assert list(cache.read("m", [digest])) == [digest]
    return left


def test_a_damaged_file_is_made_anew_under_the_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaves_to_the_writer_what_is_damaged(folder)

    def read(self: EmbeddingCache, model: str, digests: Sequence[bytes]) -> Any:
        return self._attempt(lambda database: cache_module._read(database, model, digests))

    monkeypatch.setattr(EmbeddingCache, "read", read)
    assert not leaves_to_the_writer_what_is_damaged(folder)


def test_the_journal_goes_before_the_file_that_it_is_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EmbeddingCache(folder)
    cache.write("m", {digest_text("one"): array("f", [0.6, 0.8])})
    journal = folder / f"{FILE}-journal"
    overwrite(folder / FILE, random.Random(4))
    journal.write_bytes(b"")
    gone: list[str] = []
    unlink = os.unlink

    def note(path: str | Path) -> None:
        gone.append(Path(path).name)
        unlink(path)

    monkeypatch.setattr(os, "unlink", note)
    cache.forget([])
    assert gone[0] == journal.name
    assert FILE in gone


async def test_where_nothing_can_be_kept_it_works_without(folder: Path) -> None:
    inner = WordsEmbedder()
    embedder = produce(inner, folder, lock_seconds=0.05)
    await embedder.embed(TEXTS[:3])
    with locked(folder, seconds=1):
        assert len(await embedder.embed(TEXTS)) == 20
        with pytest.raises(StorageError):
            forget(folder, TEXTS, lock_seconds=0.05)
    assert count(folder) == 3
    # A folder where the file belongs, and a file where the folder does.
    os.unlink(folder / FILE)
    (folder / FILE).mkdir()
    assert len(await embedder.embed(TEXTS)) == 20
    with pytest.raises(StorageError):
        forget(folder, TEXTS)
    elsewhere = folder.parent / "file"
    elsewhere.write_text("x")
    assert len(await produce(inner, elsewhere).embed(TEXTS)) == 20


async def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    target = tmp_path / "target"
    target.write_bytes(b"")
    (folder / FILE).symlink_to(target)
    embedder = produce(WordsEmbedder(), folder)
    assert len(await embedder.embed(TEXTS)) == 20
    assert target.read_bytes() == b""
    with pytest.raises(StorageError, match="link"):
        forget(folder, TEXTS)


def work(folder: Path, seed: int) -> None:
    async def embed() -> None:
        chance = random.Random(seed)
        embedder = produce(WordsEmbedder(8), folder)
        expected = dict(zip(TEXTS, await WordsEmbedder(8).embed(TEXTS), strict=True))
        for _ in range(25):
            texts = chance.sample(TEXTS, 5)
            assert await embedder.embed(texts) == [expected[text] for text in texts]
            if chance.random() < 0.2:
                forget(folder, texts)
            if chance.random() < 0.05:
                overwrite(folder / FILE, chance)

    asyncio.run(embed())


async def test_several_processes_share_it(folder: Path) -> None:
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(folder, seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
