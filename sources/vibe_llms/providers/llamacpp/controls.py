"""Controls for llama.cpp: how the next token is chosen, and when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import Model

_SAMPLING = ("temperature", "top_p", "top_k", "seed", "stop")
_Share = Annotated[float, Meta(ge=0, le=1)]


class Generation(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options for generation; the package decides those that are `None`.

    The first are controls by their names in this library. `grammar` is GBNF that the reply must
    follow, `template` holds variables of the model's template. These and llama.cpp's own sampling
    options are given as extras of the row.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    response_schema: dict[str, Any] | None = None
    tool_choice: str = "auto"
    think: bool | None = None
    effort: str | None = None

    min_p: _Share | None = None
    typical_p: _Share | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    mirostat_mode: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    grammar: str | None = None
    template: dict[str, Any] = {}

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Sampling options by their names in the package."""
        given = {
            "temp": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "repeat_penalty": self.repeat_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "mirostat_mode": self.mirostat_mode,
            "mirostat_tau": self.mirostat_tau,
            "mirostat_eta": self.mirostat_eta,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def variables(self) -> Mapping[str, Any]:
        """Variables of the template."""
        reported: dict[str, Any] = {}
        if self.think is not None:
            reported["enable_thinking"] = self.think
        if self.effort is not None:
            reported["reasoning_effort"] = self.effort
        return {**reported, **self.template}


def nativize_controls(controls: Controls, model: Model) -> Mapping[str, Any]:
    """Return the members; unsupported controls were refused earlier."""
    members: dict[str, Any] = {
        name: value for name in _SAMPLING if (value := getattr(controls, name)) is not None
    }
    bound = controls.output_tokens or model.attributes.default_output_tokens
    if bound is not None:
        members["max_tokens"] = bound
    if controls.response_schema is not None:
        members["response_schema"] = dict(controls.response_schema)
    if controls.tool_choice is not None:
        members["tool_choice"] = controls.tool_choice
    if controls.reasoning_tokens == 0 or controls.effort == "none":
        members["think"] = False
    elif controls.effort is not None:
        members |= {"think": True, "effort": controls.effort}
    return members


def produce_generation(
    members: Mapping[str, Any], extras: Mapping[str, Any], model: Model
) -> Generation:
    """Check members and extras; raise `ControlInvalid` for unknown names and wrong types."""
    try:
        generation = msgspec.convert({**members, **extras}, Generation)
    except msgspec.ValidationError as error:
        raise ControlInvalid(
            f"'extras' for {model.provider!r} cannot be used: {error}",
            control="extras",
            model=model.name,
        ) from error
    if generation.grammar is not None and generation.response_schema is not None:
        raise ControlInvalid(
            "set a grammar or response-schema, not both",
            control="response-schema",
            model=model.name,
        )
    return generation
