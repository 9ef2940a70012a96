"""Checks values against JSON Schemas (2020-12) within a number of steps.

The package jsonschema compares each item of a list with every other for `uniqueItems`, and each
value with every value of an `enum`. Here `uniqueItems` is linear, and every keyword counts its
steps, so every check ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from typing import Any, Literal, TypeAlias

from vibe_llms.base.exceptions import ArgumentsInvalid

#: Regular expressions of a schema to apply: none, those that take linear time, or all, if the
#: schema's author may block the program.
Expressions: TypeAlias = Literal["none", "linear", "all"]
#: The path to an invalid value, and a description of the problem.
Problem: TypeAlias = tuple[Sequence[str | int], str]
#: Most steps of a check: a few seconds in a thread.
MOST_STEPS = 1_000_000
#: Most steps of a check on the event loop: a few milliseconds.
LOOP_STEPS = 2_000
#: Most problems that a check collects; a model needs only the first ones.
_MAX_PROBLEMS = 200
_SHOWN_NAMES = 20
_SHOWN_CHARACTERS = 1_000
#: Keywords that iterate over the members or items of a value.
_LOOPS = frozenset(
    ("items", "contains", "propertyNames", "additionalProperties", "unevaluatedItems",
     "unevaluatedProperties")
)  # fmt: skip
#: Syntax with different meanings in the regular expressions of Python and Rust.
_AMBIGUOUS = r"\\[<>]|\[[^\]\\]*\[|--|&&|~~"


class CheckTooLong(ArgumentsInvalid):
    """A check needs more steps than its limit."""


class SchemaInapplicable(Exception):
    """A schema cannot be applied to a value, although it may be valid."""


class _Meter:
    """A countdown of the steps of one check."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self, steps: int) -> None:
        """Count steps; raises `CheckTooLong` if none are left."""
        self.left -= steps
        if self.left < 0:
            raise CheckTooLong("the arguments take too long to check; make them smaller")


#: Returns a true value if a text contains a match of a pattern.
_Matcher: TypeAlias = Callable[[str], object]
_Compiler: TypeAlias = Callable[[str], "_Matcher | None"]
_METER: ContextVar[_Meter] = ContextVar("meter")
_STEPS: ContextVar[int] = ContextVar("steps", default=MOST_STEPS)


@contextmanager
def limit_steps(steps: int) -> Iterator[None]:
    """Limit each check in the block to `steps` steps."""
    token = _STEPS.set(steps)
    try:
        yield
    finally:
        _STEPS.reset(token)


class SchemaValidator:
    """A validator for one schema; references in the schema are never fetched."""

    def __init__(self, schema: Mapping[str, Any], *, expressions: Expressions) -> None:
        self._schema = schema
        self._expressions = expressions

    def list_problems(self, value: Any) -> Sequence[Problem]:
        """Return the first problems of a value.

        Raises `CheckTooLong` if it takes too many steps, `SchemaInapplicable` if it is impossible.
        """
        from jsonschema.exceptions import UnknownType
        from referencing.exceptions import Unresolvable

        token = _METER.set(_Meter(_STEPS.get()))
        try:
            errors = islice(self._validator.iter_errors(value), _MAX_PROBLEMS)
            return [(tuple(error.absolute_path), error.message) for error in errors]
        except (
            *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
            *(UnknownType, Unresolvable, re.error),
        ) as error:
            raise SchemaInapplicable(f"{type(error).__name__}: {error}") from error
        finally:
            _METER.reset(token)

    @cached_property
    def _validator(self) -> Any:
        from referencing import Registry

        return _produce_kind(self._expressions)(self._schema, registry=Registry())


@cache
def _produce_kind(expressions: Expressions) -> Any:
    from jsonschema import Draft202012Validator, validators

    original: Any = Draft202012Validator
    create: Any = validators.create
    compiled = partial(_compile, expressions=expressions)
    ours = {
        "uniqueItems": _check_unique,
        "enum": _check_enum,
        "pattern": partial(_check_pattern, compiled),
        "patternProperties": partial(_check_pattern_properties, compiled),
        "additionalProperties": partial(_check_additional, compiled),
    }
    checks = {name: _count(name, check) for name, check in {**original.VALIDATORS, **ours}.items()}
    if expressions != "all":
        # This keyword matches the patterns of `patternProperties` itself.
        del checks["unevaluatedProperties"]
    kind = create(original.META_SCHEMA, checks, type_checker=original.TYPE_CHECKER)
    kind.evolve = _evolve
    return kind


def _evolve(validator: Any, **changes: Any) -> Any:
    """Return a validator for a part of the schema; a `$schema` in that part is ignored."""
    import attrs

    kind = type(validator)
    kept = {one.alias: getattr(validator, one.name) for one in attrs.fields(kind) if one.init}
    return kind(**{**kept, **changes})


def _count(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
    loops, refers = name in _LOOPS, name in ("$ref", "$dynamicRef")

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        meter = _METER.get()
        steps = 1 + (len(value) if isinstance(value, list | dict) else 0)
        if loops and isinstance(instance, list | dict):
            steps += len(instance)
        if refers:
            # A reference other than a path may search the whole schema.
            steps += 10 if str(value).startswith("#/") else 1_000
        if name.startswith("unevaluated") and isinstance(instance, list | dict):
            # jsonschema searches a list of places for each place.
            steps += len(instance) ** 2 // 50
        meter.take(steps)
        for error in check(validator, value, instance, schema) or ():
            # The message quotes values, which may be long.
            meter.take(len(error.message) // 100)
            error.message = error.message[:_SHOWN_CHARACTERS]
            yield error

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
    # The keys of a long list are computed again for each value, so they count.
    key = _freeze(instance, meter)
    if not any(_freeze(value, meter) == key for value in values):
        yield ValidationError(f"{instance!r} is not one of {values!r}")


def _check_pattern(
    compiled: _Compiler, _: Any, pattern: Any, instance: Any, schema: Any
) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    del schema
    if isinstance(instance, str):
        _METER.get().take(len(instance) // 100)
        matches = compiled(pattern)
        if matches is not None and not matches(instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _check_pattern_properties(
    compiled: _Compiler, validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[Exception]:
    del schema
    if isinstance(instance, dict):
        _METER.get().take(len(patterns) * len(instance))
        for pattern, part in patterns.items():
            matches = compiled(pattern)
            for name, value in instance.items():
                if matches is not None and matches(name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _check_additional(
    compiled: _Compiler, validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    _METER.get().take((1 + len(patterns)) * len(instance))
    known, matchers = schema.get("properties", {}), [compiled(one) for one in patterns]
    others = [
        name
        for name in instance
        if name not in known and not any(one is None or one(name) for one in matchers)
    ]
    if isinstance(allowed, dict):
        for name in others:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and others:
        names = ", ".join(map(repr, others[:_SHOWN_NAMES]))
        verb = "was" if len(others) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


@lru_cache(maxsize=512)
def _compile(pattern: str, *, expressions: Expressions) -> _Matcher | None:
    """Return a function that tells if a text contains a match; None if that cannot be decided.

    Pydantic's expressions take linear time, but have no look-around and no back references.
    """
    if expressions == "none":
        return None
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    if not re.search(_AMBIGUOUS, pattern):
        with suppress(SchemaError):
            return SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    return re.compile(pattern).search if expressions == "all" else None


def _freeze(value: Any, meter: _Meter) -> Any:
    """Return a key that is equal for equal JSON values: 1 and 1.0, but not 1 and true."""
    meter.take(1)
    match value:
        case list():
            meter.take(len(value))
            return ("list", *(_freeze(item, meter) for item in value))
        case dict():
            meter.take(len(value))
            return ("dict", frozenset((name, _freeze(one, meter)) for name, one in value.items()))
        case bool() | None | str():
            return value
        case float() if not value.is_integer():
            return ("number", repr(value))
        case _:
            # As text, because it is easy to find many numbers with the same hash.
            return ("number", hex(int(value)))
