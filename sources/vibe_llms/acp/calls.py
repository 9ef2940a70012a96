"""Tool calls as updates, the same for a running turn and for a stored conversation."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from vibe_llms.acp.blocks import Blobs, produce_blocks
from vibe_llms.acp.updates import SentText, ToolContent, ToolKind, ToolStatus
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister

#: Kinds by a word in the name of a tool.
_KINDS: tuple[tuple[str, ToolKind], ...] = (
    ("search", "search"),
    ("fetch", "fetch"),
    ("run", "execute"),
    ("read", "read"),
)
NO_RESULT = "The call has no result: the turn ended first."


def find_kind(name: str, tools: Mapping[str, Invoker]) -> ToolKind:
    """Return the kind of a tool: by its name, or else whether it only reads."""
    short = name.rpartition("/")[2].lower()
    for word, kind in _KINDS:
        if short.startswith(word):
            return kind
    tool = find_invoker(tools, name)
    reads = tool is not None and tool.annotations.get("readOnlyHint") is True
    return "read" if reads else "other"


def raw_input(call: InvocationCanister) -> Raw:
    """Return the arguments of a call in full: the object, or else the text as it was received."""
    return Raw(msgspec.json.encode(call.arguments if call.parsed is None else call.parsed))


def raw_output(result: ResultCanister, text: str) -> Mapping[str, object]:
    """Return the text of a result as the model gets it."""
    return {"text": text, "failed": result.failed}


def status_of(result: ResultCanister) -> ToolStatus:
    """Return how a call ended."""
    return "failed" if result.failed else "completed"


def produce_content(result: ResultCanister, blobs: Blobs) -> list[ToolContent]:
    """Return a result as people see it."""
    if result.display:
        return [ToolContent(SentText(result.display))]
    return [ToolContent(block) for block in produce_blocks(result.contents, blobs)]


def text_of_blocks(content: list[ToolContent]) -> str:
    """Return the text of a result."""
    return "".join(one.content.text for one in content if isinstance(one.content, SentText))
