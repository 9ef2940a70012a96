"""Rewriting of Messages requests with blocks that `messages_requests` does not know.

Anthropic runs tools of its own and adds kinds of blocks with each version. In a history they become
text for any other model. Unknown blocks of new input are left unchanged, to be rejected later.

Source: the parameter types of anthropic 2.14.0, `types/beta/beta_content_block_param.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from vibe_llms.server.descriptions import describe_json
from vibe_llms.server.messages_context import rewrite_context
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.reading import find_last_reply, get_member

_KNOWN = frozenset(
    {
        *("compaction", "document", "image", "redacted_thinking", "search_result", "text"),
        *("thinking", "tool_result", "tool_use"),
    }
)
#: Blocks without content for the model: marks of the vendor, and changes of the tools, which are
#: applied to the tool list.
_DROPPED = frozenset(
    {"connector_text", "fallback", "mcp_tool_listing", "tool_addition", "tool_removal"}
)
#: Known blocks that become text in the result of a tool.
_NOT_IN_RESULTS = frozenset(
    {"compaction", "redacted_thinking", "thinking", "tool_result", "tool_use"}
)
_MEDIA = frozenset({"document", "image"})
_ROLES = {"developer": "system"}


def rewrite_request(given: Any, omissions: Omissions) -> Any:
    """Return the JSON of a request with known kinds of blocks and edits only, if possible.

    Unknown blocks of the history are added to the `omissions`.
    """
    if not isinstance(given, dict) or not isinstance(messages := given.get("messages"), list):
        return given
    last = find_last_reply(get_member(one, "role") for one in messages)
    rewriting = _Rewriting(omissions)
    rewritten = [rewriting.rewrite(one, new=place > last) for place, one in enumerate(messages)]
    changed = {**given, "messages": rewritten}
    if (management := given.get("context_management")) is not None:
        changed["context_management"] = rewrite_context(management)
    system = given.get("system")
    if isinstance(system, list):
        changed["system"] = [block for one in system for block in rewriting.rewrite_block(one)]
    if changes := [*_survey_changes(messages)]:
        changed["tools"] = _change_tools(given.get("tools") or [], changes)
    return changed


class _Rewriting:
    """Rewriting of the messages of one request."""

    def __init__(self, omissions: Omissions) -> None:
        self._omissions = omissions

    def rewrite(self, message: Any, *, new: bool) -> Any:
        """Return a message with known kinds of blocks."""
        if not isinstance(message, dict):
            return message
        content, role = message.get("content"), message.get("role")
        if isinstance(content, dict):
            content = [content]
        if isinstance(content, list):
            content = [block for one in content for block in self.rewrite_block(one, new=new)]
        return {**message, "role": _ROLES.get(str(role), role), "content": content or ""}

    def rewrite_block(self, block: Any, *, new: bool = False) -> Iterator[Any]:
        """Yield the replacement of a block: itself, text, or nothing."""
        if isinstance(block, str):
            yield _text(block)
            return
        kind = get_member(block, "type")
        if not isinstance(kind, str):
            yield block
            return
        match kind:
            case "text":
                yield {**block, "text": block.get("text") or ""}
            case "tool_use":
                yield {**block, "input": _read_input(block.get("input"))}
            case "tool_result":
                yield {**block, "content": self._rewrite_result(block.get("content"))}
            case _ if kind in _KNOWN:
                yield block
            case _ if kind in _DROPPED:
                pass
            case _:
                described = _describe(kind, block)
                if described is None and new:
                    yield block
                elif described is None:
                    self._omissions.add("content", kind)
                    if text := describe_json(block):
                        described = f"[{kind}]\n{text}"
                if described:
                    yield _text(described)

    def _rewrite_result(self, content: Any) -> Any:
        """Return the content of a tool result with known blocks only."""
        if content is None or isinstance(content, str):
            return content
        blocks = content if isinstance(content, list) else [content]
        kept: list[Any] = []
        for one in blocks:
            kind = get_member(one, "type")
            if isinstance(kind, str) and kind in _NOT_IN_RESULTS:
                if text := describe_json(one):
                    kept.append(_text(text))
            elif isinstance(one, dict) and not isinstance(kind, str):
                kept.append(_text(msgspec.json.encode(one).decode()))
            else:
                kept += self.rewrite_block(one)
        return kept


def _describe(kind: str, block: Mapping[str, Any]) -> str | None:
    """Return a block of a known kind as text, or None for an unknown one."""
    match kind:
        case "server_tool_use" | "mcp_tool_use":
            arguments = msgspec.json.encode(block.get("input") or {}).decode()
            return f"[The tool {block.get('name')} was called with {arguments}]"
        case "container_upload":
            return f"[a file for the container: {block.get('file_id')}]"
        case "tool_reference":
            return f"The tool {block.get('tool_name')} is available."
        case "browser_state":
            return f"[The state of the browser]\n{describe_json(block)}"
        case _ if kind.endswith("tool_result"):
            name = kind.removesuffix("_tool_result").replace("_", " ")
            return f"[The result of {name}]\n{describe_json(block.get('content'))}"
    return None


def _read_input(given: Any) -> Any:
    """Return the arguments of a call as an object; some clients send them as JSON text."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given or "{}")
        except (ValueError, RecursionError):
            return {"input": given}
    return given if isinstance(given, dict) else {} if given is None else {"input": given}


def _text(text: str) -> Mapping[str, str]:
    return {"type": "text", "text": text}


def _survey_changes(messages: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the blocks that add or remove tools."""
    for message in messages:
        content = get_member(message, "content")
        for block in content if isinstance(content, list) else ():
            if get_member(block, "type") in ("tool_addition", "tool_removal"):
                yield block


def _change_tools(tools: Any, changes: Iterable[Mapping[str, Any]]) -> Any:
    """Return the tools of a request after the changes in its messages."""
    if not isinstance(tools, list):
        return tools
    offered: dict[object, Any] = {_name_tool(one) or place: one for place, one in enumerate(tools)}
    removed: dict[str, Any] = {}
    for block in changes:
        tool = block.get("tool")
        definition = get_member(tool, "definition")
        name = _name_tool(tool) or _name_tool(definition)
        if block["type"] == "tool_removal":
            removed[name] = offered.pop(name, None)
        elif found := definition or removed.pop(name, None):
            offered[name] = found
    return [*offered.values()]


def _name_tool(tool: Any) -> str:
    """Return the name of a tool, also in OpenAI's form, or an empty string."""
    return str(get_member(tool, "name") or get_member(get_member(tool, "function"), "name") or "")
