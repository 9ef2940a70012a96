"""Rows of `[agents]` made from the templates of other programs, with remarks on what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.messages.controls import Controls, read_controls

#: Programs whose templates are read.
Program: TypeAlias = Literal["llm", "aichat"]
_PROVIDERS = "providers"
#: Character between the provider and the model in the addresses of each program.
_SEPARATORS: Mapping[Program, str] = {"llm": "/", "aichat": ":"}
#: Names of providers in other programs that differ from ours.
_OTHER_NAMES = {"claude": "anthropic", "google": "gemini"}
#: Names of models that only one provider gives. `gpt-oss` runs anywhere.
_MAKERS = (
    (re.compile(r"(?:gpt-\d|chatgpt-|o[134](?:-|$))"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gemini-"), "gemini"),
)
#: Options of models in other programs that differ from our controls.
_CONTROLS = {
    "max_tokens": "output-tokens",
    "max_output_tokens": "output-tokens",
    "max_completion_tokens": "output-tokens",
    "num_predict": "output-tokens",
    "reasoning_effort": "effort",
    "stop_sequences": "stop",
    "thinking_budget": "reasoning-tokens",
}


class AgentDraft(Struct, frozen=True, kw_only=True):
    """An agent of another program as a row of `[agents]`.

    `remarks` says what of it has no counterpart, and why.
    """

    name: str
    row: Mapping[str, Any]
    remarks: tuple[str, ...] = ()


class DraftWriter:
    """Collects the keys of a row, and the remarks on what is left out."""

    def __init__(self, configuration: Configuration, program: Program, name: str) -> None:
        self._configuration = configuration
        self._program: Program = program
        self._name = name
        self._row: dict[str, Any] = {}
        self._controls: dict[str, Any] = {}
        self._remarks: list[str] = []

    def remark(self, text: str) -> None:
        """Add a remark."""
        self._remarks.append(text)

    def set(self, key: str, value: Any) -> None:
        """Set a key of the row, unless the value is empty."""
        if value:
            self._row[key] = value

    def set_model(self, name: str | None) -> None:
        """Set the model if it is certainly the same here; otherwise add a remark."""
        if not name:
            return
        if address := find_model(self._configuration, self._program, name):
            self._row["model"] = address
        else:
            self.remark(f"model {name!r}: it is not certain which model here is the same; set one")

    def set_control(self, name: str, value: Any) -> None:
        """Set a control of the model, or add a remark."""
        key = _CONTROLS.get(name, name.replace("_", "-"))
        if value is None:
            return
        if key not in Controls.__struct_encode_fields__ or key == "extras":
            self.remark(f"option {name!r} has no counterpart")
            return
        try:
            self._controls |= read_controls({key: value}).given()
        except ControlInvalid as error:
            self.remark(f"option {name!r} is left out: {error}")

    def finish(self) -> AgentDraft:
        """Return the draft."""
        if self._controls:
            self._row["controls"] = {
                key: [*value] if isinstance(value, tuple) else value
                for key, value in self._controls.items()
            }
        return AgentDraft(name=self._name, row=self._row, remarks=tuple(self._remarks))


def find_model(configuration: Configuration, program: Program, name: str) -> str:
    """Return the address of a model that another program names; empty unless it is certain."""
    rows = {row.name: row.settings for row in configuration.rows(_PROVIDERS)}
    provider, separator, model = name.partition(_SEPARATORS[program])
    provider = _OTHER_NAMES.get(provider, provider)
    if separator and model:
        return f"{provider}/{model}" if provider in rows else ""
    makers = [row for pattern, row in _MAKERS if pattern.match(name)]
    known = [
        row
        for row, settings in rows.items()
        if name in (settings.get("default-model"), *settings.get("known-models", ()))
    ]
    found = next((row for row in (*makers, *known) if row in rows), "")
    return f"{found}/{name}" if found and (makers or len(known) == 1) else ""
