"""From an address to an embedder, and what is checked of every embedder, whoever wrote it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder, likeness
from tests.fakes.ollama import FakeOllama
from vibe_llms.configuration import load_configuration
from vibe_llms.events import ignore_events
from vibe_llms.exceptions import (
    ConfigurationError,
    MemoryInvalid,
    ProviderOverloaded,
    RegistrationError,
    ReplyMalformed,
)
from vibe_llms.memory.embedders.interfaces import Embedder
from vibe_llms.memory.embedders.rows import StrictEmbedder, produce_embedder
from vibe_llms.providers.rows import Providers
from vibe_llms.registries import Row

ROW = Row("mine", "my_embedder", file="config.toml")


def strict(embedder: Any, **prefixes: Any) -> StrictEmbedder:
    return StrictEmbedder(embedder, ROW, table="embedders", **prefixes)


class Broken(WordsEmbedder):
    """Gives what it is told to."""

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


# What is checked.


@pytest.mark.parametrize(
    ("vectors", "told"),
    [
        ([], "0 vectors for 1 texts"),
        ([[1.0], [1.0]], "2 vectors for 1 texts"),
        ([[math.nan, 1.0]], "no direction"),
        ([[math.inf, 1.0]], "no direction"),
        ([[0.0, 0.0]], "no direction"),
        ([[]], "no direction"),
        # What is finite as it comes, and not as a single float.
        ([[1e300, 1.0]], "no direction"),
    ],
)
async def test_what_is_no_vector_is_refused(vectors: Any, told: str) -> None:
    with pytest.raises(ReplyMalformed, match=told) as caught:
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


async def test_prefixes_stand_before_what_is_embedded() -> None:
    inner = WordsEmbedder()
    embedder = strict(inner, query_prefix="query: ", entry_prefix="passage: ")
    await embedder.embed(["text"])
    await embedder.embed(["text \ud83d"], question=True)
    assert inner.texts == ["passage: text", "query: text \ufffd"]
    # What entries are stored under changes with their prefix, and with no other.
    assert embedder.model == "words 'passage: '"
    assert strict(inner, query_prefix="query: ").model == "words"


# Addresses.


def configure(**tree: Any) -> Any:
    return load_configuration(overrides=tree)


def test_the_shipped_row_has_a_model_of_its_own() -> None:
    for address in ("sentence-transformers", "sentence-transformers/all-MiniLM-L6-v2"):
        embedder = produce_embedder(configure(), address)
        assert embedder.model == "sentence-transformers/all-MiniLM-L6-v2"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("no-such", "names no embedder; there are sentence-transformers, and the providers"),
        ("no-such/model", "names no embedder"),
        ("openai", "says no model; write openai/MODEL"),
        ("openai/", "says no model"),
        ("/path", "names no embedder"),
    ],
)
def test_an_address_that_names_nothing_is_told(address: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        produce_embedder(configure(memory={"embedder": address}), address)
    assert caught.value.key == "embedder"
    assert caught.value.file == "the caller"


def test_a_row_without_a_model_is_told() -> None:
    rows = {"empty": {"module": "vibe_llms.memory.embedders.sentence_transformers"}}
    with pytest.raises(ConfigurationError, match="empty/MODEL"):
        produce_embedder(configure(embedders=rows), "empty")
    rows = {"empty": {"module": "vibe_llms.memory.embedders.endpoints", "provider": "openai"}}
    with pytest.raises(ConfigurationError, match="empty/MODEL"):
        produce_embedder(configure(embedders=rows), "empty")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"query-prefix": 3}, "query-prefix"),
        ({"devise": "cpu"}, "devise"),
        ({"dimensions": 0}, "dimensions"),
        ({"batch-texts": "many"}, "batch-texts"),
        ({"enabled": "perhaps"}, "enabled"),
    ],
)
def test_a_key_that_does_not_fit_is_named(settings: dict[str, Any], key: str) -> None:
    rows = {"sentence-transformers": settings}
    with pytest.raises(ConfigurationError) as caught:
        produce_embedder(configure(embedders=rows), "sentence-transformers")
    assert caught.value.key == key
    assert caught.value.table == "embedders.sentence-transformers"


def test_a_row_that_is_switched_off_is_not_there() -> None:
    rows = {"sentence-transformers": {"enabled": False}}
    with pytest.raises(ConfigurationError, match="names no embedder"):
        produce_embedder(configure(embedders=rows), "sentence-transformers")


THIRD_PARTY = """
from array import array
from vibe_llms.memory.embedders.core import register

class Letters:
    def __init__(self, name, configuration):
        self.model = f"{name}/{configuration.model}"
        self.size = configuration.settings.get("size", 26)
        self.closed = 0

    async def embed(self, texts, *, question=False):
        return [[float(text.count(chr(97 + i)) + 1) for i in range(self.size)] for text in texts]

    async def close(self):
        self.closed += 1

register("letters", Letters)
register("nothing", lambda name, configuration: None)


def offer_incomplete(name, **members):
    register(name, lambda *_: type(name, (), {"model": name, "embed": print, **members})())


offer_incomplete("endless")
offer_incomplete("nameless", close=print, model="")
offer_incomplete("none", close=print, model=None)
offer_incomplete("unknown", close=print, model=property(lambda self: 1 / 0))
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of somebody else's that registers several factories."""
    (tmp_path / "my_letters.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_letters"


async def test_others_add_their_own(third_party: str) -> None:
    row = {"module": third_party, "factory": "letters", "default-model": "abc", "size": 5}
    embedder: Embedder = produce_embedder(configure(embedders={"mine": row}), "mine")
    assert embedder.model == "mine/abc"
    one, other = await embedder.embed(["aaaa", "eeee"])
    assert math.isclose(likeness(one, one), 1, abs_tol=1e-5)
    assert len(one) == 5
    assert likeness(one, other) < 0.8
    await embedder.close()
    await embedder.close()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"module": "no_such_module"}, "no module 'no_such_module'"),
        ({"module": "my_letters"}, "name one with factory"),
        ({"module": "my_letters", "factory": "nothing"}, "which is no embedder"),
        ({"module": "my_letters", "factory": "endless"}, "which is no embedder: no close"),
        ({"module": "my_letters", "factory": "nameless"}, "whose model has no name"),
        ({"module": "my_letters", "factory": "none"}, "whose model has no name"),
        ({"module": "my_letters", "factory": "unknown"}, "ZeroDivisionError"),
    ],
)
def test_a_row_that_cannot_be_loaded_is_told(
    third_party: str, row: dict[str, Any], told: str
) -> None:
    with pytest.raises(RegistrationError, match=told) as caught:
        produce_embedder(configure(embedders={"mine": row}), "mine/x")
    assert caught.value.table == "embedders.mine"


async def test_providers_of_a_session_are_left_open(fake_ollama: FakeOllama) -> None:
    configuration = configure(providers={"ollama": {"base-url": fake_ollama.url}})
    providers = Providers(configuration, ignore_events)
    row = next(row for row in configuration.rows("providers") if row.name == "ollama")
    embedder = produce_embedder(configuration, "ollama/qwen3:8b", providers=providers)
    await embedder.embed(["text"])
    client = providers.access_client(row)
    await embedder.close()
    assert providers.access_client(row) is client
    await providers.close()
    assert providers.access_client(row) is not client
    await providers.close()
