"""Checks values against JSON Schemas (2020-12) within a number of steps.

The package jsonschema compares each item of a list with each other one for `uniqueItems`, and
each value with each of an `enum`; some keywords repeat the work of others again and again. Here
the former are linear, and every keyword counts its steps, so that a check always ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, TypeAlias

from vibe_llms.exceptions import ArgumentsInvalid

#: Where a value does not fit, and why.
Problem: TypeAlias = tuple[Sequence[str | int], str]
#: The most steps of a check: a few seconds in a thread.
MOST_STEPS = 1_000_000
#: A check that may run on the event loop takes a few milliseconds.
LOOP_STEPS = 2_000
#: The most problems that are looked for; a model needs the first ones.
_MOST_PROBLEMS = 200
_SHOWN_NAMES = 20
#: Keywords with regular expressions, which can take forever to match.
_EXPRESSIONS = ("pattern", "patternProperties")
#: Keywords that look at each member or item of a value.
_LOOPS = frozenset(
    ("items", "contains", "propertyNames", "additionalProperties", "unevaluatedItems",
     "unevaluatedProperties")
)  # fmt: skip
#: Keywords whose values are data, in which `$schema` means nothing.
_DATA = frozenset(("const", "enum", "default", "examples"))


class CheckTooLong(ArgumentsInvalid):
    """A check needs more steps than it may take."""


class _Meter:
    """The steps that a check has left."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self, steps: int) -> None:
        """Count steps; `CheckTooLong` if none are left."""
        self.left -= steps
        if self.left < 0:
            raise CheckTooLong("the arguments take too long to check; make them smaller")


_METER: ContextVar[_Meter] = ContextVar("meter")
_STEPS: ContextVar[int] = ContextVar("steps", default=MOST_STEPS)


@contextmanager
def limit_steps(steps: int) -> Iterator[None]:
    """Let each check in the block take so many steps."""
    token = _STEPS.set(steps)
    try:
        yield
    finally:
        _STEPS.reset(token)


class SchemaValidator:
    """Finds what in a value does not fit a schema.

    Nothing that the schema refers to is fetched. Without `expressions`, regular expressions are
    not applied.
    """

    def __init__(self, schema: Mapping[str, Any], *, expressions: bool = True) -> None:
        from referencing import Registry

        # A part that names another version would be checked by other rules, and not counted.
        plain = _copy_schema(schema)
        self._validator = _produce_kind(expressions)(plain, registry=Registry())

    def list_problems(self, value: Any) -> Sequence[Problem]:
        """Return the first problems of a value; `CheckTooLong` if that takes too many steps."""
        meter = _Meter(_STEPS.get())
        token = _METER.set(meter)
        try:
            problems: list[Problem] = []
            for error in self._validator.iter_errors(value):
                problems.append((tuple(error.absolute_path), error.message))
                meter.take(_measure(error.instance) // 100)
                if len(problems) >= _MOST_PROBLEMS:
                    break
            return problems
        finally:
            _METER.reset(token)


@cache
def _produce_kind(expressions: bool) -> Any:
    from jsonschema import Draft202012Validator, validators

    known: Any = Draft202012Validator.VALIDATORS
    keywords: dict[str, Any] = {name: _count(name, check) for name, check in known.items()}
    keywords["uniqueItems"] = _check_unique
    keywords["enum"] = _check_enum
    if expressions:
        keywords["pattern"] = _check_pattern
        keywords["patternProperties"] = _check_pattern_properties
        keywords["additionalProperties"] = _check_additional
    else:
        keywords.update(dict.fromkeys(_EXPRESSIONS))
    extend: Any = validators.extend
    return extend(Draft202012Validator, keywords)


def _count(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
    loops, refers = name in _LOOPS, name in ("$ref", "$dynamicRef")

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps = 1 + (len(value) if isinstance(value, list | dict) else 0)
        if loops and isinstance(instance, list | dict):
            steps += len(instance)
        if refers:
            # A reference that is no path may look through the whole schema.
            steps += 10 if str(value).startswith("#/") else 1_000
        if name == "unevaluatedItems" and isinstance(instance, list):
            # It looks for each place in a list of places.
            steps += len(instance) ** 2 // 50
        _METER.get().take(steps)
        return check(validator, value, instance, schema)

    return counted


def _check_unique(_: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    del schema
    if not wanted or not isinstance(instance, list):
        return
    meter = _METER.get()
    seen = set()
    for place, item in enumerate(instance):
        key = _freeze(item, meter)
        if key in seen:
            yield ValidationError(f"item {place} is there twice, and items must be unique")
            return
        seen.add(key)


def _check_enum(_: Any, values: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    del schema
    meter = _METER.get()
    # The keys of a long list are made for each value again: they count.
    key = _freeze(instance, meter)
    if not any(_freeze(value, meter) == key for value in values):
        shown = repr(values)
        shown = shown if len(shown) <= 1000 else f"{shown[:1000]} …"
        yield ValidationError(f"{instance!r} is not one of {shown}")


def _check_pattern(_: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    del schema
    if isinstance(instance, str):
        _METER.get().take(len(instance) // 100)
        if not _compile(pattern)(instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[Exception]:
    del schema
    if isinstance(instance, dict):
        _METER.get().take(len(patterns) * len(instance))
        for pattern, part in patterns.items():
            matches = _compile(pattern)
            for name, value in instance.items():
                if matches(name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _check_additional(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    _METER.get().take((1 + len(patterns)) * len(instance))
    known, matchers = schema.get("properties", {}), [_compile(one) for one in patterns]
    others = [
        name
        for name in instance
        if name not in known and not any(matches(name) for matches in matchers)
    ]
    if isinstance(allowed, dict):
        for name in others:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and others:
        names = ", ".join(map(repr, others[:_SHOWN_NAMES]))
        verb = "was" if len(others) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


@lru_cache(maxsize=512)
def _compile(pattern: str) -> Callable[[str], object]:
    """Return a function that says whether a text contains a match, in linear time if possible.

    Pydantic's expressions have no look-around and no back references; for an author who uses these,
    Python's are taken.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        return re.compile(pattern).search


def _freeze(value: Any, meter: _Meter) -> Any:
    """Return a key that is equal for values that are equal in JSON: 1 and 1.0, not 1 and true."""
    match value:
        case list():
            meter.take(1 + len(value))
            return ("list", *(_freeze(item, meter) for item in value))
        case dict():
            meter.take(1 + len(value))
            return ("dict", frozenset((name, _freeze(one, meter)) for name, one in value.items()))
        case bool() | None:
            return (value,)
        case _:
            meter.take(1)
            return value


def _measure(value: Any) -> int:
    """Return about how long a value is that an error quotes."""
    return len(value) if isinstance(value, str | list | dict) else 1


def _copy_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema without `$schema` in it; it may be deep."""
    whole: list[Any] = [dict(schema)]
    waiting: list[tuple[Any, Any]] = [(whole, 0)]
    while waiting:
        holder, key = waiting.pop()
        match holder[key]:
            case dict() as table:
                kept = {
                    name: one
                    for name, one in table.items()
                    if name != "$schema" or not isinstance(one, str)
                }
                holder[key] = kept
                waiting.extend((kept, name) for name in kept if name not in _DATA)
            case list() as items:
                holder[key] = copied = [*items]
                waiting.extend((copied, place) for place in range(len(copied)))
    return whole[0]  # type: ignore[no-any-return]
