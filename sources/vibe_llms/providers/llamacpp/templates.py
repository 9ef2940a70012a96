"""Abilities that a model's template shows: tool calls and reasoning.

llama.cpp returns text. Only marks show which of it is a call or reasoning, and only marks that the
template writes are looked for: `<tool_call>` with a JSON object of a name and arguments (Qwen,
Hermes, and related models), and `<think>`. Other forms of calls are not read; such a model is
reported to have no native tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

CALL, CALL_END = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"
#: Marks that are read as text, although a vocabulary may hide them.
MARKS = (CALL, CALL_END, THINK, THINK_END)

# Signs that calls have another form between the same marks.
_FOREIGN_CALLS = ("<function=", "<arg_key>")
# Mark of channels (gpt-oss); without it, text and reasoning cannot be separated.
_CHANNEL = "<|channel|>"


class Template(Struct, frozen=True):
    """Template and the abilities it shows; `marked` is True if the vocabulary marks reasoning."""

    text: str
    marked: bool = False

    @property
    def calls(self) -> bool:
        """True if calls are written in the form that can be read."""
        text = self.text
        return (
            CALL in text
            and "tools" in text
            and "arguments" in text
            and not any(mark in text for mark in _FOREIGN_CALLS)
        )

    @property
    def thinks(self) -> bool:
        """True if the template or the vocabulary marks reasoning."""
        return self.marked or THINK_END in self.text

    @property
    def levels(self) -> bool:
        """True if the amount of reasoning can be set."""
        return "reasoning_effort" in self.text

    @property
    def channels(self) -> bool:
        """True if text and reasoning are separated by channels, which are not read here."""
        return _CHANNEL in self.text

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the model that the template shows."""
        reported: dict[str, Any] = {
            "tools": "native" if self.calls else "contract",
            "reasoning": self.thinks,
        }
        controls: dict[str, Any] = {}
        if not self.calls:
            controls["tool-choice"] = {"choices": ["auto", "none"]}
        if self.levels:
            controls["effort"] = {"choices": ["none", "low", "medium", "high"]}
        elif not self.thinks:
            controls["effort"] = False
        return {**reported, "controls": controls} if controls else reported
