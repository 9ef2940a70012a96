"""Models loaded and run by the package sentence-transformers.

Only this module imports it, and the packages beneath it.

Source: sentence-transformers 6.2.0, transformers 5.23.0.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.embedding.hub import Extra, Packages, shorten, switched_off
from vibe_llms.embedding.local import Scorer
from vibe_llms.embedding.sentence_transformers.folders import check_folder

_NAME = "sentence_transformers"
EXTRA = Extra(
    "embeddings",
    "sentence-transformers",
    (_NAME, "huggingface_hub", "transformers", "safetensors", "torch"),
)


class SentenceModel:
    """A model in memory; not thread-safe."""

    def __init__(self, model: Any, batch_texts: int, dimensions: int | None) -> None:
        self._model = model
        self._batch_texts = batch_texts
        self._dimensions = dimensions

    @property
    def longest_tokens(self) -> int | None:
        """Number of tokens of a text that the model reads, if known."""
        longest = self._model.max_seq_length
        return longest if isinstance(longest, int) else None

    def encode(self, texts: Sequence[str], *, question: bool) -> Sequence[array[float]]:
        """Return a unit vector for each text, using the model's prompt for queries or documents."""
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
        """Return True if the model would cut any of the texts."""
        longest, split = self.longest_tokens, self._model.tokenizer
        if longest is None or not callable(split):
            return False
        # A token has at least one character, so short texts need not be split.
        long = [text for text in texts if len(text) > longest]
        found: Any = split(long, truncation=False, verbose=False) if long else {"input_ids": []}
        return any(len(tokens) > longest for tokens in found["input_ids"])


def load_model(
    packages: Packages, folder: Path, *, device: str, batch_texts: int, dimensions: int | None
) -> SentenceModel:
    """Check and load the model of a folder. Takes seconds."""
    remedy = (
        " (if it is damaged, download it again; if memory is short, use a smaller model or another "
        "device)"
    )
    model = _load(packages, folder, "SentenceTransformer", remedy=remedy, device=device or None)
    return SentenceModel(model, batch_texts, dimensions)


def load_cross_encoder(packages: Packages, folder: Path) -> Scorer:
    """Check a folder, and return a function that computes the raw logits of pairs of texts.

    Takes seconds; call the result on one thread at a time.
    """
    model = _load(packages, folder, "CrossEncoder", failure=" as a cross-encoder", num_labels=1)
    torch = packages.load("torch")

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        # Otherwise the package may apply a sigmoid to the logits, depending on the folder.
        identity = torch.nn.Identity()
        found = model.predict(list(pairs), show_progress_bar=False, activation_fn=identity)
        return [float(one) for one in found]

    return score


def _load(
    packages: Packages,
    folder: Path,
    kind: str,
    *,
    failure: str = "",
    remedy: str = "",
    **options: Any,
) -> Any:
    """Load a model with a class of the package, without running code of the folder or a request."""
    check_folder(packages.row, folder)
    package = packages.load(_NAME)
    logging = packages.load("transformers").utils.logging
    broken = packages.load("safetensors").SafetensorError
    shown = logging.is_progress_bar_enabled()
    with switched_off(logging.disable_progress_bar, logging.enable_progress_bar, shown):
        try:
            return getattr(package, kind)(
                str(folder),
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
                **options,
            )
        except (OSError, ValueError, RuntimeError, LookupError, TypeError, broken) as error:
            raise ModelUnavailable(
                f"{folder} cannot be loaded{failure}: {shorten(error)}{remedy}",
                provider=packages.row,
                code="load",
            ) from error


def find_cache() -> str | None:
    """Return the folder for models that overrides the hub's, if set."""
    return os.environ.get("SENTENCE_TRANSFORMERS_HOME") or None
