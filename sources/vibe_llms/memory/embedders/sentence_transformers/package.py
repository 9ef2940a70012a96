"""The package sentence-transformers: its models found on the disk, fetched, loaded and asked.

This is the only module that imports it, and the packages that it needs. The package asks its hub
again and again, without a network for more than a minute, and shows progress bars. Here a model is
searched on the disk first, and fetched only from a hub that answers.

Source: sentence-transformers 6.2.0, huggingface_hub 2.4.0, transformers 5.23.0.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from vibe_llms.exceptions import ConfigurationError, ModelUnavailable, PackageMissing
from vibe_llms.memory.embedders.sentence_transformers.folders import (
    UNWANTED,
    WANTED,
    check_folder,
)

_NAME = "sentence_transformers"
_HUB = "huggingface_hub"
_PACKAGES = (_NAME, _HUB, "transformers", "safetensors", "torch")
ORGANIZATION = "sentence-transformers/"


#: Pairs of texts to raw logits.
Scorer: TypeAlias = Callable[[Sequence[tuple[str, str]]], list[float]]


class LoadedModel:
    """A model in memory; to be used on one thread at a time."""

    def __init__(self, model: Any, batch_texts: int, dimensions: int | None) -> None:
        self._model = model
        self._batch_texts = batch_texts
        self._dimensions = dimensions

    @property
    def longest_tokens(self) -> int | None:
        """The number of tokens of a text that count, if the model says it."""
        longest = self._model.max_seq_length
        return longest if isinstance(longest, int) else None

    def encode(self, texts: Sequence[str], *, question: bool) -> Sequence[array[float]]:
        """A vector of length 1 for each text, by the prompts that the model has for either."""
        encode = self._model.encode_query if question else self._model.encode_document
        rows = encode(
            list(texts),
            batch_size=self._batch_texts,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
            truncate_dim=self._dimensions,
        )
        vectors = []
        for row in rows:
            vector = array("f")
            vector.frombytes(row.astype("float32").tobytes())
            vectors.append(vector)
        return vectors

    def cuts(self, texts: Sequence[str]) -> bool:
        """Whether any of the texts is too long, so that the model cuts it."""
        longest, split = self.longest_tokens, self._model.tokenizer
        if longest is None or not callable(split):
            return False
        # A token has at least a character, so short texts need not be split.
        long = [text for text in texts if len(text) > longest]
        found: Any = split(long, truncation=False, verbose=False) if long else {"input_ids": []}
        return any(len(tokens) > longest for tokens in found["input_ids"])


def check_package(row: str) -> None:
    """`PackageMissing` if it is not installed; nothing is imported."""
    if importlib.util.find_spec(_NAME) is None:
        raise _missing(row)


def find_address(row: str) -> str:
    """Where models come from."""
    return str(_import(row, _HUB).constants.ENDPOINT)


def is_offline(row: str) -> bool:
    """Whether the environment keeps the package from its hub, with `HF_HUB_OFFLINE`."""
    return bool(_import(row, _HUB).constants.HF_HUB_OFFLINE)


def find_folder(row: str, name: str) -> Path | None:
    """The folder of a model that is on this disk, whole; no server is asked.

    `ModelUnavailable` if it may not be loaded.
    """
    hub = _import(row, _HUB)
    try:
        found = hub.snapshot_download(
            nativize_name(name),
            cache_dir=_find_cache(),
            local_files_only=True,
            # Of what it fetched itself it knows what is missing.
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
        )
    except hub.errors.LocalEntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refuse(row, f"{name!r} cannot be found: {_words(error)}") from error
    return Path(found)


def fetch_folder(row: str, name: str, report: Callable[[int, int], None]) -> Path:
    """The folder of a model, fetched from the hub; blocks until it is whole.

    `report` is called with the bytes that have arrived and those that are known to come, from
    threads of the hub's package.
    """
    hub = _import(row, _HUB)
    network = [module.HTTPError for one in ("httpx", "httpx2") if (module := sys.modules.get(one))]
    bars = hub.utils
    shown = not bars.are_progress_bars_disabled()
    with _switched_off(bars.disable_progress_bars, bars.enable_progress_bars, shown):
        try:
            found = hub.snapshot_download(
                nativize_name(name),
                cache_dir=_find_cache(),
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
                tqdm_class=_count_bytes(hub.utils.tqdm, report),
            )
        except (OSError, ValueError, RuntimeError, *network) as error:
            raise _refuse(
                row,
                f"{nativize_name(name)} could not be fetched from {hub.constants.ENDPOINT}: "
                f"{_words(error)}",
            ) from error
    return Path(found)


def _count_bytes(base: type[Any], report: Callable[[int, int], None]) -> type[Any]:
    """A progress bar that draws nothing and reports the bytes of all files together."""

    class Counter(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # Of two bars in bytes, one counts what the network carries and one what is on the disk.
            transfer = str(options.get("name", "")).endswith(".transfer")
            self._counts = options.get("unit") == "B" and not transfer
            self._arrived = options.get("initial", 0)
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                self._arrived += n or 0
                report(int(self._arrived), int(self.total or 0))
            return None

    return Counter


def load_model(
    row: str, folder: Path, *, device: str, batch_texts: int, dimensions: int | None
) -> LoadedModel:
    """The model of a folder, which is checked first. Takes seconds."""
    remedy = (
        " (fetch it again if it is damaged; take a smaller model or another device if memory is "
        "short)"
    )
    model = _load(row, folder, "SentenceTransformer", remedy=remedy, device=device or None)
    return LoadedModel(model, batch_texts, dimensions)


def load_cross_encoder(row: str, folder: Path) -> Scorer:
    """A function that gives the raw logits of pairs of texts; the folder is checked first.

    Takes seconds; call the result on one thread at a time.
    """
    model = _load(row, folder, "CrossEncoder", failure=" as a cross-encoder", num_labels=1)
    torch = _import(row, "torch")

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        # Without this the package may or may not make shares of the logits, as the folder says.
        identity = torch.nn.Identity()
        found = model.predict(list(pairs), show_progress_bar=False, activation_fn=identity)
        return [float(one) for one in found]

    return score


def _load(
    row: str, folder: Path, kind: str, *, failure: str = "", remedy: str = "", **options: Any
) -> Any:
    """A model of a class of the package; no code of the folder runs, and no server is asked."""
    check_folder(row, folder)
    package = _import(row, _NAME)
    logging = _import(row, "transformers").utils.logging
    broken = _import(row, "safetensors").SafetensorError
    shown = logging.is_progress_bar_enabled()
    with _switched_off(logging.disable_progress_bar, logging.enable_progress_bar, shown):
        try:
            return getattr(package, kind)(
                str(folder),
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
                **options,
            )
        except (OSError, ValueError, RuntimeError, LookupError, TypeError, broken) as error:
            raise _refuse(
                row, f"{folder} cannot be loaded{failure}: {_words(error)}{remedy}"
            ) from error


def nativize_name(name: str) -> str:
    """The name on the hub: the package's own models are in its organization."""
    return name if "/" in name else f"{ORGANIZATION}{name}"


@contextmanager
def _switched_off(
    disable: Callable[[], None], enable: Callable[[], None], shown: bool
) -> Iterator[None]:
    """No progress bars within the block: a library must not print on its own."""
    disable()
    try:
        yield
    finally:
        if shown:
            enable()


def _find_cache() -> str | None:
    return os.environ.get("SENTENCE_TRANSFORMERS_HOME") or None


def _import(row: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _PACKAGES:
            raise _missing(row) from error
        raise ConfigurationError(
            f"the package {name} is installed and cannot be used: {_words(error)}",
            table=f"embedders.{row}",
        ) from error


def _missing(row: str) -> PackageMissing:
    return PackageMissing(
        f"embedding texts in this process, as [embedders.{row}] does,",
        package="sentence-transformers",
        command="python -m pip install 'vibe-llms[embeddings]'",
    )


def _refuse(row: str, message: str) -> ModelUnavailable:
    return ModelUnavailable(message, provider=row, code="load")


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
