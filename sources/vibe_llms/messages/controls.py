"""Settings of a reply, under the same names for all providers.

A model's attributes list the supported controls and ranges; its provider translates the controls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import ControlInvalid

T = TypeVar("T")


class Controls(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="kebab",
    forbid_unknown_fields=True,
):
    """Controls of a request; None leaves the value to the model.

    `output_tokens` limits the whole reply, including reasoning. `effort` is one of the words in the
    model's attributes, usually `low` to `max`. `reasoning_tokens` is the thinking budget of models
    that support one; 0 turns thinking off. `tool_choice` is `auto`, `any`, `none`, or the name of a
    tool. `response_schema` is a JSON Schema for the text of the reply; its `title` is the name for
    providers that require one. `extras` are options of a single provider, under the name of its
    row; they are sent unchanged.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    output_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    effort: str | None = None
    reasoning_tokens: int | None = None
    tool_choice: str | None = None
    parallel_invocations: bool | None = None
    service_tier: str | None = None
    response_schema: Mapping[str, Any] | None = None
    extras: Mapping[str, Mapping[str, Any]] = {}

    def given(self) -> dict[str, Any]:
        """Return the controls that are set, by configuration name (`top-p`), without extras."""
        if self == _OPEN:
            return {}
        return {
            encoded: value
            for name, encoded in _NAMES.items()
            if (value := getattr(self, name)) is not None
        }

    def over(self, defaults: Controls) -> Controls:
        """Return these controls, with those of `defaults` where a control is not set."""
        # Each turn does this several times, and usually one side is empty.
        if defaults == _OPEN:
            return self
        if self == _OPEN:
            return defaults
        values = {
            name: getattr(defaults, name) if (value := getattr(self, name)) is None else value
            for name in _NAMES
        }
        extras = {row: dict(extra) for row, extra in defaults.extras.items()}
        for row, extra in self.extras.items():
            extras.setdefault(row, {}).update(extra)
        return Controls(**values, extras=extras)


#: Controls that leave everything to the model.
_OPEN = Controls()
#: Configuration names by field name, without `extras`.
_NAMES = dict(zip(Controls.__struct_fields__, Controls.__struct_encode_fields__, strict=True))
del _NAMES["extras"]
_TABLES = frozenset({"response-schema", "extras"})


def leave_choice(controls: Controls) -> Controls:
    """Return the controls without the choice of a tool, for use before the tools are known."""
    return msgspec.structs.replace(controls, tool_choice=None)


def leave_form(controls: Controls, output_tokens: int) -> Controls:
    """Return the controls without those that would shape or cut a reply of this many tokens."""
    short = controls.output_tokens is not None and controls.output_tokens < output_tokens
    return msgspec.structs.replace(
        controls,
        output_tokens=None if short else controls.output_tokens,
        stop=None,
        tool_choice=controls.tool_choice if controls.tool_choice in ("auto", "none") else None,
        response_schema=None,
    )


class ControlRange(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The values of one control that a model supports; an empty range allows all.

    `sure` is True if every server of the model supports the control. Otherwise it is sent on
    request, but no feature relies on it.
    """

    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    sure: bool = True

    def refusal(self, value: object) -> str | None:
        """Return why a value is invalid, as the end of a sentence about it; None if it is valid."""
        if self.choices and value not in self.choices:
            return f"it must be one of {', '.join(self.choices)}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                return "it must be a finite number"
            if self.minimum is not None and value < self.minimum:
                return f"it must be at least {self.minimum:g}"
            if self.maximum is not None and value > self.maximum:
                return f"it must be at most {self.maximum:g}"
        return None


def read_controls(values: Mapping[str, Any]) -> Controls:
    """Convert names and values from the configuration or the command line to controls.

    Text is converted to the control's type: `"0.5"` is a number for `temperature`, and a JSON
    object is a table for `response-schema` and `extras`. Raises `ControlInvalid` for an unknown
    control or an invalid value.
    """
    known = dict(zip(Controls.__struct_encode_fields__, Controls.__struct_fields__, strict=True))
    prepared: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else f"known controls: {', '.join(sorted(known))}"
            )
            raise ControlInvalid(f"unknown control {key!r}; {hint}", control=key)
        prepared[name] = _read_words(name, value) if isinstance(value, str) else value
    controls = Controls()
    for name, value in prepared.items():
        try:
            one = msgspec.convert({name: value}, Controls, strict=False)
        except ValidationError as error:
            reason = str(error).partition(" - at ")[0]
            raise _refused(name, value, reason) from error
        if reason := ControlRange().refusal(one.given().get(name)) or "":
            raise _refused(name, value, reason)
        controls = one.over(controls)
    return controls


def check_controls(configuration: Configuration) -> None:
    """Raise `ConfigurationError` if a control in the configuration is unknown or invalid."""
    check_table(configuration, configuration.controls, "controls")
    for name, row in configuration.tree.get("providers", {}).items():
        if isinstance(controls := row.get("controls"), dict):
            check_table(configuration, controls, "providers", name, "controls")


def check_table(configuration: Configuration, controls: Mapping[str, Any], *path: str) -> None:
    """Raise `ConfigurationError` if a control in the table at a path is unknown or invalid."""
    for name, value in controls.items():
        try:
            read_controls({name: value})
        except ControlInvalid as error:
            raise configuration.error(str(error), *path, name) from error


def _read_words(name: str, text: str) -> object:
    if name == "stop":
        return [text]
    if name not in _TABLES:
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise _refused(name, text, f"it must be a JSON object: {error}") from error


def _refused(name: str, value: object, reason: str) -> ControlInvalid:
    return ControlInvalid(f"the control {name!r} cannot be {value!r}: {reason}", control=name)
