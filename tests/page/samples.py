"""Replies of the interface with given texts in every field that holds a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Any

#: Lists have so many items.
_ITEMS = 4


class Samples:
    """Produces replies as `openapi` describes them; the texts are taken in turn."""

    def __init__(self, openapi: Mapping[str, Any], texts: Iterable[str]) -> None:
        self._texts = cycle(texts)
        self._flags = cycle((False, True))
        self._schemas = openapi["components"]["schemas"]
        self._choices: dict[str, Any] = {}
        self._replies = [
            (re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)), described["get"]["responses"]["200"])
            for path, described in openapi["paths"].items()
            if "get" in described
        ]

    def reply(self, path: str) -> Any:
        """Return the JSON of a reply to a GET request; paths without parameters come first."""
        _, reply = next(one for one in self._replies if one[0].fullmatch(path))
        return self._produce(reply["content"]["application/json"]["schema"], "")

    def _produce(self, schema: Mapping[str, Any], name: str) -> Any:
        if "$ref" in schema:
            return self._produce(self._schemas[schema["$ref"].rsplit("/", 1)[1]], name)
        if "anyOf" in schema:
            return self._produce(schema["anyOf"][0], name)
        if "enum" in schema:
            return next(self._choices.setdefault(str(schema["enum"]), cycle(schema["enum"])))
        match schema.get("type"):
            case "object":
                found = {
                    key: self._produce(one, key)
                    for key, one in schema.get("properties", {}).items()
                }
                if isinstance(further := schema.get("additionalProperties"), dict):
                    found[next(self._texts)] = self._produce(further, "")
                return found
            case "array" if "prefixItems" in schema:
                return [self._produce(one, "") for one in schema["prefixItems"]]
            case "array":
                return [self._produce(schema["items"], name) for _ in range(_ITEMS)]
            case "integer" | "number":
                return 1
            case "boolean":
                return name != "has_more" and next(self._flags)
            case "string":
                # A question has an address or fields.
                return "" if name == "url" and next(self._flags) else next(self._texts)
        return None
