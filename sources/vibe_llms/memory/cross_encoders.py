"""`CrossEncoderReranker`: a cross-encoder of sentence-transformers, run in this process.

A model is taken from the disk only: a folder by its path, or what Hugging Face's cache has. If it
is missing, that is reported at once, and no server is asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from vibe_llms.exceptions import ModelUnavailable, PackageMissing, SessionClosed
from vibe_llms.memory.embedders.sentence_transformers.folders import check_folder
from vibe_llms.memory.embedders.sentence_transformers.package import (
    Scorer,
    find_folder,
    load_cross_encoder,
)

_ROW = "memory.reranking"


class CrossEncoderReranker:
    """A model by the path of its folder or by its name in the cache; loaded when first asked."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._score: Scorer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False

    async def inquire(self) -> None:
        """Raise an error if the package or the model is missing; loads nothing."""
        folder = await asyncio.to_thread(self._find)
        await asyncio.to_thread(check_folder, _ROW, folder)

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """The raw logit of each text for the question."""
        if self._closed:
            raise SessionClosed("this reranker was closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="vibe-llms reranking")
        work = partial(self._work, [(question, text) for text in texts])
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def close(self) -> None:
        """Free the model's memory; what is being computed is computed to its end."""
        self._closed = True
        self._score = None
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _work(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        if self._score is None:
            self._score = load_cross_encoder(_ROW, self._find())
        return self._score(pairs)

    def _find(self) -> Path:
        if find_spec("sentence_transformers") is None:
            raise PackageMissing(
                "reranking, as [memory.reranking] asks for it,",
                package="sentence-transformers",
                command="python -m pip install 'vibe-llms[embeddings]'",
            )
        if self._model.startswith(("/", "~")):
            return Path(os.path.expanduser(self._model))
        folder = find_folder(_ROW, self._model)
        if folder is None:
            raise ModelUnavailable(
                f"{self._model} is not on this disk. Fetch it where there is a network, "
                f"hf download {self._model}, or give the path of a folder that holds it: "
                '[memory.reranking] model = "/path/to/folder"',
                provider=_ROW,
                code="offline",
            )
        return folder
