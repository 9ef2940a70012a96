"""Cross-encoders: of sentence-transformers, faked or real, and in ONNX files, which are run."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fakes import onnx as fake_onnx
from tests.fakes.hub import COMMIT
from tests.fakes.sentence_transformers import FakePackages, SafetensorError, make_folder
from vibe_llms.base.exceptions import ModelUnavailable, PackageMissing, SessionClosed
from vibe_llms.embedding.hub import Hub, Packages
from vibe_llms.embedding.sentence_transformers import package
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


def pretend(monkeypatch: pytest.MonkeyPatch, cached: Path | None = None) -> None:
    """The packages are installed, and the cache has that folder for every name."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(Hub, "find_folder", lambda self, name, wanted, *, cache=None: cached)


async def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
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
    pretend(monkeypatch)
    async with asyncio.timeout(60):
        with pytest.raises(ModelUnavailable, match=r"hf download cross-encoder|has no model"):
            await CrossEncoderReranker(model).score("tea", ["tea"])


async def test_what_prevents_loading_is_reported_without_loading_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(package, "load_cross_encoder", None)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        for model in ("org/name", str(tmp_path)):
            with pytest.raises(PackageMissing):
                await CrossEncoderReranker(model).inquire()
    pretend(monkeypatch)
    for model in ("/no/such/folder", "org/name"):
        with pytest.raises(ModelUnavailable, match=r"hf download org/name|has no model"):
            await CrossEncoderReranker(model).inquire()
    folder = make_folder(tmp_path / "bad", weights="pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="pickle files"):
        await CrossEncoderReranker(str(folder)).inquire()
    await CrossEncoderReranker(str(make_folder(tmp_path / "good"))).inquire()


async def test_scores_come_in_order_from_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, Path]] = []

    def load(packages: Packages, folder: Path) -> object:
        loaded.append((packages.row, folder))
        return lambda pairs: [float(len(text)) for _, text in pairs]

    pretend(monkeypatch, Path("/cache/org/name"))
    monkeypatch.setattr(package, "load_cross_encoder", load)
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


# ONNX files.


def put_into_cache(cache: Path, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a cache of the hub that has a folder as a model."""
    place = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))


async def test_an_onnx_file_gives_raw_logits(tmp_path: Path) -> None:
    folder = fake_onnx.make_folder(tmp_path / "m", fake_onnx.cross_encoder())
    reranker = CrossEncoderReranker(str(folder))
    await reranker.inquire()
    texts = ["lantern", "tea red nonsense", *["green " * 20 + "coffee", "tea"] * 20]
    expected = [2.75, 1.5, *[11.25, 1.75] * 20]
    scores = await asyncio.gather(*(reranker.score("red tea", texts) for _ in range(3)))
    assert [*map(list, scores)] == [pytest.approx(expected, abs=1e-4)] * 3
    assert await reranker.score("red tea", []) == []
    await reranker.close()
    with pytest.raises(SessionClosed):
        await reranker.score("red tea", texts)


async def test_the_files_of_a_folder_say_what_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def find(name: str) -> object:
        found.append(name)
        return object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    both = make_folder(tmp_path / "both")
    fake_onnx.make_folder(both, fake_onnx.cross_encoder())
    only = fake_onnx.make_folder(tmp_path / "only", fake_onnx.cross_encoder(), file="model.onnx")
    for folder, name in ((both, "sentence_transformers"), (only, "onnxruntime")):
        found.clear()
        await CrossEncoderReranker(str(folder)).inquire()
        assert found == [name]


async def test_an_onnx_file_of_the_cache_is_found_without_the_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    folder = fake_onnx.make_folder(tmp_path / "m", fake_onnx.cross_encoder())
    put_into_cache(tmp_path / "cache", "Xenova/tiny", folder, monkeypatch)
    reranker = CrossEncoderReranker("Xenova/tiny")
    await reranker.inquire()
    assert await reranker.score("red", ["lantern"]) == pytest.approx([2.75])
    await reranker.close()
    with pytest.raises(ModelUnavailable, match="hf download Xenova/none"):
        await CrossEncoderReranker("Xenova/none").inquire()


async def test_onnx_files_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    for name, model, words in (
        ("damaged", b"none", "cannot be loaded"),
        ("two", fake_onnx.cross_encoder(columns=2), r"is not a cross-encoder: .* shape \(1, 2\)"),
        ("embedder", fake_onnx.embedding_model(), "is not a cross-encoder"),
    ):
        folder = fake_onnx.make_folder(tmp_path / name, model)
        with pytest.raises(ModelUnavailable, match=words):
            await CrossEncoderReranker(str(folder)).score("tea", ["tea"])
    bare = fake_onnx.make_folder(tmp_path / "bare", tokenizer=False)
    with pytest.raises(ModelUnavailable, match=r"no tokenizer\.json"):
        await CrossEncoderReranker(str(bare)).inquire()


# The real package.


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
    with pytest.raises(ModelUnavailable, match="pickle files"):
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
