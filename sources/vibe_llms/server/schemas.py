"""JSON Schemas of clients: their size, and those that replies are checked against here.

One process serves all, and a check takes time in proportion to the schema and the reply. So where
replies are checked, references are written out, which bounds what they stand for, and regular
expressions are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vibe_llms.server.failures import Rejected

#: So many schemas may be in one, and so many within each other.
_MOST, _DEEPEST = 1000, 50
_DEFINITIONS = ("$defs", "definitions")
#: Keywords whose values are a schema, schemas, and schemas by names.
_ONE = (
    *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
)
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("dependentSchemas", "properties")
#: Keywords that check nothing.
_REMARKS = frozenset({"default", "deprecated", "description", "examples", "title"})
_REFUSED = (
    *("$dynamicRef", "pattern", "patternProperties"),
    *("unevaluatedItems", "unevaluatedProperties"),
)


def check_size(schema: Mapping[str, Any], param: str) -> None:
    """`Rejected` for a schema that takes long to look at, whatever is done with it then."""
    left, layer = _MOST, [schema]
    # A schema is in a mapping or a list of the one around it.
    for _ in range(2 * _DEEPEST):
        layer = [part for one in layer for part in _survey_parts(one)]
        left -= len(layer)
        if not layer:
            return
        if left < 0:
            break
    raise Rejected("the schema is too large, or too deep", param=param)


def _survey_parts(value: Any) -> Iterable[Any]:
    """What may be a schema in one, and the items of lists, which are compared with each other."""
    if isinstance(value, list):
        return value
    members = value.values() if isinstance(value, Mapping) else ()
    return (one for one in members if isinstance(one, Mapping | list | bool))


def read_schema(given: Mapping[str, Any], param: str) -> Mapping[str, Any]:
    """A schema of a client without references; `Rejected` says why it is not checked here."""
    check_size(given, param)
    return _Unfolding(given, param).unfold(given)  # type: ignore[no-any-return]


class _Unfolding:
    """Writes the references of a schema out."""

    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._left = _MOST

    def unfold(self, schema: Any, depth: int = 0) -> Any:
        """A schema, or what is none, without references."""
        if not isinstance(schema, Mapping):
            return schema
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise self._reject("the schema is too large, or contains itself")
        for name in _REFUSED:
            if name in schema:
                raise self._reject(f"{name!r} is not checked here; leave it out")
        left_out = ("$ref", "$schema", *_DEFINITIONS)
        found = {
            name: self._unfold_member(name, value, depth + 1)
            for name, value in schema.items()
            if name not in left_out
        }
        if "$ref" not in schema:
            return found
        target = self.unfold(self._find(schema["$ref"]), depth + 1)
        if isinstance(target, Mapping) and found.keys() <= _REMARKS:
            return {**target, **found}
        return {"allOf": [found, target]}

    def _unfold_member(self, name: str, value: Any, depth: int) -> Any:
        if name in _ONE:
            return self.unfold(value, depth)
        if name in _SEVERAL and isinstance(value, list):
            return [self.unfold(one, depth) for one in value]
        if name in _NAMED and isinstance(value, Mapping):
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
        raise self._reject(f"there is no {reference!r} in the schema, among its '$defs'")

    def _reject(self, reason: str) -> Rejected:
        return Rejected(reason, param=self._param)
