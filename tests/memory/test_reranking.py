"""What a model thinks of what was found decides what stays and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ProviderError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Entry, Role
from vibe_llms.memory.reranking import Reranking, RerankingSettings, rerank
from vibe_llms.memory.retrieval import Recollection, RetrievalSettings
from vibe_llms.memory.settings import produce_memory, produce_reranking, read_memory_settings
from vibe_llms.storage.backends import open_backend

NOW = datetime(2026, 5, 4, tzinfo=UTC)


class Judge:
    """A reranker that thinks much of texts with a word, and little of all others."""

    def __init__(self, word: str, much: float = 3.0, little: float = -3.0) -> None:
        self.word, self.much, self.little = word, much, little
        self.asked: list[tuple[str, Sequence[str]]] = []
        self.failure: ProviderError | None = None
        self.closed = 0

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        self.asked.append((question, texts))
        if self.failure is not None:
            raise self.failure
        return [self.much if self.word in text else self.little for text in texts]

    async def close(self) -> None:
        self.closed += 1


def produce(folder: Path, judge: Judge, **settings: float) -> Memory:
    chosen = RerankingSettings(**settings)  # type: ignore[arg-type]
    return Memory(folder, durable=False, reranking=Reranking(judge, chosen))


async def fill(memory: Memory) -> None:
    for text in ("The lantern is red.", "A lantern hangs here.", "Whoever lit the lantern left."):
        await memory.add(text, created=NOW)


def recall(*scores: float) -> list[Recollection]:
    return [
        Recollection(Entry(content="x", identity=f"e{number}", created=NOW), 0.5, {})
        for number, _ in enumerate(scores)
    ]


def test_logits_become_shares_by_themselves_and_small_ones_go() -> None:
    scores = (5.0, 0.0, -0.6, -0.7, -900.0, 900.0)
    shares = rerank(recall(*scores), scores, RerankingSettings())
    assert {name: round(share, 3) for name, share in shares.items()} == {
        "e0": 0.993,
        "e1": 0.5,
        "e2": 0.354,
        "e5": 1.0,
    }
    # By the best and the worst of them, one of two would always be perfect.
    assert rerank(recall(-4, -5), (-4.0, -5.0), RerankingSettings()) == {}
    assert len(rerank(recall(*scores), scores, RerankingSettings(threshold=0.0))) == 6
    with pytest.raises(ValueError):
        rerank(recall(1.0), (1.0, 2.0), RerankingSettings())


async def test_the_order_is_that_of_the_model_and_what_fits_too_little_is_not_found(
    tmp_path: Path,
) -> None:
    judge = Judge("hangs")
    memory = produce(tmp_path, judge)
    await fill(memory)
    (found,) = await memory.search("Which lantern?", now=NOW)
    assert found.entry.content == "A lantern hangs here."
    assert found.score == found.reasons["reranking"] == pytest.approx(0.9526, abs=1e-4)
    assert 0 < found.reasons["words"] < 1
    ((question, texts),) = judge.asked
    assert question == "Which lantern?"
    assert len(texts) == 3
    judge.word = "nothing has this"
    assert await memory.search("Which lantern?", now=NOW) == []
    await memory.close()
    assert judge.closed == 1


async def test_nothing_found_is_not_judged_and_what_is_said_has_its_speaker(
    tmp_path: Path,
) -> None:
    judge = Judge("Ada: ")
    memory = produce(tmp_path, judge)
    assert await memory.search("lantern") == []
    assert judge.asked == []
    await memory.add("The lantern is red.", role=Role.USER, speaker="Ada")
    await memory.add("The lantern is green " + "and old " * 500)
    assert len(await memory.search("lantern")) == 1
    assert max(len(text) for _, texts in judge.asked for text in texts) == 2000


async def test_recency_and_importance_weigh_after_the_model(tmp_path: Path) -> None:
    memory = produce(tmp_path, Judge("lantern", much=1.0))
    await memory.add("The lantern is new.", created=NOW)
    await memory.add("lantern", created=NOW - timedelta(days=300))
    settings = RetrievalSettings(recency="always", recency_weight=0.2)
    found = await memory.search("lantern", settings=settings, now=NOW)
    share = 0.7310585786300049
    assert [one.entry.content for one in found] == ["The lantern is new.", "lantern"]
    assert found[0].score == pytest.approx(0.8 * share + 0.2)
    assert found[1].score == pytest.approx(0.8 * share, abs=1e-3)


async def test_as_many_are_judged_as_are_asked_for(tmp_path: Path) -> None:
    judge = Judge("lantern")
    memory = produce(tmp_path, judge, candidates=5)
    for number in range(90):
        await memory.add(f"lantern {number}")
    assert len(await memory.search("lantern", settings=RetrievalSettings(limit=2))) == 2
    assert len(await memory.search("lantern", settings=RetrievalSettings(limit=9))) == 9
    assert [len(texts) for _, texts in judge.asked] == [5, 9]


async def test_a_model_that_fails_is_reported_once_and_memory_goes_on(tmp_path: Path) -> None:
    judge = Judge("hangs")
    judge.failure = ProviderError("no weights", provider="memory.reranking")
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, reranking=Reranking(judge, notify=reported.append))
    await fill(memory)
    for _ in range(2):
        found = await memory.search("lantern")
        assert len(found) == 3
        assert [*found[0].reasons] == ["words"]
    assert reported == ["memory results are not reranked: memory.reranking: no weights"]
    quiet = Memory(tmp_path, durable=False, reranking=Reranking(judge))
    assert len(await quiet.search("lantern")) == 3


async def test_a_setting_names_the_model_and_without_one_there_is_none(home: Path) -> None:
    home.mkdir()
    assert produce_reranking(RerankingSettings()) is None
    (home / "config.toml").write_text('[memory.reranking]\nmodel = "/nowhere"\nthreshold = 0.5\n')
    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    assert settings.reranking == RerankingSettings("/nowhere", 0.5)
    memory = produce_memory(configuration, settings, backend=open_backend(configuration))
    assert await memory.search("lantern", scopes=[GLOBAL]) == []
    await memory.close()
