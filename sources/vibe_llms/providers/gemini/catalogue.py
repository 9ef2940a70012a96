"""Gemini's list of models, converted to our attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.messages.contents import repair_text

#: Method of the models that answer, in the list of models.
GENERATE = "generateContent"


class GeminiModelEntry(Struct, rename="camel"):
    """An item of the list. Source: `Model` of google-genai 3.6.1."""

    name: str
    display_name: str | None = None
    input_token_limit: int | None = None
    output_token_limit: int | None = None
    supported_generation_methods: list[str] | None = None
    thinking: bool | None = None
    max_temperature: float | None = None

    @property
    def title(self) -> str:
        """Name of the model without its collection."""
        return repair_text(self.name.removeprefix("models/"))

    @property
    def answers(self) -> bool:
        """True if the model takes part in conversations."""
        methods = self.supported_generation_methods
        return methods is None or GENERATE in methods

    def attributes(self) -> Mapping[str, Any]:
        """Return the reported properties of the model as our attributes."""
        controls: dict[str, Any] = {}
        reported: dict[str, Any] = {"title": repair_text(self.display_name or "")}
        if self.input_token_limit:
            reported["context-tokens"] = self.input_token_limit
        if self.output_token_limit:
            reported["output-tokens"] = self.output_token_limit
            controls["output-tokens"] = {"minimum": 1, "maximum": self.output_token_limit}
        if self.thinking is not None:
            reported["reasoning"] = self.thinking
        if self.thinking is False:
            controls |= {"effort": False, "reasoning-tokens": False}
        if self.max_temperature is not None:
            controls["temperature"] = {"minimum": 0, "maximum": self.max_temperature}
        return {**reported, "controls": controls} if controls else reported


class GeminiModelPage(Struct, rename="camel"):
    """One page of the list of models."""

    models: list[GeminiModelEntry] = []
    next_page_token: str | None = None


class _Values(Struct):
    values: list[float]


class GeminiEmbedded(Struct):
    """Vectors of texts."""

    embeddings: list[_Values]


class Counted(Struct, rename="camel"):
    """Number of tokens of a request."""

    total_tokens: int


PAGE = msgspec.json.Decoder(GeminiModelPage)
EMBEDDED = msgspec.json.Decoder(GeminiEmbedded)
COUNTED = msgspec.json.Decoder(Counted)
