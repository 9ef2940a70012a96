"""From an address to an embedder, and what is checked of every embedder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import likeness
from tests.fakes.ollama import FakeOllama
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    RegistrationError,
)
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.provider_pool import Providers


def configure(**tree: Any) -> Any:
    return load_configuration(overrides=tree)


def test_the_shipped_row_has_a_model_of_its_own() -> None:
    for address in ("sentence-transformers", "sentence-transformers/all-MiniLM-L6-v2"):
        embedder = produce_embedder(configure(), address)
        assert embedder.model == "sentence-transformers/all-MiniLM-L6-v2"


@pytest.mark.parametrize(
    ("address", "reported"),
    [
        ("no-such", "not found; available: onnx, sentence-transformers, and the providers"),
        ("no-such/model", "not found; available"),
        ("openai", "has no model; use openai/MODEL"),
        ("openai/", "has no model"),
        ("/path", "not found; available"),
    ],
)
def test_an_address_that_names_nothing_is_reported(address: str, reported: str) -> None:
    with pytest.raises(ConfigurationError, match=reported) as caught:
        produce_embedder(configure(memory={"embedder": address}), address)
    assert caught.value.key == "embedder"
    assert caught.value.file == "the options"


def test_a_row_without_a_model_is_reported() -> None:
    rows = {"empty": {"module": "vibe_llms.embedding.sentence_transformers"}}
    with pytest.raises(ConfigurationError, match="empty/MODEL"):
        produce_embedder(configure(embedders=rows), "empty")
    rows = {"empty": {"module": "vibe_llms.embedding.endpoints", "provider": "openai"}}
    with pytest.raises(ConfigurationError, match="empty/MODEL"):
        produce_embedder(configure(embedders=rows), "empty")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"query-prefix": 3}, "query-prefix"),
        ({"devise": "cpu"}, "devise"),
        ({"dimensions": 0}, "dimensions"),
        ({"batch-texts": "many"}, "batch-texts"),
        ({"timeout-seconds": 0}, "timeout-seconds"),
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
    with pytest.raises(ConfigurationError, match="not found; available"):
        produce_embedder(configure(embedders=rows), "sentence-transformers")


THIRD_PARTY = """
from array import array
from vibe_llms.embedding.core import register

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
    """A third party's module that registers several factories."""
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
    ("row", "reported"),
    [
        ({"module": "no_such_module"}, "module 'no_such_module' not found"),
        ({"module": "my_letters"}, "name one with factory"),
        ({"module": "my_letters", "factory": "nothing"}, "is not an embedder: it has no embed"),
        ({"module": "my_letters", "factory": "endless"}, "is not an embedder: it has no close"),
        ({"module": "my_letters", "factory": "nameless"}, "its model has no name"),
        ({"module": "my_letters", "factory": "none"}, "its model has no name"),
        ({"module": "my_letters", "factory": "unknown"}, "ZeroDivisionError"),
    ],
)
def test_a_row_that_cannot_be_loaded_is_reported(
    third_party: str, row: dict[str, Any], reported: str
) -> None:
    with pytest.raises(RegistrationError, match=reported) as caught:
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
