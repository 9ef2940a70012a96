"""A memory with an embedder: found by meaning, in step with its files, never a mix of models."""

from __future__ import annotations

import asyncio
import math
import random
from array import array
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.memory.test_index import damage
from vibe_llms.base.exceptions import ModelUnavailable, ProviderUnreachable, RequestRefused
from vibe_llms.embedding import embedding as embeddings
from vibe_llms.embedding.cache import EMBEDDINGS, EmbeddingCache, digest_text
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.memory import scanner, snapshot
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import GLOBAL, Role, Scope
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.retrieval import Recollection, RetrievalSettings
from vibe_llms.memory.store import IndexedStore
from vibe_llms.memory.versions import Versions

ALIKE = {"feline": "cat", "residence": "home", "vehicle": "car"}


class MeaningEmbedder(WordsEmbedder):
    """For it some words mean the same."""

    def __init__(self) -> None:
        # So many that two words are hardly alike by chance.
        super().__init__(dimensions=512)

    def embed_one(self, text: str) -> array[float]:
        """The vector of a text."""
        for word, meaning in ALIKE.items():
            text = text.replace(word, meaning)
        return super().embed_one(text)


def open_memory(
    folder: Path, embedder: Embedder | None, reported: list[str] | None = None
) -> Memory:
    notify = (lambda _: None) if reported is None else reported.append
    return Memory(folder, durable=False, embedder=embedder, notify=notify)


def contents(found: Sequence[Recollection]) -> list[str]:
    return [one.entry.content for one in found]


async def test_what_means_the_same_in_other_words_is_found(tmp_path: Path) -> None:
    plain = open_memory(tmp_path / "plain", None)
    memory = open_memory(tmp_path / "vectors", MeaningEmbedder())
    for one in (plain, memory):
        await one.add("The cat is black.")
        await one.add("The harbour is far away.")
    assert await plain.search("feline?") == []
    (found,) = await memory.search("feline?")
    assert found.entry.content == "The cat is black."
    assert found.reasons["words"] == 0
    assert found.reasons["meaning"] > 0.5
    # Where the words fit too, both count.
    (found, *_) = await memory.search("black feline")
    assert found.reasons["words"] > 0.2 < found.reasons["meaning"]
    assert await memory.search("orchard") == []


async def test_each_text_is_embedded_once_and_in_batches(tmp_path: Path) -> None:
    embedder = WordsEmbedder()
    memory = open_memory(tmp_path, embedder)
    for number in range(150):
        await memory.add(f"Thing {number} stands there. It is number {number}.", role=Role.USER)
    assert embedder.batches == []
    counts: list[int] = []
    assert await memory.embed(progress=counts.append) == 150
    assert counts == [64, 150]
    assert len(embedder.texts) == 300
    await memory.search("thing 7")
    await memory.close()
    assert embedder.texts[300:] == ["thing 7"]
    assert embedder.closed
    again = WordsEmbedder()
    other = open_memory(tmp_path, again)
    (found, *_) = await other.search("Thing 7 stands there")
    assert found.reasons["meaning"] == pytest.approx(1, abs=1e-5)
    assert again.texts == ["Thing 7 stands there"]


async def test_vectors_follow_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where a scan takes longer, as on a busy machine, the next one may rest for a moment.
    monkeypatch.setattr(scanner, "_QUICK", math.inf)
    memory = open_memory(tmp_path, MeaningEmbedder())
    cat = await memory.add("The cat is black.")
    car = await memory.add("The car is red.")
    assert len(await memory.search("feline")) == 1
    (path,) = tmp_path.rglob(f"*{cat.identity}.md")
    path.write_text(path.read_text("utf-8").replace("cat", "home"), "utf-8")
    assert contents(await memory.search("residence")) == ["The home is black."]
    assert await memory.search("feline") == []
    await memory.remove(car.identity)
    assert await memory.search("vehicle") == []
    await memory.revise(cat.identity, content="The car is green.")
    assert contents(await memory.search("vehicle")) == ["The car is green."]
    await memory.forget("green")
    assert await memory.search("vehicle") == []


async def search_at_random(folder: Path, rounds: int) -> bool:
    """Whether every text that is there is found by itself first, whatever changed before."""
    chance = random.Random(5)
    scope = Scope.of_user("ada")
    memory = open_memory(folder, WordsEmbedder())
    known: dict[str, str] = {}
    for number in range(rounds):
        text = f"w{chance.randrange(60)} w{chance.randrange(60)} x{number}"
        kind = chance.random()
        if kind < 0.5 or not known:
            known[(await memory.add(text, scope=scope)).identity] = text
        else:
            identity = chance.choice(sorted(known))
            if kind < 0.75:
                await memory.revise(identity, content=text)
                known[identity] = text
            else:
                await memory.remove(identity)
                del known[identity]
        if number % 40 == 0:
            await memory.close()
            memory = open_memory(folder, WordsEmbedder())
        for identity in chance.sample(sorted(known), min(len(known), 3)):
            (first, *_) = await memory.search(known[identity], scopes=[scope])
            if first.entry.content != known[identity] or first.reasons["meaning"] < 0.999:
                return False
    return True


@pytest.mark.storm
async def test_a_vector_belongs_to_the_text_that_is_found(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    assert await search_at_random(tmp_path, rounds(120, 350))


async def test_vectors_of_others_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ScopeIndex.take_vectors

    def shift(self: ScopeIndex, vectors: dict[int, Sequence[array[float]]]) -> None:
        take(self, {number: [some[0][::-1]] for number, some in vectors.items()})

    monkeypatch.setattr(ScopeIndex, "take_vectors", shift)
    assert not await search_at_random(tmp_path, 5)


class ForgettingEmbedder(WordsEmbedder):
    """While it works for the first time, something else is done."""

    def __init__(self, interrupt: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._interrupt: Callable[[], Awaitable[object]] | None = interrupt

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text, when the other thing has been done."""
        vectors = await super().embed(texts, question=question)
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            await interrupt()
        return vectors


async def search_while_forgetting(folder: Path) -> list[float]:
    """How near entries are to their own words, which were embedded while others were forgotten."""

    async def forget() -> None:
        # The index is made anew, so that its numbers are those of other entries.
        assert len(await memory.forget("Secret")) == 1

    memory = open_memory(folder, ForgettingEmbedder(forget))
    texts = ["Ada likes apples.", "Ben owns a boat.", "Cid climbs cliffs."]
    await memory.add("Secret is the first one.")
    for text in texts:
        await memory.add(text)
    await memory.embed()
    return [(await memory.search(text))[0].reasons["meaning"] for text in texts]


async def test_vectors_stay_with_their_texts_where_the_index_is_made_anew_at_the_same_time(
    tmp_path: Path,
) -> None:
    assert await search_while_forgetting(tmp_path) == pytest.approx([1.0] * 3, abs=1e-4)


async def test_vectors_of_other_numbers_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ScopeIndex, "find_unchanged", lambda _, records: [one.number for one in records]
    )
    assert min(await search_while_forgetting(tmp_path)) < 0.9


async def test_a_failure_is_reported_once_and_keyword_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    embedder = MeaningEmbedder()
    embedder.failure = ProviderUnreachable("no answer", provider="p", code="unreachable")
    memory = open_memory(tmp_path, embedder, reported)
    await memory.add("The cat is black.")
    for _ in range(3):
        (found,) = await memory.search("cat")
        assert set(found.reasons) == {"words"}
    assert reported == ["memory is searched by words only: p: no answer"]
    # It is not asked again and again by those who wait for an answer.
    assert len(embedder.batches) == 1
    embedder.failure = None
    monkeypatch.setattr(embeddings, "_PAUSE_SECONDS", 0.0)
    memory = open_memory(tmp_path, embedder, reported)
    assert len(await memory.search("feline")) == 1
    # A failure later on does not hide what has vectors.
    embedder.failure = ProviderUnreachable("no answer", provider="p", code="unreachable")
    assert contents(await memory.search("cat")) == ["The cat is black."]
    embedder.failure = None
    assert len(await memory.search("feline")) == 1


async def survive_damage(folder: Path, points: int) -> bool:
    """Whether a memory is right after a file of its index was truncated, or a bit in it turned."""
    memory = open_memory(folder, WordsEmbedder())
    for number in range(30):
        await memory.add(f"lantern w{number}")
    await memory.search("lantern")
    await memory.close()
    (generation,) = (folder / "index" / "global").iterdir()
    whole = {path: path.read_bytes() for path in sorted(generation.iterdir())}
    assert {path.name for path in whole} == {"manifest", "database", "vectors"}
    chance = random.Random(7)
    for point in range(points):
        path = chance.choice(sorted(whole))
        path.write_bytes(damage(whole[path], chance))
        reported: list[str] = []
        index = open_memory(folder, WordsEmbedder(), reported)
        (first, *_) = await index.search(f"lantern w{point % 30}")
        right = first.entry.content == f"lantern w{point % 30}"
        if reported or not right or first.reasons["meaning"] < 0.999:
            return False
        path.write_bytes(whole[path])
    return True


@pytest.mark.storm
async def test_an_index_with_damaged_vectors_is_made_anew(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    assert await survive_damage(tmp_path, rounds(60, 200))


async def test_vectors_without_checksums_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_digest", lambda data: "")
    with pytest.raises((AssertionError, ValueError, KeyError, IndexError, TypeError)):
        assert await survive_damage(tmp_path, 60)


CHANGES = [
    (WordsEmbedder(64, "a"), WordsEmbedder(64, "b")),
    (WordsEmbedder(64, "a"), WordsEmbedder(32, "b")),
    (WordsEmbedder(64, "a dimensions=64"), WordsEmbedder(32, "a dimensions=32")),
    (WordsEmbedder(64, "x/a"), WordsEmbedder(64, "y/a")),
    (WordsEmbedder(64, "a"), WordsEmbedder(64, "A")),
    (WordsEmbedder(64, "a"), WordsEmbedder(32, "a")),
]


async def mix_models(folder: Path, first: Embedder, second: Embedder) -> bool:
    """Whether a change of model is reported, and no vector of one is compared with the other's."""
    memory = open_memory(folder, first)
    for number in range(20):
        await memory.add(f"lantern number {number}")
    await memory.search("lantern")
    await memory.close()
    right = True
    for _ in range(2):
        # The next process reports it too, as long as nothing was done about it.
        reported: list[str] = []
        memory = open_memory(folder, second, reported)
        await memory.add("one more lantern")
        found = await memory.search("lantern")
        await memory.search("harbour")
        await memory.close()
        right = right and len(found) == 10 and all("meaning" not in one.reasons for one in found)
        right = right and len(reported) == 1 and "vibe-llms memory reindex" in reported[0]
    memory = open_memory(folder, second)
    await memory.reindex()
    (best, *_) = await memory.search("one more lantern")
    await memory.close()
    return right and best.reasons["meaning"] > 0.999


@pytest.mark.parametrize(("first", "second"), CHANGES)
async def test_vectors_of_different_models_never_mix(
    tmp_path: Path, first: Embedder, second: Embedder
) -> None:
    assert await mix_models(tmp_path, first, second)


async def test_an_index_made_anew_has_vectors_at_once(tmp_path: Path) -> None:
    reported: list[str] = []
    memory = open_memory(tmp_path, embedder := MeaningEmbedder(), reported)
    await memory.add("The cat is black.")
    embedder.failure = ProviderUnreachable("no route", provider="words")
    assert await memory.search("feline?") == []
    assert len(reported) == 1
    embedder.failure = None
    # It is left alone for a while, but not when its vectors are asked for.
    assert await memory.search("feline?") == []
    await memory.reindex()
    (found,) = await memory.search("feline?")
    assert found.entry.content == "The cat is black."
    await memory.close()


async def test_models_that_mix_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScopeIndex, "mixed", False)
    assert not await mix_models(tmp_path, *CHANGES[0])


async def test_without_the_embedder_words_go_on_and_nothing_mixes_later(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, MeaningEmbedder())
    await memory.add("The cat is black.")
    await memory.search("cat")
    await memory.close()
    plain = open_memory(tmp_path, None)
    for number in range(80):
        await plain.add(f"The car of neighbour {number} is red.")
    assert len(await plain.search("cat")) == 1
    await plain.close()
    memory = open_memory(tmp_path, MeaningEmbedder())
    assert contents(await memory.search("feline"))[0] == "The cat is black."
    assert len(await memory.search("vehicle")) == 10


async def test_a_missing_package_is_reported_once_and_keyword_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    reported: list[str] = []
    memory = open_memory(tmp_path, WordsEmbedder(), reported)
    await memory.add("The cat is black.")
    for _ in range(2):
        assert contents(await memory.search("cat")) == ["The cat is black."]
    assert len(reported) == 1
    assert "pip install 'vibe-llms[memory]'" in reported[0]


class Slow(WordsEmbedder):
    """Others get their turn while it thinks."""

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        await asyncio.sleep(0.005)
        return await super().embed(texts, question=question)


async def keeps_what_another_forgot(folder: Path, *, fails: bool) -> bool:
    """Whether vectors are kept of what another process forgets while they are made."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Waiting(WordsEmbedder):
        async def embed(
            self, texts: Sequence[str], *, question: bool = False
        ) -> Sequence[array[float]]:
            begun.set()
            await go_on.wait()
            if fails and self.batches:
                # What was made of the batch before is kept.
                raise ProviderUnreachable("gone", provider="x")
            return await super().embed(texts, question=question)

    # Each has a cache of its own, as processes have.
    memory, other = open_memory(folder, Waiting()), open_memory(folder, None)
    for number in range(60):
        sentences = " ".join(f"The lantern {number} has {word} oil." for word in "abcde")
        await memory.add(sentences, role=Role.USER)
    await memory.add("A secret.")
    await memory.add("The harbour.")
    making = asyncio.create_task(memory.embed())
    await begun.wait()
    assert [entry.content for entry in await other.forget("secret")] == ["A secret."]
    go_on.set()
    assert (await making < 60) == fails
    cache = EmbeddingCache(folder / EMBEDDINGS)
    secret, harbour = map(digest_text, ("A secret.", "The harbour."))
    found = cache.read("words", [secret, harbour])
    assert harbour in found
    return secret in found


@pytest.mark.parametrize("fails", [False, True])
async def test_what_another_process_forgets_while_its_vector_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    assert not await keeps_what_another_forgot(tmp_path / "ours", fails=fails)
    monkeypatch.setattr(IndexedStore, "forget_vectors", lambda *_: None)
    assert await keeps_what_another_forgot(tmp_path / "theirs", fails=fails)


async def test_what_only_moved_while_its_vector_was_made_keeps_it(tmp_path: Path) -> None:
    class Moving(WordsEmbedder):
        async def embed(
            self, texts: Sequence[str], *, question: bool = False
        ) -> Sequence[array[float]]:
            if not question and not self.batches:
                await other.revise(entry.identity, importance=0.9)
            return await super().embed(texts, question=question)

    embedder = Moving()
    memory, other = open_memory(tmp_path, embedder), open_memory(tmp_path, None)
    entry = await memory.add("The harbour.")
    assert len(await memory.search("harbour")) == 1
    await memory.search("harbour")
    assert embedder.texts.count("The harbour.") == 1


@pytest.mark.parametrize("threads", [False, True])
def test_a_memory_serves_several_event_loops(tmp_path: Path, threads: bool) -> None:
    embedder = Slow()
    memory = open_memory(tmp_path, embedder)

    async def work(seed: int) -> None:
        async with asyncio.timeout(60):
            scopes = [Scope.of_user(f"user{number}") for number in range(4)]
            for scope in scopes:
                await memory.add(f"The harbour {seed} of {scope.name} is far away.", scope=scope)
            found = await asyncio.gather(
                *(memory.search(f"harbour {seed}", scopes=[scope]) for scope in scopes)
            )
            assert all(some and "meaning" in some[0].reasons for some in found)

    if threads:
        with ThreadPoolExecutor(3) as pool:
            for _ in pool.map(lambda seed: asyncio.run(work(seed)), range(3)):
                pass
    else:
        for seed in range(3):
            asyncio.run(work(seed))
    assert len(asyncio.run(memory.survey())) == 12
    texts = [text for text in embedder.texts if text.startswith("The harbour")]
    assert len(texts) == len(set(texts)) == 12


async def test_a_close_that_is_cancelled_closes_the_embedder_all_the_same(tmp_path: Path) -> None:
    class Waiting(Versions):
        async def close(self) -> None:
            begun.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()
    embedder = WordsEmbedder()
    memory = Memory(tmp_path, embedder=embedder, versions=Waiting(tmp_path))
    closing = asyncio.create_task(memory.close())
    await begun.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert embedder.closed


async def test_a_file_that_was_emptied_by_hand_holds_nothing_up(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, WordsEmbedder())
    cat = await memory.add("The cat is black.")
    await memory.add("The harbour is far away.")
    (path,) = tmp_path.rglob(f"*{cat.identity}.md")
    path.write_text(path.read_text("utf-8").replace("The cat is black.", ""), "utf-8")
    async with asyncio.timeout(30):
        found = await memory.search("The harbour is far away.")
        assert contents(found) == ["The harbour is far away."]
        assert found[0].reasons["meaning"] == pytest.approx(1, abs=1e-5)
        assert await memory.embed() == 0
        assert (await Deduplication(memory).run(GLOBAL)).groups == ()
    await memory.close()
    again = open_memory(tmp_path, WordsEmbedder())
    assert len(await again.search("harbour")) == 1


async def test_with_diversity_what_means_the_same_leaves_room(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, MeaningEmbedder())
    for text in ("A cat at home.", "A feline at the residence.", "A cat by the harbour wall."):
        await memory.add(text)
    plain = RetrievalSettings(limit=2)
    diverse = RetrievalSettings(limit=2, mmr_lambda=0.4)
    assert "A cat by the harbour wall." not in contents(
        await memory.search("cat at home", settings=plain)
    )
    assert "A cat by the harbour wall." in contents(
        await memory.search("cat at home", settings=diverse)
    )


async def test_summaries_are_not_found_but_by_those_who_ask_for_them(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, WordsEmbedder())
    await memory.add("The lantern is lit.", role=Role.SUMMARY, category="L3")
    await memory.add("The lantern is old.")
    assert contents(await memory.search("lantern")) == ["The lantern is old."]
    found = await memory.search("lantern", scopes=[GLOBAL], roles=[Role.SUMMARY])
    assert contents(found) == ["The lantern is lit."]


class Picky(WordsEmbedder):
    """Refuses a batch for one text with a certain word."""

    def __init__(self, word: str) -> None:
        super().__init__(512)
        self.word = word

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text, or none for any."""
        found = await super().embed(texts, question=question)
        if any(self.word in text for text in texts):
            raise RequestRefused("a text is blocked", provider="picky", status=400)
        return found


async def test_texts_that_are_refused_leave_all_others_their_vectors(tmp_path: Path) -> None:
    reported: list[str] = []
    embedder = Picky("forbidden")
    memory = open_memory(tmp_path, embedder, reported)
    for number in range(100):
        await memory.add(f"Thing {number} stands there.", role=Role.USER)
    await memory.add("This is forbidden indeed.")
    await memory.add("One sentence is fine. Another is forbidden.")
    await memory.embed()
    (line,) = reported
    assert line == (
        "the embedder words refuses 2 texts; they are found by words only: picky: a text is blocked"
    )
    # By halves, and not one by one.
    assert len(embedder.batches) < 30
    for number in (0, 50, 99):
        (found, *_) = await memory.search(f"Thing {number} stands there.")
        assert found.reasons["meaning"] == pytest.approx(1, abs=1e-5)
    (found, *_) = await memory.search("One sentence is fine.")
    assert found.reasons["meaning"] == pytest.approx(1, abs=1e-5)
    (found, *_) = await memory.search("indeed")
    assert found.entry.content == "This is forbidden indeed."
    assert found.reasons["meaning"] == 0
    before = len(embedder.batches)
    await memory.add("A new thing is there.")
    await memory.search("indeed")
    # The new one and the question; what was refused is not asked again, nor reported.
    assert len(embedder.batches) == before + 2
    assert len(reported) == 1
    # Who wants all anew gets it, with what was refused before.
    embedder.word = "nothing of it"
    await memory.reindex()
    (found, *_) = await memory.search("This is forbidden indeed.")
    assert found.reasons["meaning"] == pytest.approx(1, abs=1e-5)
    await memory.close()


async def test_a_question_that_is_refused_stops_no_other(tmp_path: Path) -> None:
    reported: list[str] = []
    memory = open_memory(tmp_path, Picky("forbidden"), reported)
    await memory.add("The cat is black.")
    for _ in range(2):
        (found,) = await memory.search("forbidden cat")
        assert set(found.reasons) == {"words"}
    assert reported == ["a question is searched by words only: picky: a text is blocked"]
    (found,) = await memory.search("cat")
    assert "meaning" in found.reasons


@pytest.mark.parametrize("error", [RequestRefused, ModelUnavailable])
async def test_an_embedder_that_refuses_everything_is_not_asked_for_each_text(
    tmp_path: Path, error: type[RequestRefused]
) -> None:
    reported: list[str] = []
    embedder = WordsEmbedder()
    embedder.failure = error("no such size", provider="words")
    memory = open_memory(tmp_path, embedder, reported)
    for number in range(100):
        await memory.add(f"Thing {number} stands there.", role=Role.USER)
    assert len(await memory.search("thing")) == 10
    assert reported == ["memory is searched by words only: words: no such size"]
    assert len(embedder.batches) <= 2


async def test_a_server_that_goes_away_while_texts_are_divided_is_reported(tmp_path: Path) -> None:
    class Leaving(Picky):
        async def embed(
            self, texts: Sequence[str], *, question: bool = False
        ) -> Sequence[array[float]]:
            if self.batches:
                raise ProviderUnreachable("gone", provider="picky")
            return await super().embed(texts, question=question)

    reported: list[str] = []
    memory = open_memory(tmp_path, Leaving("forbidden"), reported)
    await memory.add("It is forbidden.")
    await memory.add("It is allowed.")
    assert len(await memory.search("allowed")) == 1
    assert reported == ["memory is searched by words only: picky: gone"]
    reported.clear()
    memory = open_memory(tmp_path / "other", Leaving("forbidden"), reported)
    assert await memory.search("forbidden") == []
    assert reported == ["memory is searched by words only: picky: gone"]


async def test_a_recall_that_is_done_reports_no_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    call_later, timers = loop.call_later, list[asyncio.TimerHandle]()

    def note(delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, callback, *arguments))
        return timers[-1]

    memory = open_memory(tmp_path, WordsEmbedder())
    await memory.add("Ada likes tea.")
    monkeypatch.setattr(loop, "call_later", note)
    assert len(await memory.recall("tea", seconds=60)) == 1
    assert timers
    assert all(timer.cancelled() for timer in timers)
