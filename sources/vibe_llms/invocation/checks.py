"""The check of a call's arguments against a JSON Schema that comes from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from vibe_llms.exceptions import InvokerInvalid
from vibe_llms.invocation.schemata import ArgumentsInvalid

_TOLD_PROBLEMS = 20
#: Keywords whose regular expressions somebody else wrote, which can take for ever to match.
_EXPRESSIONS = ("pattern", "patternProperties")


def read_object(arguments: str) -> dict[str, Any]:
    """The arguments of a call, which are one JSON object; `ArgumentsInvalid` tells what is not."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ArgumentsInvalid(f"This is not a JSON object: {error}") from error


class SchemaCheck:
    """Checks arguments against a schema (2020-12); made when it is first called, then kept.

    Nothing that a schema refers to is ever fetched. A schema of somebody else's is not `trusted`:
    its regular expressions are not applied, and where it cannot be applied at all, whoever wrote
    it has to check.
    """

    def __init__(self, schema: Mapping[str, Any], *, trusted: bool = True) -> None:
        self._schema = schema
        self._trusted = trusted
        self._find: Callable[[Any], list[str]] | None = None
        if trusted:
            self._find = self._produce()

    def __call__(self, arguments: str) -> dict[str, Any]:
        """The arguments as values; `ArgumentsInvalid` lists what does not fit."""
        values = read_object(arguments)
        if self._find is None:
            self._find = self._produce()
        try:
            problems = self._find(values)
        except RecursionError:
            # A schema that refers to itself without end.
            problems = ["the schema cannot be applied"] if self._trusted else []
        if problems:
            raise ArgumentsInvalid("\n".join(problems[:_TOLD_PROBLEMS]))
        return values

    def _produce(self) -> Callable[[Any], list[str]]:
        from jsonschema import Draft202012Validator, validators
        from jsonschema.exceptions import SchemaError
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        kind: Any = Draft202012Validator
        if self._trusted:
            try:
                kind.check_schema(dict(self._schema))
            except SchemaError as error:
                raise InvokerInvalid(f"this is no valid JSON Schema: {error.message}") from error
        elif _mentions(self._schema, "patternProperties"):
            return lambda _: []
        else:
            extend: Any = validators.extend
            kind = extend(kind, dict.fromkeys(_EXPRESSIONS))
        validator = kind(dict(self._schema), registry=Registry())

        def find(values: Any) -> list[str]:
            try:
                return [
                    f"{'.'.join(map(str, error.absolute_path))}: {error.message}".removeprefix(": ")
                    for error in validator.iter_errors(values)
                ]
            except (Unresolvable, SchemaError, TypeError, AttributeError, KeyError) as error:
                if self._trusted:
                    raise ArgumentsInvalid(f"the schema cannot be applied: {error}") from error
                return []

        return find


def _mentions(node: object, key: str) -> bool:
    """Whether a key stands anywhere in a tree, which may be deep."""
    waiting: list[object] = [node]
    while waiting:
        match waiting.pop():
            case dict() as table:
                if key in table:
                    return True
                waiting.extend(table.values())
            case list() as items:
                waiting.extend(items)
    return False
