"""What the template of a model shows: whether it calls tools, and whether it thinks.

llama.cpp gives text. Only its marks show which of it is a call or a thought, and these are looked
for where the template itself writes them: `<tool_call>` with a JSON object of a name and arguments
(Qwen, Hermes and their kin), `<think>` for reasoning. Other forms of calls are not read; a model
that has one is taken for one that cannot call tools, which is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

CALL, CALL_END = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"
#: The marks that are text to us, although a vocabulary may hide them.
MARKS = (CALL, CALL_END, THINK, THINK_END)

# With these, calls are written in another form between the same marks.
_FOREIGN_CALLS = ("<function=", "<arg_key>")
# The marks of channels, as gpt-oss has them: without them its words and thoughts are one.
_CHANNEL = "<|channel|>"


class Template(Struct, frozen=True):
    """A template, and what can be seen in it; `marked` says that the vocabulary marks thoughts."""

    text: str
    marked: bool = False

    @property
    def calls(self) -> bool:
        """Whether it writes calls in the form that can be read."""
        text = self.text
        return (
            CALL in text
            and "tools" in text
            and "arguments" in text
            and not any(mark in text for mark in _FOREIGN_CALLS)
        )

    @property
    def thinks(self) -> bool:
        """Whether reasoning is marked, by the template or by the model itself."""
        return self.marked or THINK_END in self.text

    @property
    def levels(self) -> bool:
        """Whether the amount of reasoning can be set."""
        return "reasoning_effort" in self.text

    @property
    def channels(self) -> bool:
        """Whether it separates words and thoughts by channels, which are not read here."""
        return _CHANNEL in self.text

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What it says of the model, in the terms of our attributes."""
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
