"""Settings of a reply, under the same names for all providers.

A model's attributes say which controls it takes and in which range. Its provider translates them to
the wire.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError

from vibe_llms.exceptions import ControlInvalid

T = TypeVar("T")


class Controls(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="kebab",
    forbid_unknown_fields=True,
):
    """Controls of a request; the model decides those that are `None`.

    `output_tokens` limits the whole reply, including reasoning. `effort` is one of the words in the
    model's attributes, in most cases `low` to `max`. `reasoning_tokens` is the thinking budget of
    models that take one; 0 turns thinking off. `tool_choice` is `auto`, `any`, `none` or the name
    of a tool. `response_schema` is a JSON Schema that the text of the reply must follow; its
    `title` is the name for providers that require one. `extras` are options of a single provider,
    under the name of its row; they are sent unchanged.
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
        """The controls that are set, by their configuration names (`top-p`), without extras."""
        if self == _OPEN:
            return {}
        return {
            encoded: value
            for name, encoded in _NAMES.items()
            if (value := getattr(self, name)) is not None
        }

    def over(self, defaults: Controls) -> Controls:
        """These controls, completed by those of `defaults`."""
        # Each turn does this several times, and most have controls on one side at most.
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
#: The names in the configuration, without that of `extras`.
_NAMES = dict(zip(Controls.__struct_fields__, Controls.__struct_encode_fields__, strict=True))
del _NAMES["extras"]
_TABLES = frozenset({"response-schema", "extras"})


def leave_choice(controls: Controls) -> Controls:
    """The controls without the choice of a tool, for use before the tools are known."""
    return msgspec.structs.replace(controls, tool_choice=None)


class ControlRange(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The values of one control that a model takes; an empty range allows all.

    `sure` is true if every server of the model takes the control. Otherwise it is sent on request,
    but no feature relies on it.
    """

    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    sure: bool = True

    def refusal(self, value: object) -> str | None:
        """Why a value is invalid, as the end of a sentence about it; `None` if it is valid."""
        if self.choices and value not in self.choices:
            return f"it takes one of {', '.join(self.choices)}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                return "it must be a finite number"
            if self.minimum is not None and value < self.minimum:
                return f"it must be at least {self.minimum:g}"
            if self.maximum is not None and value > self.maximum:
                return f"it must be at most {self.maximum:g}"
        return None


def read_controls(values: Mapping[str, Any]) -> Controls:
    """Controls from names and values in the configuration or on the command line.

    Text is converted to the control's type: `"0.5"` is a number for `temperature`, and a JSON
    object is a table for `response-schema` and `extras`. `ControlInvalid` names an unknown control
    or an invalid value.
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
                else f"the controls are {', '.join(sorted(known))}"
            )
            raise ControlInvalid(f"there is no control {key!r}; {hint}", control=key)
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
