"""Reads a server's lists of tools leniently: invalid tools are omitted and the others stay.

The package refuses a whole list for one tool that violates the protocol. So lists are checked
before the package sees them: invalid optional members are omitted, and a tool with other faults is
omitted with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Self, TypeAlias

from vibe_llms.base.offloading import offload

#: Called with the name of each omitted tool and the reason.
Refuse: TypeAlias = Callable[[str, str], None]

_LONGEST_NAME = 128
#: Characters shown of a place in a schema.
_LONGEST_PLACE = 100
_NEEDED = ("name", "inputSchema")
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_TABLES = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "not", "additionalProperties", "if", "then", "else", "contains")
#: Maximum parts of a schema that are checked.
_MAX_PARTS = 10_000


class ListingStream:
    """Messages of a server, without tools that the package would refuse."""

    def __init__(self, inner: Any, find_version: Callable[[], str], refuse: Refuse) -> None:
        """Wrap a stream of the package; `find_version` returns the protocol version."""
        self._inner = inner
        self._find_version = find_version
        self._refuse = refuse

    @property
    def last_context(self) -> Any:
        """Context of the sender, which the package reads."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        """Receive the next message."""
        return await self._repair(await self._inner.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._repair(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._inner.__aexit__(*error)

    async def _repair(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        # Only lists of tools have this member.
        if isinstance(result, dict) and "tools" in result:
            refused: list[tuple[str, str]] = []
            # A list may be as large as a message.
            result["tools"] = await offload(
                True, repair_tools, result, self._find_version(), lambda *one: refused.append(one)
            )
            for name, reason in refused:
                self._refuse(name, reason)
        return item


def repair_tools(result: Mapping[str, Any], version: str, refuse: Refuse) -> list[Any]:
    """Return the tools of a list that the package accepts; call `refuse` for each other one."""
    tools = result["tools"]
    if not isinstance(tools, list):
        return []
    page = {key: value for key, value in result.items() if key != "tools"}
    kept = []
    for number, tool in enumerate(tools, 1):
        if not isinstance(tool, dict):
            refuse(f"number {number}", "it is not an object")
            continue
        name = tool.get("name")
        shown = name if isinstance(name, str) and _is_name(name) else f"number {number}"
        if reason := find_fault(tool):
            refuse(shown, reason)
            continue
        repaired = _repair_tool(page, tool, version)
        if repaired is None:
            refuse(shown, "its description violates the protocol")
            continue
        kept.append(repaired)
    return kept


def find_fault(tool: Mapping[str, Any]) -> str:
    """Return why a tool cannot be offered to any model, or an empty string."""
    name = tool.get("name")
    if not isinstance(name, str) or not _is_name(name):
        return f"its name is not 1 to {_LONGEST_NAME} printable characters"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return "it has no inputSchema" if schema is None else "its inputSchema is not an object"
    if schema.get("type", "object") != "object":
        return "its inputSchema does not describe an object"
    if not isinstance(tool.get("description") or "", str):
        return "its description is not text"
    if place := _find_invalid(schema):
        return f"its inputSchema is not valid at {place!r}"
    return ""


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and not name.isspace()


def _repair_tool(
    page: Mapping[str, Any], tool: Mapping[str, Any], version: str
) -> dict[str, Any] | None:
    """Return a tool with the members that the package accepts; None if it is refused."""
    from mcp_types import Tool

    # Each member may be validated alone, so unknown ones are omitted.
    fields = [field.alias or name for name, field in Tool.model_fields.items()]
    whole = {key: tool[key] for key in fields if tool.get(key) is not None}
    whole["inputSchema"] = {"type": "object", **whole["inputSchema"]}
    if "outputSchema" in whole and _find_invalid(whole["outputSchema"]):
        del whole["outputSchema"]
    if _is_accepted(page, whole, version):
        return whole
    one = {key: whole[key] for key in _NEEDED}
    if not _is_accepted(page, one, version):
        return None
    for key, value in whole.items():
        if _is_accepted(page, {**one, key: value}, version):
            one[key] = value
    return one


def _is_accepted(page: Mapping[str, Any], tool: Mapping[str, Any], version: str) -> bool:
    from mcp_types import Tool
    from mcp_types.methods import validate_server_result
    from pydantic import ValidationError

    try:
        Tool.model_validate(tool, by_name=False)
        validate_server_result("tools/list", version, {**page, "tools": [tool]})
    except KeyError:
        return True
    except ValidationError:
        return False
    return True


def _find_invalid(schema: object) -> str:
    """Return the first place in a schema where a keyword has an invalid type; empty if none."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    for _ in range(_MAX_PARTS):
        if not waiting:
            break
        place, node = waiting.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            return place
        kinds = node.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not all(isinstance(one, str) and one in _TYPES for one in kinds):
            return f"{place}/type"
        required = node.get("required", [])
        # Drafts before 2020-12 have a boolean here.
        if not isinstance(required, bool) and not (
            isinstance(required, list) and all(isinstance(one, str) for one in required)
        ):
            return f"{place}/required"
        for key in ("enum", *_LISTS):
            if not isinstance(node.get(key, []), list):
                return f"{place}/{key}"
        for key in _TABLES:
            if not isinstance(node.get(key, {}), dict):
                return f"{place}/{key}"
        waiting += islice(_list_parts(place, node), _MAX_PARTS - len(waiting))
    return ""


def _list_parts(place: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly in a schema, each with its place."""
    for key in _TABLES:
        for name, one in node.get(key, {}).items():
            yield f"{place}/{key}/{name}"[:_LONGEST_PLACE], one
    for key in _LISTS:
        for number, one in enumerate(node.get(key, [])):
            yield f"{place}/{key}/{number}"[:_LONGEST_PLACE], one
    for key in _SINGLE:
        if key in node and not (key == "items" and isinstance(node[key], list)):
            yield f"{place}/{key}"[:_LONGEST_PLACE], node[key]
