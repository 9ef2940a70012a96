"""Anthropic's list of models, converted to our attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from vibe_llms.providers.anthropic.controls import SMALLEST_BUDGET_TOKENS, ThinkingType
from vibe_llms.providers.anthropic.messages import PDF

_PICTURES = ("image", "image/png", "image/jpeg", "image/gif", "image/webp")


class AnthropicModelEntry(Struct):
    """An item of the list of models. Source: `types/model_info.py` of anthropic 2.12.0."""

    id: str
    display_name: str = ""
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    retires_at: str | None = None
    capabilities: dict[str, Any] | None = None

    def attributes(self) -> Mapping[str, Any]:
        """Return the reported properties of the model as our attributes."""
        controls: dict[str, Any] = {}
        reported: dict[str, Any] = {"title": self.display_name, "retires": self.retires_at or ""}
        if self.max_input_tokens:
            reported["context-tokens"] = self.max_input_tokens
        if self.max_tokens:
            reported["output-tokens"] = self.max_tokens
            controls["output-tokens"] = {"minimum": 1, "maximum": self.max_tokens}
        capabilities = self.capabilities
        if capabilities is not None:
            accepts = [*_PICTURES] if _supported(capabilities, "image_input") else []
            accepts += [PDF] if _supported(capabilities, "pdf_input") else []
            reported["accepts"] = accepts
            reported["reasoning"] = _supported(capabilities, "thinking")
            types = _table(_table(capabilities, "thinking"), "types")
            thinking = [name for name in get_args(ThinkingType) if _supported(types, name)]
            if thinking:
                reported["native"] = {"thinking": thinking}
                controls["reasoning-tokens"] = self._bound_budget(thinking)
            effort = _table(capabilities, "effort")
            levels = [name for name in effort if name != "supported" and _supported(effort, name)]
            if effort:
                controls["effort"] = {"choices": levels} if levels else False
        return {**reported, "controls": controls}

    def _bound_budget(self, thinking: Sequence[str]) -> Mapping[str, int] | bool:
        can_be_off = "disabled" in thinking or "between_tools" in thinking
        if "enabled" in thinking:
            bounds = {"minimum": 0 if can_be_off else SMALLEST_BUDGET_TOKENS}
            return {**bounds, "maximum": self.max_tokens - 1} if self.max_tokens else bounds
        return {"minimum": 0, "maximum": 0} if can_be_off else False


class ModelPage(Struct):
    """One page of the list of models."""

    data: list[AnthropicModelEntry]
    has_more: bool = False
    last_id: str | None = None


def _table(capabilities: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of that name, or an empty one if the server sent something else."""
    entry = capabilities.get(name)
    return entry if isinstance(entry, dict) else {}


def _supported(capabilities: Mapping[str, Any], name: str) -> bool:
    return _table(capabilities, name).get("supported") is True


PAGE = msgspec.json.Decoder(ModelPage)
