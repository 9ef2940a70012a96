from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Struct

from vibe_llms.memory import EmbedderConfiguration, register_embedder


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    alphabet: str = "abcdefghijklmnopqrstuvwxyz"


class LettersEmbedder:
    """Texts with the same letters are alike: no good embedder, but a whole one."""

    def __init__(self, name: str, configuration: EmbedderConfiguration) -> None:
        read = configuration.configuration.read
        self._settings = read(Settings, configuration.settings, "embedders", name)
        # The vectors are cached under this name: include everything that changes them.
        self.model = f"letters/{self._settings.alphabet}"

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        letters = self._settings.alphabet
        return [
            array("f", [text.casefold().count(letter) + 0.01 for letter in letters])
            for text in texts
        ]

    async def close(self) -> None:
        pass


register_embedder("letters", LettersEmbedder)
