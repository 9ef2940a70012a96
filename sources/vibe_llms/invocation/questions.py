"""Questions of an ensemble or the model to the user: a form to fill in, or a URL to open.

An `Elicitor`, passed to `open_session`, answers them. An answer is checked against the form before
it is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import AnswerInvalid
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import TextualContent, repair_text

FieldKind: TypeAlias = Literal["text", "number", "integer", "boolean", "choice", "choices"]
_KINDS: dict[Any, FieldKind] = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "boolean",
    "array": "choices",
}
_TYPES: Mapping[str, str] = {**{kind: name for name, kind in _KINDS.items()}, "choice": "string"}
#: Members of a field's schema with its limits, besides those of numbers.
_LIMITS = {"text": ("minLength", "maxLength"), "choices": ("minItems", "maxItems")}
_YES, _NO = ("y", "yes", "true", "1", "on"), ("n", "no", "false", "0", "off")


class ElicitationField(Struct, frozen=True, kw_only=True):
    """One field of a form.

    `choices` are the allowed values with their titles. `least` and `most` limit a number, the
    length of a text, or the number of choices. `format` is one of `email`, `uri`, `date`, and
    `date-time`.
    """

    name: str
    kind: FieldKind = "text"
    title: str = ""
    description: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[tuple[str, str], ...] = ()
    least: float | None = None
    most: float | None = None
    format: str = ""

    def parse(self, text: str) -> Any:
        """Convert typed text to a valid value; raises `AnswerInvalid` if that fails.

        >>> ElicitationField(name="age", kind="integer", least=0).parse(" 42 ")
        42
        """
        text = text.strip()
        match self.kind:
            case "boolean":
                if text.lower() not in (*_YES, *_NO):
                    raise AnswerInvalid(f"{self.name}: answer yes or no")
                return text.lower() in _YES
            case "integer" | "number":
                return self.check(_parse_number(self.name, text))
            case "choice":
                return self.check(self._choose(text))
            case "choices":
                parts = [part for piece in text.split(",") if (part := piece.strip())]
                return self.check([self._choose(part) for part in parts])
            case _:
                return self.check(text)

    def check(self, value: Any) -> Any:
        """Return the value if it is valid; raises `AnswerInvalid` otherwise."""
        problem = self._find_problem(value)
        if problem:
            raise AnswerInvalid(f"{self.name}: {problem}")
        return value

    def _choose(self, text: str) -> str:
        """Return a choice by its value, its title, or its number, counted from 1."""
        for value, title in self.choices:
            if text.casefold() in (value.casefold(), title.casefold()):
                return value
        if text.isdecimal() and 0 < int(text) <= len(self.choices):
            return self.choices[int(text) - 1][0]
        return text

    def _find_problem(self, value: Any) -> str:
        match self.kind:
            case "boolean":
                return "" if isinstance(value, bool) else "must be yes or no"
            case "integer" if not _is_whole(value):
                return "must be a whole number"
            case "integer" | "number":
                if isinstance(value, bool) or not isinstance(value, int | float):
                    return "must be a number"
                return self._find_size_problem(value, "")
            case "choices":
                if not isinstance(value, Sequence) or isinstance(value, str):
                    return "must be a list"
                wrong = next((one for one in value if self._find_choice_problem(one)), None)
                if wrong is not None:
                    return self._find_choice_problem(wrong)
                if len(set(value)) < len(value):
                    return "must not repeat a choice"
                return self._find_size_problem(len(value), " chosen")
            case "choice":
                return self._find_choice_problem(value)
            case _:
                if not isinstance(value, str):
                    return "must be text"
                size = self._find_size_problem(len(value), " characters")
                return size or _find_format_problem(value, self.format)

    def _find_choice_problem(self, value: Any) -> str:
        if not self.choices or value in [known for known, _ in self.choices]:
            return "" if isinstance(value, str) else "must be text"
        return f"must be one of {', '.join(known for known, _ in self.choices)}"

    def _find_size_problem(self, size: float, unit: str) -> str:
        if self.least is not None and size < self.least:
            return f"at least {self.least:g}{unit}"
        if self.most is not None and size > self.most:
            return f"at most {self.most:g}{unit}"
        return ""


class ElicitationRequest(Struct, frozen=True, kw_only=True):
    """A question: fill in `fields`, or open `url` and follow its instructions.

    `message` and the titles come from the server and are untrusted: show their origin.
    """

    ensemble: str
    message: str
    fields: tuple[ElicitationField, ...] = ()
    url: str = ""

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked values of an accepted form, with defaults for missing ones."""
        fields = {field.name: field for field in self.fields}
        if unknown := [name for name in values if name not in fields]:
            raise AnswerInvalid(f"the form has no field {unknown[0]!r}")
        checked: dict[str, Any] = {}
        for name, field in fields.items():
            value = values.get(name, field.default)
            if value is not None:
                checked[name] = field.check(value)
            elif field.required:
                raise AnswerInvalid(f"{name}: is required")
        return checked


class ElicitationAnswer(Struct, frozen=True):
    """The user's answer: accepted (with the values of a form), declined, or cancelled."""

    action: Literal["accept", "decline", "cancel"]
    values: Mapping[str, Any] = {}


#: Answers an ensemble's questions; a function that is not async runs in a thread.
Elicitor: TypeAlias = Callable[
    [ElicitationRequest], Awaitable[ElicitationAnswer] | ElicitationAnswer
]


def answer_call(invocation: InvocationCanister, answer: ElicitationAnswer) -> ResultCanister:
    """Return the result of a call that asked the user."""
    match answer:
        case ElicitationAnswer("accept", values) if len(values) == 1:
            (value,) = values.values()
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case ElicitationAnswer("accept", values):
            text = msgspec.json.encode(values).decode()
        case ElicitationAnswer("decline"):
            text = "The user declined to answer."
        case _:
            text = "The user did not answer."
    failed = answer.action != "accept"
    contents = (TextualContent(repair_text(text)),)
    return ResultCanister(contents, invocation=invocation.identity, failed=failed, trusted=True)


async def decline(_: ElicitationRequest) -> ElicitationAnswer:
    """Decline every question; in runs, users may still answer."""
    return ElicitationAnswer("decline")


def read_fields(schema: Mapping[str, Any]) -> tuple[ElicitationField, ...]:
    """Return the fields of a form from its JSON Schema, which must be flat with simple types.

    Raises `AnswerInvalid` for other schemas. Source: the Model Context Protocol 2025-11-25 and
    2026-07-28, "Elicitation".
    """
    properties = schema.get("properties", {})
    if schema.get("type", "object") != "object" or not isinstance(properties, Mapping):
        raise AnswerInvalid("the form is not an object with properties")
    required = schema.get("required") or ()
    return tuple(_read_field(name, one, name in required) for name, one in properties.items())


def _read_field(name: str, schema: Any, required: bool) -> ElicitationField:
    kind = _KINDS.get(schema.get("type")) if isinstance(schema, Mapping) else None
    if kind is None:
        raise AnswerInvalid(f"the field {name!r} has a type that forms do not allow")
    choices = _read_choices(schema if kind != "choices" else schema.get("items", {}))
    if kind == "text" and choices:
        kind = "choice"
    least, most = _LIMITS.get(kind, ("minimum", "maximum"))
    try:
        return msgspec.convert(
            {
                "name": name,
                "kind": kind,
                "title": schema.get("title") or "",
                "description": schema.get("description") or "",
                "required": required,
                "default": schema.get("default"),
                "choices": choices,
                "least": schema.get(least),
                "most": schema.get(most),
                "format": schema.get("format") or "",
            },
            ElicitationField,
        )
    except msgspec.ValidationError as error:
        raise AnswerInvalid(f"the field {name!r} is not valid in a form: {error}") from error


def write_form(fields: Iterable[ElicitationField]) -> dict[str, Any]:
    """Return the JSON Schema of a form, from which `read_fields` reads the same fields."""
    fields = [*fields]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {field.name: _write_field(field) for field in fields},
    }
    if required := [field.name for field in fields if field.required]:
        schema["required"] = required
    return schema


def _write_field(field: ElicitationField) -> dict[str, Any]:
    kind = field.kind
    schema: dict[str, Any] = {"type": _TYPES[kind]}
    titled = [{"const": value, "title": title} for value, title in field.choices]
    if kind == "choice":
        schema["oneOf"] = titled
    elif kind == "choices":
        schema["items"] = {"anyOf": titled}
    least, most = _LIMITS.get(kind, ("minimum", "maximum"))
    members = {
        "title": field.title,
        "description": field.description,
        "default": field.default,
        "format": field.format,
        least: _as_written(field.least, kind),
        most: _as_written(field.most, kind),
    }
    return {**schema, **{name: one for name, one in members.items() if one not in (None, "")}}


def _as_written(limit: float | None, kind: FieldKind) -> float | int | None:
    return limit if limit is None or kind == "number" else int(limit)


def _read_choices(schema: Any) -> list[tuple[Any, Any]]:
    if not isinstance(schema, Mapping):
        return []
    titled = schema.get("oneOf") or schema.get("anyOf")
    if titled and all(isinstance(one, Mapping) and "const" in one for one in titled):
        return [(one["const"], one.get("title") or one["const"]) for one in titled]
    values = schema.get("enum") or ()
    titles = schema.get("enumNames") or values
    return list(zip(values, titles if len(titles) == len(values) else values, strict=True))


def _parse_number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise AnswerInvalid(f"{name}: must be a number") from None
    if number in (float("inf"), float("-inf")) or number != number:
        raise AnswerInvalid(f"{name}: must be a number")
    return number


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _find_format_problem(text: str, form: str) -> str:
    try:
        match form:
            case "email":
                name, _, host = text.rpartition("@")
                return "" if name and host and " " not in text else "must be an email address"
            case "uri":
                return "" if urlsplit(text).scheme else "must be a URL such as https://…"
            case "date":
                date.fromisoformat(text)
            case "date-time":
                datetime.fromisoformat(text)
    except ValueError:
        return f"must be a {form}, such as 2026-07-28{'T12:00:00Z' if form == 'date-time' else ''}"
    return ""
