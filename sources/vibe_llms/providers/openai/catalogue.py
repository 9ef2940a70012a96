"""Lists of models from servers, converted to our attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

_MODALITIES = {
    "image": ("image", "image/png", "image/jpeg", "image/gif", "image/webp"),
    "audio": ("audio", "audio/wav", "audio/x-wav", "audio/mpeg"),
    "file": ("application/pdf",),
}


class OpenaiModelEntry(Struct):
    """An item of a list of models.

    OpenAI sends a name and a date; the other members come from OpenRouter, vLLM, Groq and Mistral.
    """

    id: str
    name: Any = None
    shutdown_date: Any = None
    context_length: Any = None
    context_window: Any = None
    max_model_len: Any = None
    max_context_length: Any = None
    architecture: Any = None

    def attributes(self) -> Mapping[str, Any]:
        """Return the reported properties of the model as our attributes."""
        reported: dict[str, Any] = {}
        sizes = (
            self.context_length,
            self.context_window,
            self.max_model_len,
            self.max_context_length,
        )
        for size in sizes:
            if isinstance(size, int) and size > 0:
                reported["context-tokens"] = size
                reported["context-varies"] = False
                break
        if isinstance(self.name, str) and self.name != self.id:
            reported["title"] = self.name
        if isinstance(self.shutdown_date, str):
            reported["retires"] = self.shutdown_date
        architecture = self.architecture if isinstance(self.architecture, dict) else {}
        modalities = architecture.get("input_modalities")
        if isinstance(modalities, list):
            reported["accepts"] = [
                kind for name in modalities for kind in _MODALITIES.get(str(name), ())
            ]
        return reported


class _ModelPage(Struct):
    data: list[OpenaiModelEntry]


def decode_models(body: bytes) -> Sequence[OpenaiModelEntry]:
    """Return the models of a list, sorted by name; raise `ValueError` if it is not a list."""
    if body.lstrip()[:1] == b"[":
        found = msgspec.json.decode(body, type=list[OpenaiModelEntry])
    else:
        found = msgspec.json.decode(body, type=_ModelPage).data
    return sorted(found, key=lambda entry: entry.id)
