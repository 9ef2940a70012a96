"""`CrossEncoderReranker`: a cross-encoder that runs in this process.

A folder with weights in safetensors is loaded by sentence-transformers, and one with only ONNX
files by onnxruntime. Models are loaded from disk only: a folder by its path, or a model in Hugging
Face's cache. A missing model is reported at once, without asking a server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from vibe_llms.base.exceptions import ModelUnavailable, PackageMissing, SessionClosed
from vibe_llms.embedding.hub import Hub, Packages
from vibe_llms.embedding.local import Scorer
from vibe_llms.embedding.onnx import folders as onnx_folders
from vibe_llms.embedding.onnx import package as onnx_package
from vibe_llms.embedding.onnx.folders import wanted
from vibe_llms.embedding.sentence_transformers import folders, package

_ROW = "memory.reranking"
_PURPOSE = "reranking ([memory.reranking])"
_TORCH = Packages(package.EXTRA, _ROW, _PURPOSE, _ROW)
_ONNX = Packages(onnx_package.EXTRA, _ROW, _PURPOSE, _ROW)


class CrossEncoderReranker:
    """Reranker by the path of its folder or its name in the cache; loaded on first use."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._score: Scorer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False

    async def inquire(self) -> None:
        """Raise an error if the package or the model is missing, without loading it."""
        await asyncio.to_thread(self._check)

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """Return the raw logit of each text for the question."""
        if self._closed:
            raise SessionClosed("this reranker is closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="vibe-llms reranking")
        work = partial(self._work, [(question, text) for text in texts])
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def close(self) -> None:
        """Free the model's memory, after any running computation."""
        self._closed = True
        self._score = None
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _work(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        if self._score is None:
            folder, packages = self._find()
            if packages is _ONNX:
                self._score = onnx_package.load_cross_encoder(packages, folder)
            else:
                self._score = package.load_cross_encoder(packages, folder)
        return self._score(pairs)

    def _check(self) -> None:
        folder, packages = self._find()
        packages.check()
        if packages is _ONNX:
            onnx_folders.check_folder(_ROW, folder)
        else:
            folders.check_folder(_ROW, folder)

    def _find(self) -> tuple[Path, Packages]:
        """Return the folder of the model, and the packages that load it."""
        folder = self._find_folder()
        by_onnx = not folders.survey_files(folder) and onnx_folders.find_file(folder)
        return folder, _ONNX if by_onnx else _TORCH

    def _find_folder(self) -> Path:
        if self._model.startswith(("/", "~")):
            return Path(os.path.expanduser(self._model))
        packages = next((one for one in (_TORCH, _ONNX) if one.is_installed), None)
        if packages is None:
            raise PackageMissing(
                _PURPOSE,
                package=package.EXTRA.package,
                command="python -m pip install 'vibe-llms[embeddings]' "
                "(or 'vibe-llms[onnx]' for a model in an ONNX file)",
            )
        hub = Hub(packages)
        found = hub.find_folder(self._model, folders.WANTED, cache=package.find_cache())
        if found is None:
            lookups = (hub.find_folder(self._model, wanted(file)) for file in onnx_folders.FILES)
            found = next((one for one in lookups if one and onnx_folders.find_file(one)), None)
        if found is None:
            raise ModelUnavailable(
                f"{self._model} is not on this disk. Download it with a network connection, "
                f"hf download {self._model}, or set the path of a folder that contains it: "
                '[memory.reranking] model = "/path/to/folder"',
                provider=_ROW,
                code="offline",
            )
        return found
