"""Ollama's lists of models, converted to our attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.messages.contents import repair_text

_PICTURES = ("image", "image/png", "image/jpeg", "image/webp")
#: Families whose models take a level of effort and always think.
_LEVELS = ("gptoss", "gpt-oss")


class OllamaDetails(Struct):
    """The `details` of a model."""

    family: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class TagsEntry(Struct):
    """An item of `/api/tags`."""

    name: str = ""
    model: str = ""
    details: OllamaDetails | None = None

    @property
    def title(self) -> str:
        """The name of the model."""
        return repair_text(self.model or self.name)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes from the list of models."""
        details = self.details or OllamaDetails()
        words = (details.family, details.parameter_size, details.quantization_level)
        return {"title": " ".join(word for word in words if word)}


class Tags(Struct):
    """The answer of `/api/tags`."""

    models: list[TagsEntry] | None = None


class Shown(Struct):
    """The used members of the answer of `/api/show`."""

    capabilities: list[str] | None = None
    model_info: dict[str, Any] | None = None
    details: OllamaDetails | None = None

    @property
    def context_tokens(self) -> int | None:
        """The context that the model was made for: `ARCHITECTURE.context_length`."""
        info = self.model_info or {}
        architecture = info.get("general.architecture")
        found = info.get(f"{architecture}.context_length")
        if found is None:
            lengths = [value for key, value in info.items() if key.endswith(".context_length")]
            found = lengths[0] if len(lengths) == 1 else None
        return found if isinstance(found, int) and found > 0 else None

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes that the server reported; old servers report fewer."""
        reported: dict[str, Any] = {}
        if self.context_tokens is not None:
            reported["context-tokens"] = self.context_tokens
        if self.capabilities is None:
            return reported
        thinks = "thinking" in self.capabilities
        family = (self.details or OllamaDetails()).family
        reported["tools"] = "native" if "tools" in self.capabilities else "contract"
        reported["accepts"] = list(_PICTURES) if "vision" in self.capabilities else []
        reported["reasoning"] = thinks
        controls: dict[str, Any] = {}
        if thinks and family in _LEVELS:
            reported["native"] = {"thinking": "levels"}
            controls = {"effort": {"choices": ["low", "medium", "high"]}, "reasoning-tokens": False}
        elif thinks:
            # Older servers leave thinking in the text unless `think` is set.
            reported["native"] = {"think": True}
        else:
            controls = {"effort": False, "reasoning-tokens": {"minimum": 0, "maximum": 0}}
        return {**reported, "controls": controls}


class Embedded(Struct):
    """The answer of `/api/embed`."""

    embeddings: list[list[float]]
    prompt_eval_count: int | None = None


TAGS = msgspec.json.Decoder(Tags)
SHOWN = msgspec.json.Decoder(Shown)
EMBEDDED = msgspec.json.Decoder(Embedded)
