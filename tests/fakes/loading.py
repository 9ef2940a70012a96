"""An embedder whose model is loaded when a file is there: by a test, in whatever process it runs.

    [embedders.loading]
    module = "tests.fakes.loading"
    folder = "FOLDER"

Each load is a line of FOLDER/loads, with the process; each waits for FOLDER/gate.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.embedding.core import EmbedderConfiguration, register


class _Settings(Struct, rename="kebab", forbid_unknown_fields=True):
    folder: str


class SlowEmbedder:
    """Words as vectors, once the gate is open; a gate that says something is why it cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = "slow"
        self.words = WordsEmbedder()
        self.loaded = False

    async def load(self) -> None:
        """Wait for the gate."""
        if self.loaded:
            return
        with open(self.folder / "loads", "a") as file:
            file.write(f"{os.getpid()}\n")
        while not (self.folder / "gate").exists():
            await asyncio.sleep(0.01)
        if why := (self.folder / "gate").read_text():
            raise ModelUnavailable(why, provider="loading")
        self.loaded = True

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text."""
        await self.load()
        return await self.words.embed(texts, question=question)

    async def close(self) -> None:
        """Nothing is open."""


def loads(folder: Path) -> list[int]:
    """The processes that have begun to load."""
    path = folder / "loads"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def produce(name: str, configuration: EmbedderConfiguration) -> SlowEmbedder:
    """The embedder of a row."""
    whole = configuration.configuration
    settings = whole.read(_Settings, configuration.settings, "embedders", name)
    return SlowEmbedder(Path(settings.folder))


register("loading", produce)
