"""`SentenceTransformersEmbedder`: a model of the package sentence-transformers, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from vibe_llms.base.configuration import Positive
from vibe_llms.embedding.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.embedding.local import LoadedModel, LocalEmbedder
from vibe_llms.embedding.sentence_transformers import package
from vibe_llms.embedding.sentence_transformers.folders import (
    WANTED,
    check_folder,
    survey_files,
)


class SentenceTransformersSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of this module, besides those of every row.

    `device` is `cpu`, `cuda`, `mps`, or another that torch knows; by default the best available.
    `dimensions` cuts the vectors of models that support it. The model reads `batch-texts` texts at
    once.
    """

    device: str = ""
    dimensions: Positive | None = None
    batch_texts: Positive = 32


class SentenceTransformersEmbedder(LocalEmbedder):
    """Embedder with a model of the hub by its name, or of a folder by its path."""

    extra = package.EXTRA
    prefix = organization = "sentence-transformers/"

    def __init__(self, name: str, configuration: EmbedderConfiguration) -> None:
        self._settings = configuration.configuration.read(
            SentenceTransformersSettings, configuration.settings, EMBEDDERS, name
        )
        size = self._settings.dimensions
        changes = [f"dimensions={size}"] if size else []
        super().__init__(name, configuration, changes)

    def _list_files(self, folder: Path) -> Iterable[Path]:
        return survey_files(folder)

    def _check_folder(self, folder: Path) -> None:
        check_folder(self._row, folder)

    def _find_folder(self) -> Path | None:
        return self._hub.find_folder(self._name, WANTED, cache=package.find_cache())

    def _fetch_folder(self, report: Callable[[int, int], None]) -> Path:
        return self._hub.fetch_folder(self._name, WANTED, report, cache=package.find_cache())

    def _open(self, folder: Path) -> LoadedModel:
        return package.load_model(
            self._packages,
            folder,
            device=self._settings.device,
            batch_texts=self._settings.batch_texts,
            dimensions=self._settings.dimensions,
        )

    def _download_command(self) -> str:
        return f"hf download {self._name}"
