"""The package sentence-transformers as this library uses it, and the packages beneath, without
weights and without torch.

It refuses what the real ones refuse. That its functions have no parameter which theirs lack is
tested where the real ones are installed.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from tests.fakes.embedders import WordsEmbedder

DIMENSIONS = 24


class Row:
    """A vector as numpy has it."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = array("d", numbers)

    def astype(self, kind: str) -> array[float]:
        """The numbers as single floats, which have `tobytes` as an array of numpy has."""
        assert kind == "float32"
        return array("f", self._numbers)


class FakeTokenizer:
    """A token for each word."""

    def __call__(
        self, text: Sequence[str], truncation: bool = False, verbose: bool = True
    ) -> dict[str, Any]:
        assert not isinstance(text, str)
        assert (truncation, verbose) == (False, False)
        return {"input_ids": [one.split() for one in text]}


class FakeSentenceTransformer:
    """A model; using it on two threads at once is an error."""

    tokenizer: Any = FakeTokenizer()
    max_seq_length: Any = 16
    made: ClassVar[list[FakeSentenceTransformer]]
    failure: Exception | None = None
    pause = 0.0

    def __init__(
        self,
        model_name_or_path: str,
        *,
        device: str | None = None,
        trust_remote_code: bool = True,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        assert Path(model_name_or_path).is_dir(), "the real one would ask its hub"
        assert not trust_remote_code
        assert local_files_only
        assert model_kwargs == {"use_safetensors": True}
        if self.failure is not None:
            raise self.failure
        self.path = model_name_or_path
        self.device = device
        self.batches: list[Sequence[str]] = []
        self.threads: set[int] = set()
        self._busy = threading.Lock()
        type(self).made.append(self)

    def encode_query(
        self,
        inputs: Sequence[str],
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Sequence[Row]:
        return self._encode([f"query: {text}" for text in inputs], batch_size, truncate_dim)

    def encode_document(
        self,
        inputs: Sequence[str],
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Sequence[Row]:
        return self._encode(list(inputs), batch_size, truncate_dim)

    def _encode(self, texts: list[str], batch_size: int, size: int | None) -> Sequence[Row]:
        assert self._busy.acquire(blocking=False), "the model is used on two threads at once"
        try:
            self.threads.add(threading.get_ident())
            self.batches.append(texts)
            self.batch_size = batch_size
            time.sleep(self.pause)
            words = WordsEmbedder(size or DIMENSIONS)
            return [Row(words.embed_one(text)) for text in texts]
        finally:
            self._busy.release()


class LocalEntryNotFoundError(FileNotFoundError):
    """There is nothing in the cache."""


class SafetensorError(Exception):
    """The weights are damaged."""


def fake_snapshot_download(
    repo_id: str,
    *,
    cache_dir: str | None = None,
    local_files_only: bool = False,
    allow_patterns: list[str] | None = None,
    ignore_patterns: list[str] | None = None,
    tqdm_class: type[Any] | None = None,
) -> str:
    """Only its parameters are of use; see `FakePackages.snapshot_download`."""
    raise NotImplementedError


class FakeBar:
    """A bar of progress of huggingface_hub, which subclasses must keep from drawing."""

    def __init__(
        self,
        *,
        total: float | None = None,
        initial: float = 0,
        unit: str = "it",
        name: str | None = None,
        disable: bool | None = False,
        **others: Any,
    ) -> None:
        assert disable, "it would be drawn"
        self.total = total

    def update(self, n: float | None = 1) -> bool | None:
        raise AssertionError("a bar that is drawn")


class Bars:
    """A switch for bars of progress."""

    def __init__(self) -> None:
        self.shown = True
        self.changes = 0

    def disable(self) -> None:
        self.shown = False
        self.changes += 1

    def enable(self) -> None:
        self.shown = True
        self.changes += 1


class FakePackages:
    """All four packages, as `modules` for `sys.modules`.

    `cached` are the folders in the cache of the hub by the names of their models, `offered` those
    that would be fetched, and `fetched` the names that were.
    """

    def __init__(self, address: str) -> None:
        self.cached: dict[str, Path] = {}
        self.offered: dict[str, Path] = {}
        self.fetched: list[tuple[str, str | None]] = []
        self.failure: Exception | None = None
        self.sizes: tuple[int, ...] = (700,)
        self.part = 1_000_000
        self.bars, self.hub_bars = Bars(), Bars()
        self.model: type[FakeSentenceTransformer] = type(
            "SentenceTransformer", (FakeSentenceTransformer,), {"made": []}
        )
        self.constants = SimpleNamespace(ENDPOINT=address, HF_HUB_OFFLINE=False)
        self.modules = {
            "sentence_transformers": _module(
                "sentence_transformers", SentenceTransformer=self.model
            ),
            "huggingface_hub": _module(
                "huggingface_hub",
                snapshot_download=self.snapshot_download,
                constants=self.constants,
                errors=SimpleNamespace(LocalEntryNotFoundError=LocalEntryNotFoundError),
                utils=SimpleNamespace(
                    tqdm=FakeBar,
                    disable_progress_bars=self.hub_bars.disable,
                    enable_progress_bars=self.hub_bars.enable,
                    are_progress_bars_disabled=lambda: not self.hub_bars.shown,
                ),
            ),
            "transformers": _module(
                "transformers",
                utils=SimpleNamespace(
                    logging=SimpleNamespace(
                        disable_progress_bar=self.bars.disable,
                        enable_progress_bar=self.bars.enable,
                        is_progress_bar_enabled=lambda: self.bars.shown,
                    )
                ),
            ),
            "safetensors": _module("safetensors", SafetensorError=SafetensorError),
        }

    def snapshot_download(
        self,
        repo_id: str,
        *,
        cache_dir: str | None = None,
        local_files_only: bool = False,
        allow_patterns: list[str] | None = None,
        ignore_patterns: list[str] | None = None,
        tqdm_class: type[Any] | None = None,
    ) -> str:
        if repo_id.count("/") != 1:
            raise ValueError(f"Repo id must be in the form 'namespace/repo_name': '{repo_id}'")
        if local_files_only:
            if repo_id not in self.cached:
                raise LocalEntryNotFoundError("nothing in the cache")
            return str(self.cached[repo_id])
        assert not self.hub_bars.shown
        assert "*.safetensors" in (allow_patterns or ())
        assert "*.bin" not in (allow_patterns or ())
        self.fetched.append((repo_id, cache_dir))
        if self.failure is not None:
            raise self.failure
        if repo_id not in self.offered:
            raise OSError(f"404 Client Error: Repository Not Found for {repo_id}")
        if tqdm_class is not None:
            self._count(tqdm_class)
        self.cached[repo_id] = self.offered[repo_id]
        return str(self.cached[repo_id])

    def _count(self, bar: type[Any]) -> None:
        """The bytes of the parts of all files, as huggingface_hub 2.4.0 counts them."""
        files = bar(desc="Fetching 2 files", total=2)
        transfer = bar(
            total=0, initial=0, unit="B", name="huggingface_hub.snapshot_download.transfer"
        )
        disk = bar(total=0, initial=0, unit="B", name="huggingface_hub.snapshot_download")
        for size in self.sizes:
            disk.total += size
            for start in range(0, size, self.part):
                transfer.update(min(self.part, size - start))
                disk.update(min(self.part, size - start))
            files.update(1)


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    return module


def make_folder(folder: Path, *, modules: Any = (), weights: str = "model.safetensors") -> Path:
    """A folder that looks like a model's."""
    import json

    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if modules:
        (folder / "modules.json").write_text(json.dumps(modules))
    if weights:
        (folder / weights).write_bytes(b"weights")
    return folder
