"""JSON Schemas of clients: limits on their size, and schemas for checking replies.

A check takes time in proportion to the schema and the reply, and one process serves all users. So
in schemas for checks, references are expanded, which bounds their size, and regular expressions are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vibe_llms.server.failures import Rejected

#: Maximum number of schemas within a schema, and maximum nesting depth.
_MOST_SCHEMAS, _MOST_NESTED = 1000, 50
_DEFINITIONS = ("$defs", "definitions")
#: Keywords whose values are a schema, a list of schemas, and schemas by name.
_SCHEMA_KEYWORDS = (
    *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
)
_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
_TABLE_KEYWORDS = ("dependentSchemas", "properties")
#: Keywords that check nothing.
_ANNOTATIONS = frozenset({"default", "deprecated", "description", "examples", "title"})
_UNSUPPORTED = (
    *("$dynamicRef", "pattern", "patternProperties"),
    *("unevaluatedItems", "unevaluatedProperties"),
)


def check_size(schema: Mapping[str, Any], param: str) -> None:
    """Raise `Rejected` for a schema that is too large or too deep to be processed."""
    left, layer = _MOST_SCHEMAS, [schema]
    # Each schema is in a mapping or list of its parent, so a level of nesting takes two steps.
    for _ in range(2 * _MOST_NESTED):
        layer = [part for one in layer for part in _survey_parts(one)]
        left -= len(layer)
        if not layer:
            return
        if left < 0:
            break
    raise Rejected("the schema is too large, or too deep", param=param)


def _survey_parts(value: Any) -> Iterable[Any]:
    """Return parts that may be schemas, and the items of lists."""
    if isinstance(value, list):
        return value
    members = value.values() if isinstance(value, Mapping) else ()
    return (one for one in members if isinstance(one, Mapping | list | bool))


def read_schema(given: Mapping[str, Any], param: str) -> Mapping[str, Any]:
    """Return a client's schema with references expanded; `Rejected` if it is not supported."""
    check_size(given, param)
    return _Unfolding(given, param).unfold(given)  # type: ignore[no-any-return]


class _Unfolding:
    """Expansion of the references of a schema."""

    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._left = _MOST_SCHEMAS

    def unfold(self, schema: Any, depth: int = 0) -> Any:
        """Return a value with the references of its schemas expanded."""
        if not isinstance(schema, Mapping):
            return schema
        self._left -= 1
        if self._left < 0 or depth > _MOST_NESTED:
            raise self._reject("the schema is too large, or contains itself")
        for name in _UNSUPPORTED:
            if name in schema:
                raise self._reject(f"{name!r} is not supported; leave it out")
        left_out = ("$ref", "$schema", *_DEFINITIONS)
        found = {
            name: self._unfold_member(name, value, depth + 1)
            for name, value in schema.items()
            if name not in left_out
        }
        if "$ref" not in schema:
            return found
        target = self.unfold(self._find(schema["$ref"]), depth + 1)
        if isinstance(target, Mapping) and found.keys() <= _ANNOTATIONS:
            return {**target, **found}
        return {"allOf": [found, target]}

    def _unfold_member(self, name: str, value: Any, depth: int) -> Any:
        if name in _SCHEMA_KEYWORDS:
            return self.unfold(value, depth)
        if name in _LIST_KEYWORDS and isinstance(value, list):
            return [self.unfold(one, depth) for one in value]
        if name in _TABLE_KEYWORDS and isinstance(value, Mapping):
            return {key: self.unfold(one, depth) for key, one in value.items()}
        return value

    def _find(self, reference: Any) -> Any:
        for definitions in _DEFINITIONS:
            known = self._root.get(definitions)
            prefix = f"#/{definitions}/"
            if isinstance(reference, str) and reference.startswith(prefix):
                name = reference.removeprefix(prefix)
                if isinstance(known, Mapping) and name in known:
                    return known[name]
        raise self._reject(f"{reference!r} not found in the '$defs' of the schema")

    def _reject(self, reason: str) -> Rejected:
        return Rejected(reason, param=self._param)
