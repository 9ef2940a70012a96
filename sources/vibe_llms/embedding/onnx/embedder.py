"""`OnnxEmbedder`: an ONNX model, run in this process by onnxruntime, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from vibe_llms.base.configuration import Positive
from vibe_llms.embedding.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.embedding.local import LoadedModel, LocalEmbedder
from vibe_llms.embedding.onnx import package
from vibe_llms.embedding.onnx.folders import FILES, check_folder, survey_files, wanted


class OnnxSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of this module, besides those of every row.

    `file` is the path of the model in its repository or folder; by default the quantized one. Texts
    are cut to `max-tokens`, and their tokens combined to one vector by `pooling`; the defaults are
    those of the folder, otherwise 256 and `mean`. `dimensions` cuts the vectors of models that
    support it. The model reads `batch-texts` texts at once, on `threads` threads; by default on all
    processors.
    """

    file: str = ""
    max_tokens: Positive | None = None
    pooling: Literal["", "mean", "cls"] = ""
    dimensions: Positive | None = None
    batch_texts: Positive = 16
    threads: Annotated[int, Meta(ge=0)] = 0


class OnnxEmbedder(LocalEmbedder):
    """Embedder with an ONNX model of the hub by its name, or of a folder by its path."""

    extra = package.EXTRA
    prefix = "onnx/"
    organization = "Xenova/"

    def __init__(self, name: str, configuration: EmbedderConfiguration) -> None:
        settings = configuration.configuration.read(
            OnnxSettings, configuration.settings, EMBEDDERS, name
        )
        self._settings = settings
        changes = [
            f"{key}={value}"
            for key, value in (
                ("file", settings.file),
                ("max-tokens", settings.max_tokens),
                ("pooling", settings.pooling),
                ("dimensions", settings.dimensions),
            )
            if value
        ]
        super().__init__(name, configuration, changes)
        #: From the hub only one file is used: another would give other vectors under the same name.
        self._file = settings.file or ("" if self._folder else FILES[0])

    def _list_files(self, folder: Path) -> Iterable[Path]:
        return survey_files(folder, self._settings.file)

    def _check_folder(self, folder: Path) -> None:
        check_folder(self._row, folder, self._file)

    def _find_folder(self) -> Path | None:
        return self._hub.find_folder(self._name, wanted(self._file))

    def _fetch_folder(self, report: Callable[[int, int], None]) -> Path:
        return self._hub.fetch_folder(self._name, wanted(self._file), report)

    def _open(self, folder: Path) -> LoadedModel:
        return package.load_model(
            self._packages,
            folder,
            file=self._file,
            max_tokens=self._settings.max_tokens,
            pooling=self._settings.pooling,
            dimensions=self._settings.dimensions,
            batch_texts=self._settings.batch_texts,
            threads=self._settings.threads,
        )

    def _download_command(self) -> str:
        return f"hf download {self._name} --include '*.json' --include '{self._file}'"
