"""Tools that a client of Responses runs itself: their offer to the model, and their calls.

A client declares tools of several types. Those that it runs itself are offered to the model as
functions, whose calls are returned as items of the type that the client expects. Those that OpenAI
runs are left out. See adr/0090.

Source: `types/responses/tool_param.py` and the types of calls of openai 3.57.0, and requests of
Codex 0.171.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, ValidationError

from vibe_llms.server.chat_replies import name_call
from vibe_llms.server.custom_tools import INPUT, SCHEMA, describe_format, read_text
from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.request_limits import refuse_many

Json: TypeAlias = Mapping[str, Any]

_STRINGS: Json = {"type": "array", "items": {"type": "string"}}
_SHELL: Json = {
    "type": "object",
    "properties": {"commands": _STRINGS, "timeout_ms": {"type": "integer"}},
    "required": ["commands"],
}
_LOCAL_SHELL: Json = {
    "type": "object",
    "properties": {
        "command": _STRINGS,
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
    "required": ["command"],
}
_APPLY_PATCH: Json = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": {"type": "string"},
        "diff": {"type": "string", "description": "V4A diff; not for delete_file."},
    },
    "required": ["type", "path"],
}
_SEARCH: Json = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
}


class CallKind(Struct, frozen=True):
    """Format of the calls of one type of tool.

    The arguments are in the member `member`, as an object with `defaults`, or as a string if
    `text`.
    """

    item: str
    prefix: str
    member: str
    defaults: Json = {}
    text: bool = False


#: Kinds of calls, by the types of their tools.
KINDS: Mapping[str, CallKind] = {
    "function": CallKind("function_call", "fc", "arguments", text=True),
    "custom": CallKind("custom_tool_call", "ctc", INPUT, text=True),
    "tool_search": CallKind("tool_search_call", "tsc", "arguments"),
    "local_shell": CallKind(
        "local_shell_call", "lsh", "action", {"type": "exec", "command": [], "env": {}}
    ),
    "shell": CallKind(
        "shell_call",
        "sh",
        "action",
        {"commands": [], "timeout_ms": None, "max_output_length": None},
    ),
    "apply_patch": CallKind("apply_patch_call", "apc", "operation"),
}
_KINDS_OF_ITEMS = {one.item: (tool, one) for tool, one in KINDS.items()}
#: Descriptions and parameters of built-in tools, by type.
_BUILT_IN: Mapping[str, tuple[str, Json]] = {
    "tool_search": ("Find more tools for a task.", _SEARCH),
    "local_shell": ("Run a program on the user's computer.", _LOCAL_SHELL),
    "shell": ("Run shell commands on the user's computer.", _SHELL),
    "apply_patch": ("Create, update, or delete a file.", _APPLY_PATCH),
}


class _Declaration(Struct):
    """A tool as a client declares it."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    function: dict[str, Any] | None = None
    format: dict[str, Any] | None = None
    execution: str | None = None
    environment: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class ClientTool(Struct, frozen=True, kw_only=True):
    """A tool of the client: the name offered to the model, and the client's own name."""

    offered: str
    kind: str
    name: str
    namespace: str = ""
    description: str = ""
    parameters: Json | None = None

    @property
    def declaration(self) -> tuple[str, str, Json | None]:
        """Name, description, and schema of the arguments, as a function."""
        return self.offered, self.description, self.parameters

    @property
    def prefix(self) -> str:
        """Prefix of the identities of its calls."""
        return KINDS[self.kind].prefix

    def describe_call(
        self, identity: str, call: str, arguments: str, status: str
    ) -> dict[str, Any]:
        """Return the item of a call, with the identities of the item and of the call."""
        kind = KINDS[self.kind]
        item: dict[str, Any] = {"type": kind.item, "id": identity, "call_id": name_call(call)}
        if self.kind in ("function", "custom"):
            item["name"] = self.name
            if self.namespace:
                item["namespace"] = self.namespace
        if self.kind == "tool_search":
            item["execution"] = "client"
        item[kind.member] = self._write_arguments(arguments)
        return {**item, "status": status}

    def _write_arguments(self, arguments: str) -> Any:
        kind = KINDS[self.kind]
        if self.kind == "function":
            return arguments
        if kind.text:
            return read_text(arguments)
        return {**kind.defaults, **(_parse_object(arguments) or {})}


class OfferedTools(Struct, frozen=True):
    """Restriction of the tools that the model may call; `allowed` is None for all of them."""

    control: str | None = None
    allowed: frozenset[str] | None = None


class ClientTools:
    """The tools of a request that its client runs, by the names offered to the model."""

    def __init__(self, tools: Iterable[ClientTool] = ()) -> None:
        self.declared: Sequence[ClientTool] = [*tools]
        self._by_name = {one.offered: one for one in self.declared}
        #: Offered names by kind, namespace (or None), and name in a tool choice.
        self._choices: dict[tuple[str, str | None, str], str] = {}
        for one in self.declared:
            for namespace in (None, one.namespace):
                for name in (one.name, one.offered):
                    self._choices.setdefault((one.kind, namespace, name), one.offered)

    @classmethod
    def read(
        cls,
        declared: Sequence[Json] | None,
        found: Iterable[Sequence[Json]] = (),
        omissions: Omissions | None = None,
        most: int | None = None,
    ) -> ClientTools:
        """Read the tools that a request declares, and those in its items.

        Tools that are not supported are added to `omissions`. Raises `Rejected` if there are more
        than `most`.
        """
        omissions = Omissions() if omissions is None else omissions
        tools: list[ClientTool] = []
        names: set[str] = set()
        for param, listed in (("tools", declared or ()), *(("input", more) for more in found)):
            for tool in _read_all(listed, param, omissions):
                if param == "tools" or tool.offered not in names:
                    names.add(tool.offered)
                    tools.append(tool)
                if most is not None and len(tools) > most:
                    raise refuse_many(param, "tools", most, "request-tools")
        return cls(tools)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> ClientTool:
        return self._by_name[name]

    def read_choice(self, choice: str | Json | None, omissions: Omissions) -> OfferedTools:
        """Read which tools the model may call; add a tool that OpenAI would run to `omissions`.

        Raises `Rejected` for a tool of the client that is not declared.
        """
        if not isinstance(choice, Mapping):
            if choice not in (None, "none", "auto", "required"):
                raise _reject_choice("use none, auto, required, or a tool")
            return OfferedTools({"required": "any"}.get(choice or "", choice))
        if choice.get("type") == "allowed_tools":
            return self._read_allowed(choice)
        kind = _read_kind(choice)
        if kind not in KINDS or (kind in _BUILT_IN and kind not in self):
            omissions.add("tool_choice", kind)
            return OfferedTools()
        return OfferedTools(self._find(choice))

    def _read_allowed(self, choice: Json) -> OfferedTools:
        if isinstance(inner := choice.get("allowed_tools"), Mapping):
            # As in Chat Completions.
            choice = inner
        mode, listed = choice.get("mode", "auto"), choice.get("tools")
        if mode not in ("auto", "required") or not isinstance(listed, list):
            raise _reject_choice("allowed_tools needs a mode, auto or required, and tools")
        names = {name for one in listed if (name := self._find_allowed(one)) is not None}
        return OfferedTools("any" if mode == "required" else "auto", frozenset(names))

    def _find_allowed(self, one: Any) -> str | None:
        if not isinstance(one, Mapping):
            raise _reject_choice("a tool must be an object with a type")
        kind = _read_kind(one)
        if kind in KINDS and not (kind in _BUILT_IN and kind not in self):
            return self._find(one)
        # Such a tool is already left out.
        return None

    def _find(self, choice: Json) -> str:
        """Return the offered name of the tool that a choice names."""
        kind, namespace = _read_kind(choice), choice.get("namespace")
        function = choice.get("function")
        name = choice.get("name") or (function.get("name") if isinstance(function, dict) else None)
        if not isinstance(name, str | None) or not isinstance(namespace, str | None):
            raise _reject_choice("the name of a tool must be a text")
        known = (kind, namespace, kind if kind in _BUILT_IN else name or "")
        if (offered := self._choices.get(known)) is not None:
            return offered
        what = f"the tool {name!r}" if name else f"a tool of the type {kind!r}"
        raise _reject_choice(f"{what} is not available here")


def read_call(item: Json) -> tuple[str, str] | None:
    """Return the offered name and the arguments of a call in the history.

    Returns None if the item is not a call of a client's tool.
    """
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _KINDS_OF_ITEMS:
        return None
    tool, form = _KINDS_OF_ITEMS[kind]
    value = item.get(form.member)
    if tool == "function":
        arguments = value if isinstance(value, str) else json.dumps(value or {})
    elif tool == "custom":
        arguments = json.dumps({INPUT: value if isinstance(value, str) else ""})
    else:
        members = value if isinstance(value, Mapping) else {}
        arguments = json.dumps(
            {
                name: one
                for name, one in members.items()
                if one is not None and not (name in form.defaults and form.defaults[name] == one)
            }
        )
    name = item.get("name") if tool in ("function", "custom") else tool
    namespace = item.get("namespace")
    return (
        offer_name(str(name or ""), namespace if isinstance(namespace, str) else ""),
        arguments,
    )


def offer_name(name: str, namespace: str = "") -> str:
    """Return the name of a tool that the model is offered.

    >>> offer_name("close_agent", "multi_agent")
    'multi_agent/close_agent'
    """
    return f"{namespace}/{name}" if namespace else name


def _read_all(
    declared: Sequence[Json], param: str, omissions: Omissions, namespace: str = ""
) -> Iterator[ClientTool]:
    for place, raw in enumerate(declared):
        where = f"{param}[{place}]"
        one = _read_declaration(raw, where)
        if one.type == "namespace":
            if not one.name:
                raise Rejected("a namespace needs a name", param=where)
            tools = one.tools or ()
            yield from _read_all(tools, f"{where}.tools", omissions, one.name)
        elif (tool := _read_one(one, where, namespace)) is not None:
            yield tool
        else:
            omissions.add("tool", one.type or one.name or "without a type")


def _read_declaration(given: Json, where: str) -> _Declaration:
    try:
        return msgspec.convert(given, _Declaration)
    except ValidationError as error:
        raise Rejected(str(error), param=where) from error


def _read_one(one: _Declaration, where: str, namespace: str) -> ClientTool | None:
    kind = one.type or "function"
    if kind == "function" and one.function is not None:
        # As in Chat Completions.
        where = f"{where}.function"
        one = _read_declaration(one.function, where)
    if kind in ("function", "custom"):
        if not one.name:
            raise Rejected("a tool needs a name", param=f"{where}.name")
        description = one.description or ""
        custom = kind == "custom"
        return ClientTool(
            offered=offer_name(one.name, namespace),
            kind=kind,
            name=one.name,
            namespace=namespace,
            description=description + (describe_format(one.format, where) if custom else ""),
            parameters=SCHEMA if custom else one.parameters,
        )
    here = {
        "tool_search": one.execution == "client",
        "shell": (one.environment or {"type": "local"}).get("type") == "local",
    }
    if kind not in _BUILT_IN or not here.get(kind, True):
        return None
    description, parameters = _BUILT_IN[kind]
    return ClientTool(
        offered=kind,
        kind=kind,
        name=kind,
        description=one.description or description,
        parameters=one.parameters or parameters,
    )


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        parsed = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _read_kind(choice: Json) -> str:
    kind = choice.get("type") or "function"
    if not isinstance(kind, str):
        raise _reject_choice("the type of a tool must be a text")
    return kind


def _reject_choice(reason: str) -> Rejected:
    return Rejected(reason, param="tool_choice", code="unsupported_value")
