"""A cross-encoder of the real package; random weights are enough to see what it is given."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fakes.sentence_transformers import FakePackages, SafetensorError, make_folder
from vibe_llms.exceptions import ModelUnavailable, PackageMissing, SessionClosed
from vibe_llms.memory import cross_encoders
from vibe_llms.memory.cross_encoders import CrossEncoderReranker

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "is", "the", "lantern", "red")


def write_model(folder: Path, *, safe: bool = True) -> Path:
    """A BERT of two layers that has learnt nothing."""
    transformers: Any = importlib.import_module("transformers")
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(5)
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    settings = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=1,
        initializer_range=2.0,
    )
    model = transformers.BertForSequenceClassification(settings)
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


async def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_encoders, "find_spec", lambda name: None)
    reranker = CrossEncoderReranker("cross-encoder/ms-marco-MiniLM-L6-v2")
    with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[embeddings\]'"):
        await reranker.score("tea", ["tea"])
    await reranker.close()
    await reranker.close()
    with pytest.raises(SessionClosed):
        await reranker.score("tea", ["tea"])


async def test_closing_what_was_never_used_is_fine() -> None:
    await CrossEncoderReranker("/nowhere").close()


@pytest.mark.parametrize("model", ["/no/such/folder", "~/none", "cross-encoder/none-such"])
async def test_a_model_that_is_not_there_is_an_error_at_once(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cross_encoders, "find_spec", lambda name: object())
    monkeypatch.setattr(cross_encoders, "find_folder", lambda row, name: None)
    async with asyncio.timeout(60):
        with pytest.raises(ModelUnavailable, match=r"hf download cross-encoder|holds no model"):
            await CrossEncoderReranker(model).score("tea", ["tea"])


async def test_what_prevents_loading_is_reported_without_loading_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cross_encoders, "load_cross_encoder", None)
    with monkeypatch.context() as patch:
        patch.setattr(cross_encoders, "find_spec", lambda name: None)
        with pytest.raises(PackageMissing):
            await CrossEncoderReranker("org/name").inquire()
    monkeypatch.setattr(cross_encoders, "find_spec", lambda name: object())
    monkeypatch.setattr(cross_encoders, "find_folder", lambda row, name: None)
    for model in ("/no/such/folder", "org/name"):
        with pytest.raises(ModelUnavailable, match=r"hf download org/name|holds no model"):
            await CrossEncoderReranker(model).inquire()
    folder = make_folder(tmp_path / "bad", weights="pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="pickles"):
        await CrossEncoderReranker(str(folder)).inquire()
    await CrossEncoderReranker(str(make_folder(tmp_path / "good"))).inquire()


async def test_scores_come_in_order_from_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, Path]] = []

    def load(row: str, folder: Path) -> object:
        loaded.append((row, folder))
        return lambda pairs: [float(len(text)) for _, text in pairs]

    monkeypatch.setattr(cross_encoders, "find_spec", lambda name: object())
    monkeypatch.setattr(cross_encoders, "find_folder", lambda row, name: Path("/cache") / name)
    monkeypatch.setattr(cross_encoders, "load_cross_encoder", load)
    reranker = CrossEncoderReranker("org/name")
    scores = await asyncio.gather(*(reranker.score("q", ["aa", "b"]) for _ in range(4)))
    assert scores == [[2.0, 1.0]] * 4
    assert loaded == [("memory.reranking", Path("/cache/org/name"))]
    await reranker.close()


class FakeCrossEncoder:
    """A model whose logit is how many characters a text has, unless they are made shares."""

    failure: Exception | None = None

    def __init__(
        self,
        model_name_or_path: str,
        *,
        num_labels: int | None = None,
        trust_remote_code: bool = True,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        assert Path(model_name_or_path).is_dir(), "the real one would ask its hub"
        assert (num_labels, trust_remote_code, local_files_only) == (1, False, True)
        assert model_kwargs == {"use_safetensors": True}
        if self.failure is not None:
            raise self.failure

    def predict(
        self,
        inputs: Sequence[tuple[str, str]],
        *,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
    ) -> Sequence[float]:
        assert show_progress_bar is False
        return [len(text) if isinstance(activation_fn, Identity) else 0.5 for _, text in inputs]


class Identity:
    """Leaves logits as they are."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeCrossEncoder]:
    """The packages, with one model in the cache."""
    packages = FakePackages("http://127.0.0.1:9")
    packages.cached["org/name"] = make_folder(tmp_path / "cached")
    found = type("CrossEncoder", (FakeCrossEncoder,), {})
    vars(packages.modules["sentence_transformers"])["CrossEncoder"] = found
    torch = ModuleType("torch")
    vars(torch)["nn"] = SimpleNamespace(Identity=Identity)
    for name, module in {**packages.modules, "torch": torch}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


async def test_a_model_of_the_cache_is_loaded_and_gives_raw_logits(
    model: type[FakeCrossEncoder],
) -> None:
    reranker = CrossEncoderReranker("org/name")
    assert await reranker.score("q", ["aaaa", "b"]) == [4.0, 1.0]
    await reranker.close()


async def test_a_model_that_cannot_be_loaded_is_an_error(model: type[FakeCrossEncoder]) -> None:
    model.failure = SafetensorError("the header is too short")
    with pytest.raises(ModelUnavailable, match="as a cross-encoder: the header is too short"):
        await CrossEncoderReranker("org/name").score("q", ["aaaa"])
    with pytest.raises(ModelUnavailable, match="hf download org/other"):
        await CrossEncoderReranker("org/other").score("q", ["aaaa"])


@pytest.mark.minilm
def test_the_fake_has_no_parameter_that_the_real_one_lacks() -> None:
    real: Any = importlib.import_module("sentence_transformers").CrossEncoder
    for name in ("__init__", "predict"):
        own = set(inspect.signature(getattr(FakeCrossEncoder, name)).parameters)
        assert own <= set(inspect.signature(getattr(real, name)).parameters)


@pytest.mark.minilm
async def test_a_real_model_gives_raw_logits(tmp_path: Path) -> None:
    reranker = CrossEncoderReranker(str(write_model(tmp_path / "model")))
    texts = ["tea", "the lantern is red", "the lantern is green"]
    scores = await reranker.score("where is the lantern", texts)
    assert len(scores) == 3
    assert len(set(scores)) == 3
    assert any(not 0 <= score <= 1 for score in scores)
    again = CrossEncoderReranker(str(tmp_path / "model"))
    assert await again.score("where is the lantern", texts) == pytest.approx(scores, abs=1e-4)
    assert await reranker.score("where is the lantern", []) == []
    for one in (reranker, again):
        await one.close()


@pytest.mark.minilm
async def test_pickled_weights_and_broken_folders_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", safe=False)
    with pytest.raises(ModelUnavailable, match="pickles"):
        await CrossEncoderReranker(str(folder)).score("tea", ["tea"])
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(ModelUnavailable, match="cannot be loaded as a cross-encoder"):
        await CrossEncoderReranker(str(broken)).score("tea", ["tea"])
    assert "sentence_transformers" in sys.modules


@pytest.mark.minilm
async def test_a_name_that_is_not_in_the_cache_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    async with asyncio.timeout(60):
        with pytest.raises(ModelUnavailable, match=r"hf download cross-encoder/none-such"):
            await CrossEncoderReranker("cross-encoder/none-such").score("tea", ["tea"])
