"""Checks the arguments of a call against a third-party JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from vibe_llms.base.exceptions import ArgumentsInvalid, InvokerInvalid
from vibe_llms.base.offloading import offload
from vibe_llms.invocation.keywords import (
    LOOP_STEPS,
    CheckTooLong,
    Problem,
    SchemaInapplicable,
    SchemaValidator,
    limit_steps,
)

_MAX_PROBLEMS = 20
#: Size in bytes above which arguments are decoded and checked in a thread.
_LOOP_BYTES = 64 * 1024


def read_object(arguments: str) -> dict[str, Any]:
    """Decode the arguments of a call; raises `ArgumentsInvalid` unless they are one JSON object."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ArgumentsInvalid(f"This is not a JSON object: {error}") from error


class SchemaCheck:
    """A check of arguments against a schema (2020-12), built at the first call and then kept.

    References in a schema are never fetched. If a schema is not `trusted`, its regular expressions
    are not applied; if it cannot be applied at all, or not in time, the check is left to its
    author. `null` for an optional property that does not accept null is removed, because models
    send it for "not given".
    """

    def __init__(self, schema: Mapping[str, Any], *, trusted: bool = True) -> None:
        self._schema = schema
        self._trusted = trusted
        self._validator = SchemaValidator(schema, expressions="all" if trusted else "none")
        # The first check imports jsonschema, which is slow.
        self._ready = trusted
        if trusted:
            _validate(schema)

    def __call__(self, arguments: str) -> dict[str, Any]:
        """Return the arguments as values; raises `ArgumentsInvalid` with a list of problems."""
        try:
            return self._check(arguments)
        except CheckTooLong:
            if self._trusted:
                raise
            return read_object(arguments)

    async def run(self, arguments: str) -> dict[str, Any]:
        """Check as `__call__` does; a check of more than a few steps continues in a thread."""
        if len(arguments) <= _LOOP_BYTES and self._ready:
            try:
                with limit_steps(LOOP_STEPS):
                    return self._check(arguments)
            except CheckTooLong:
                pass
        return await offload(True, self, arguments)

    def _check(self, arguments: str) -> dict[str, Any]:
        values = read_object(arguments)
        self._ready = True
        problems = self._list_problems(values)
        if unwanted := self._find_nulls(values, problems):
            values = {key: value for key, value in values.items() if key not in unwanted}
            problems = self._list_problems(values)
        if problems:
            raise ArgumentsInvalid("\n".join(map(_describe, problems[:_MAX_PROBLEMS])))
        return values

    def _list_problems(self, values: dict[str, Any]) -> Sequence[Problem]:
        try:
            return self._validator.list_problems(values)
        except SchemaInapplicable as error:
            # The schema may refer to itself endlessly.
            return [((), f"the schema cannot be applied: {error}")] if self._trusted else []

    def _find_nulls(self, values: dict[str, Any], problems: Sequence[Problem]) -> set[str | int]:
        required = self._schema.get("required")
        needed = required if isinstance(required, list) else []
        return {
            path[0]
            for path, _ in problems
            if len(path) == 1 and path[0] not in needed and values[str(path[0])] is None
        }


def _validate(schema: Mapping[str, Any]) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        raise InvokerInvalid(f"not a valid JSON Schema: {error.message}") from error


def _describe(problem: Problem) -> str:
    path, message = problem
    return f"{'.'.join(map(str, path))}: {message}" if path else message


async def check_arguments(check: Callable[[str], object], arguments: str) -> None:
    """Check arguments; a schema check runs in a thread if it takes long."""
    if isinstance(check, SchemaCheck):
        await check.run(arguments)
    else:
        check(arguments)
