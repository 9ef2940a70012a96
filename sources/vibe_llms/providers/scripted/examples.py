"""Values that fit a JSON Schema, taken from the words of a message if possible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

#: Maximum number of values per schema, and of nested levels. Schemas may be recursive.
_MAX_VALUES, _MAX_DEPTH = 1000, 30


class Examples:
    """Generator of values from words; numbers and quoted texts are used in order.

    Optional values that the words do not supply are left out. `rest` is used for other texts.
    """

    def __init__(self, schema: Mapping[str, Any], words: str, rest: str) -> None:
        self._root = schema
        self._numbers = iter(re.findall(r"-?\d+(?:\.\d+)?", words))
        self._quoted = iter(re.findall(r"[\"'“]([^\"'”]+)[\"'”]", words))
        self._rest = rest
        self._left = _MAX_VALUES
        self._depth = 0

    def produce(self) -> Any:
        """Return a value that fits the schema."""
        return self._produce({"type": "object", **self._root}, required=True)

    def _produce(self, schema: Any, *, required: bool) -> Any:
        """Return a value, or `UNSET` if it is optional and the words do not supply it."""
        self._left -= 1
        if self._left < 0 or self._depth > _MAX_DEPTH:
            return None if required else msgspec.UNSET
        schema, nullable = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if values := schema.get("enum"):
            return values[0]
        self._depth += 1
        value = self._find(schema, required=required and not nullable)
        self._depth -= 1
        return None if nullable and required and value is msgspec.UNSET else value

    def _find(self, schema: Mapping[str, Any], *, required: bool) -> Any:
        match schema.get("type", "object" if "properties" in schema else "string"):
            case "integer" | "number" as kind:
                text = next(self._numbers, None)
                if text is not None:
                    return float(text) if kind == "number" and "." in text else int(float(text))
                return schema.get("minimum", 1) if required else msgspec.UNSET
            case "string":
                return next(self._quoted, self._rest if required else msgspec.UNSET)
            case _ if not required:
                return msgspec.UNSET
            case "boolean":
                return True
            case "array":
                items = schema.get("items", {})
                count = min(schema.get("minItems", 0), max(self._left, 0))
                return [self._produce(items, required=True) for _ in range(count)]
            case "object":
                return self._fill(schema)
            case _:
                return None

    def _fill(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        needed = schema.get("required", ())
        values = {
            name: self._produce(one, required=name in needed)
            for name, one in schema.get("properties", {}).items()
        }
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def _resolve(self, schema: Any) -> tuple[Mapping[str, Any], bool]:
        """Resolve references and alternatives; return the schema and whether it allows null."""
        nullable = False
        followed: set[str] = set()
        while isinstance(schema, Mapping):
            if isinstance(kinds := schema.get("type"), list):
                nullable = nullable or "null" in kinds
                schema = {
                    **schema,
                    "type": next((kind for kind in kinds if kind != "null"), "null"),
                }
            elif reference := schema.get("$ref"):
                if reference in followed:
                    break
                followed.add(reference)
                schema = self._root.get("$defs", {}).get(reference.rpartition("/")[2])
            elif choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
                nullable = nullable or {"type": "null"} in choices
                schema = next((one for one in choices if one != {"type": "null"}), choices[0])
            else:
                return schema, nullable
        return {}, nullable
