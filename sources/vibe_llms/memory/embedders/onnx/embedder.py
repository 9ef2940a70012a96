"""`OnnxEmbedder`: a model in an ONNX file, run in this process by onnxruntime, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from vibe_llms.configuration import Positive
from vibe_llms.memory.embedders.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.memory.embedders.local import LoadedModel, LocalEmbedder
from vibe_llms.memory.embedders.onnx import package
from vibe_llms.memory.embedders.onnx.folders import FILES, check_folder, survey_files, wanted


class OnnxSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module, besides those of every row.

    `file` is the path of the model in its repository or folder; by default the quantized one.
    Texts are cut to `max-tokens` and their tokens made one vector by `pooling`; by default both are
    as the folder says, otherwise 256 and `mean`. `dimensions` cuts the vectors of models that are
    made for it. The model reads `batch-texts` texts at once, on so many `threads`; by default on
    all processors.
    """

    file: str = ""
    max_tokens: Positive | None = None
    pooling: Literal["", "mean", "cls"] = ""
    dimensions: Positive | None = None
    batch_texts: Positive = 16
    threads: Annotated[int, Meta(ge=0)] = 0


class OnnxEmbedder(LocalEmbedder):
    """A model of the hub by its name, or one of a folder by its path."""

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
        #: Of the hub only one file is taken: another would make other vectors under the same name.
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
