"""Values that fit a JSON Schema: arguments and typed replies, as far as they are in the words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

#: So many values are made for a schema, and so many within each other; schemas may contain
#: themselves.
_MOST, _DEEPEST = 1000, 30


class Examples:
    """Makes values from words: numbers and quoted texts are taken in their order.

    What the words do not have is left out where it is not required. `rest` stands for other texts.
    """

    def __init__(self, schema: Mapping[str, Any], words: str, rest: str) -> None:
        self._root = schema
        self._numbers = iter(re.findall(r"-?\d+(?:\.\d+)?", words))
        self._quoted = iter(re.findall(r"[\"'“]([^\"'”]+)[\"'”]", words))
        self._rest = rest
        self._left = _MOST
        self._depth = 0

    def produce(self) -> Any:
        """A value that fits."""
        return self._produce({"type": "object", **self._root}, required=True)

    def _produce(self, schema: Any, *, required: bool) -> Any:
        """A value; `UNSET` if there is none and none is required."""
        self._left -= 1
        if self._left < 0 or self._depth > _DEEPEST:
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
        """The schema that one stands for, and whether it allows null."""
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
