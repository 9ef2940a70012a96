"""What is checked of every embedder."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.exceptions import (
    MemoryInvalid,
    ProviderOverloaded,
    RegistrationError,
    ReplyMalformed,
    ReplyTimeout,
)
from vibe_llms.base.registries import Row
from vibe_llms.embedding import strict as module
from vibe_llms.embedding.strict import StrictEmbedder, make_strict
from vibe_llms.memory.core import Memory

ROW = Row("mine", "my_embedder", file="config.toml")


def strict(embedder: Any, **prefixes: Any) -> StrictEmbedder:
    return StrictEmbedder(embedder, ROW, table="embedders", **prefixes)


class Broken(WordsEmbedder):
    """Returns what it was given."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("vectors", "reported"),
    [
        ([], "0 vectors for 1 texts"),
        ([[1.0], [1.0]], "2 vectors for 1 texts"),
        ([[math.nan, 1.0]], "zero or not finite"),
        ([[math.inf, 1.0]], "zero or not finite"),
        ([[0.0, 0.0]], "zero or not finite"),
        ([[]], "zero or not finite"),
        # What is finite as it comes, and not as a single float.
        ([[1e300, 1.0]], "zero or not finite"),
    ],
)
async def test_what_is_no_vector_is_refused(vectors: Any, reported: str) -> None:
    with pytest.raises(ReplyMalformed, match=reported) as caught:
        await strict(Broken(vectors)).embed(["text"])
    assert caught.value.provider == "mine"


@pytest.mark.parametrize("answer", [None, [None], ["x"], [["x"]], 7, RuntimeError("no memory")])
async def test_what_breaks_in_an_embedder_names_its_row(answer: Any) -> None:
    with pytest.raises(RegistrationError, match="my_embedder") as caught:
        await strict(Broken(answer)).embed(["text"])
    assert caught.value.table == "embedders.mine"


async def test_errors_of_this_library_pass_as_they_are() -> None:
    embedder = WordsEmbedder()
    embedder.failure = ProviderOverloaded("later", provider="x")
    with pytest.raises(ProviderOverloaded) as caught:
        await strict(embedder).embed(["text"])
    assert caught.value is embedder.failure


async def test_vectors_of_another_length_are_refused_later_on_too() -> None:
    embedder = strict(Broken([[1.0, 0.0]], [[1.0, 0.0, 0.0]], [[0.0, 1.0]]))
    await embedder.embed(["one"])
    with pytest.raises(ReplyMalformed, match="3 numbers after those of 2"):
        await embedder.embed(["two"])
    assert await embedder.embed(["three"]) == [array("f", [0, 1])]


async def test_every_vector_gets_the_length_1() -> None:
    (vector,) = await strict(Broken([[3.0, 4.0]])).embed(["text"])
    assert vector == array("f", [0.6, 0.8])
    (vector,) = await strict(Broken([array("d", [0.0, -2.0])])).embed(["text"])
    assert vector == array("f", [0, -1])
    assert vector.typecode == "f"


async def test_an_empty_text_is_refused_before_anybody_is_asked() -> None:
    embedder = WordsEmbedder()
    for text in ("", "  \n"):
        with pytest.raises(MemoryInvalid, match="empty"):
            await strict(embedder).embed(["fine", text])
    assert await strict(embedder).embed([]) == ()
    assert embedder.batches == []


async def test_prefixes_come_before_what_is_embedded() -> None:
    inner = WordsEmbedder()
    embedder = strict(inner, query_prefix="query: ", entry_prefix="passage: ")
    await embedder.embed(["text"])
    await embedder.embed(["text \ud83d"], question=True)
    assert inner.texts == ["passage: text", "query: text \ufffd"]
    # What entries are stored under changes with their prefix, and with no other.
    assert embedder.model == "words 'passage: '"
    assert strict(inner, query_prefix="query: ").model == "words"


# Those that no configuration names.


class Odd(WordsEmbedder):
    """Changes what it would give."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        return self.change(await super().embed(texts, question=question))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "change",
    [
        lambda vectors: [[100 * number for number in one] for one in vectors],
        lambda vectors: [array("d", one) for one in vectors],
        lambda vectors: [array("f", [number / 7 for number in one]) for one in vectors],
    ],
)
async def test_vectors_of_a_programs_embedder_are_normalized(tmp_path: Path, change: Any) -> None:
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, embedder=Odd(change), notify=reported.append)
    await memory.add("The cat is black.")
    (found,) = await memory.search("The cat is black.")
    assert found.reasons["meaning"] == pytest.approx(1, abs=1e-5)
    assert reported == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vectors: [[math.nan, *one[1:]] for one in vectors], "zero or not finite"),
        (lambda vectors: [one[: place + 3] for place, one in enumerate(vectors)], "4 numbers"),
        (lambda vectors: vectors[1:], "1 vectors for 2 texts"),
        (lambda vectors: [*vectors, vectors[0]], "3 vectors for 2 texts"),
        (lambda vectors: None, "TypeError"),
        (lambda vectors: [None for _ in vectors], "TypeError"),
        (lambda vectors: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_a_failing_embedder_of_the_program_is_reported_once_and_keyword_search_goes_on(
    tmp_path: Path, change: Any, message: str
) -> None:
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, embedder=Odd(change), notify=reported.append)
    await memory.add("The cat is black.")
    await memory.add("The dog is black.")
    for _ in range(2):
        found = await memory.search("cat")
        assert [one.entry.content for one in found] == ["The cat is black."]
        assert set(found[0].reasons) == {"words"}
    (line,) = reported
    assert line.startswith("memory is searched by words only: ")
    assert "Odd" in line
    assert message in line


async def test_a_question_with_more_numbers_than_what_is_stored_is_reported(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder(64))
    await memory.add("The cat is black.")
    await memory.embed()
    await memory.close()
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder(32), notify=reported.append)
    for _ in range(2):
        (found,) = await memory.search("cat")
        assert set(found.reasons) == {"words"}
    (line,) = reported
    assert "words now returns vectors of 32 dimensions instead of 64; rebuild them: " in line
    await memory.close()
    # And what it says helps, though nothing but the question was ever embedded.
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder(32), notify=reported.append)
    await memory.reindex()
    (found,) = await memory.search("The cat is black.")
    assert found.reasons["meaning"] == pytest.approx(1, abs=1e-5)


def test_what_is_no_embedder_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match=r"builtins\.object .* has no embed"):
        Memory(tmp_path, embedder=object())  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="model has no name"):
        Memory(tmp_path, embedder=WordsEmbedder(model=""))


def test_an_embedder_is_made_strict_once() -> None:
    once = make_strict(WordsEmbedder())
    assert make_strict(once) is once


# How long it may take.


class Waiting(WordsEmbedder):
    """Takes its time for each batch, and to close."""

    def __init__(self, seconds: float, timeout_seconds: Any = None, closing: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.timeout_seconds = timeout_seconds
        self.closing = closing

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        await asyncio.sleep(self.seconds)
        return await super().embed(texts, question=question)

    async def inquire(self) -> None:
        await asyncio.sleep(self.seconds)

    async def close(self) -> None:
        await asyncio.sleep(self.closing)


async def test_an_embedder_that_hangs_is_reported_once_and_keyword_search_goes_on(
    tmp_path: Path,
) -> None:
    reported: list[str] = []
    hanging = Waiting(3600, timeout_seconds=0.05)
    memory = Memory(tmp_path, durable=False, embedder=hanging, notify=reported.append)
    async with asyncio.timeout(60):
        await memory.add("The cat is black.")
        for _ in range(2):
            (found,) = await memory.search("cat")
            assert set(found.reasons) == {"words"}
        assert await memory.reindex() == 1
        await memory.close()
    assert reported == [
        (
            "memory is searched by words only: Waiting: the embedder words took longer than "
            "0.05 seconds for 1 text; if it is only slow, raise its timeout_seconds"
        )
    ]


async def test_one_that_says_nothing_has_a_limit_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(WordsEmbedder):
        async def embed(
            self, texts: Sequence[str], *, question: bool = False
        ) -> Sequence[array[float]]:
            await asyncio.sleep(3600)
            raise AssertionError

    assert module.TIMEOUT_SECONDS == 300
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.05)
    async with asyncio.timeout(60):
        with pytest.raises(ReplyTimeout, match=r"longer than 0\.05 seconds for 2 texts"):
            await make_strict(Silent()).embed(["one", "two"])


async def test_without_a_limit_it_would_hang() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await strict(Waiting(3600)).embed(["text"])


async def test_the_limit_of_a_row_counts_for_each_question_and_each_inquiry() -> None:
    embedder = strict(Waiting(3600, timeout_seconds=3600), timeout_seconds=0.05)
    for call in (embedder.embed(["text"], question=True), embedder.inquire()):
        with pytest.raises(ReplyTimeout, match=r"raise \[embedders.mine\] timeout-seconds") as had:
            await call
        assert (had.value.limit, had.value.seconds) == ("timeout-seconds", 0.05)


async def test_the_limit_is_for_one_batch() -> None:
    inner = Waiting(1.0)
    texts = [f"text {number}" for number in range(600)]
    # Three batches take longer than one may.
    assert len(await strict(inner, timeout_seconds=2.5).embed(texts)) == 600
    assert [len(batch) for batch in inner.batches] == [256, 256, 88]


async def test_an_embedder_that_hangs_while_it_is_closed_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.05)
    reported: list[str] = []
    memory = Memory(tmp_path, embedder=Waiting(0, closing=3600), notify=reported.append)
    async with asyncio.timeout(60):
        await memory.close()
    assert reported == [
        (
            "the embedder words could not be closed: Waiting: the embedder words took longer than "
            "0.05 seconds to close"
        )
    ]


@pytest.mark.parametrize("seconds", [0, -1, "60", float("nan")])
def test_an_invalid_limit_is_reported(seconds: Any) -> None:
    with pytest.raises(RegistrationError, match="its timeout_seconds is "):
        make_strict(Waiting(0, timeout_seconds=seconds))
