"""Context management in requests of Messages: clearing of tool uses and thinking, and compaction.

Source: the types of anthropic 2.14.0, `types/beta/beta_context_management_config_param.py` and
`beta_compaction_config_param.py`. Anthropic clears in each request; a stored conversation keeps
what was cleared, so the prompt cache is broken less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from vibe_llms.messages.contents import repair_text
from vibe_llms.server.context_orders import ClearedTools, ContextOrder, ToolClearing
from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.reading import get_member

#: Input tokens from which Anthropic clears tool uses, and compacts, by default.
_CLEARED_TOKENS, _COMPACTED_TOKENS = 100_000, 150_000
_KEPT_USES = 3
_Count = Annotated[int, Meta(ge=0)]
_Instructions = Annotated[str, Meta(max_length=10_000)]


class InputTokens(Struct, frozen=True, tag_field="type", tag="input_tokens"):
    """A number of input tokens."""

    value: _Count


class ToolUses(Struct, frozen=True, tag_field="type", tag="tool_uses"):
    """A number of tool uses."""

    value: _Count


class ThinkingTurns(Struct, frozen=True, tag_field="type", tag="thinking_turns"):
    """A number of replies with thinking."""

    value: Annotated[int, Meta(ge=1)]


class AllTurns(Struct, frozen=True, tag_field="type", tag="all"):
    """All replies with thinking."""


class ClearToolUses(Struct, tag_field="type", tag="clear_tool_uses_20250919"):
    """Clear old results of tools."""

    trigger: InputTokens | ToolUses = InputTokens(_CLEARED_TOKENS)
    keep: ToolUses = ToolUses(_KEPT_USES)
    clear_at_least: InputTokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ClearThinking(Struct, tag_field="type", tag="clear_thinking_20251015"):
    """Clear old thinking, which this server never sends to the model again."""

    keep: ThinkingTurns | AllTurns | Literal["all"] = ThinkingTurns(1)


class Compact(Struct, tag_field="type", tag="compact_20260112"):
    """Compact the conversation when it is long."""

    trigger: InputTokens | None = None
    instructions: _Instructions | None = None
    pause_after_compaction: bool = False


class UnknownEdit(Struct, tag_field="type", tag="unknown"):
    """An edit of a type that is not known, which is left out."""

    kind: str


ContextEdit: TypeAlias = ClearToolUses | ClearThinking | Compact | UnknownEdit
_KNOWN = frozenset(
    str(one.__struct_config__.tag) for one in (ClearToolUses, ClearThinking, Compact)
)


class ContextManagement(Struct):
    """Edits of the context before the reply."""

    edits: list[ContextEdit] | None = None


class CompactionConfig(Struct):
    """Compact the conversation now, and do not reply."""

    type: Literal["summarize"]
    instructions: _Instructions | None = None


class CompactionBlock(Struct, tag_field="type", tag="compaction"):
    """A compaction in place of all messages before it; without content, it replaces nothing."""

    content: str | None = None
    encrypted_content: str | None = None


def rewrite_context(management: Any) -> Any:
    """Return the JSON of a request's context management with known types of edits only."""
    edits = get_member(management, "edits")
    if not isinstance(edits, list):
        return management
    kinds = [get_member(one, "type") for one in edits]
    rewritten = [
        {"type": "unknown", "kind": kind} if isinstance(kind, str) and kind not in _KNOWN else one
        for kind, one in zip(kinds, edits, strict=True)
    ]
    return {**management, "edits": rewritten}


def read_context(
    management: ContextManagement | None,
    compaction: CompactionConfig | None,
    system: Sequence[str],
    omissions: Omissions,
) -> ContextOrder:
    """Return what a request asks to be done with its context; `system` has its system text.

    Unknown edits are added to the `omissions`.
    """
    edits = (management.edits if management is not None else None) or []
    for edit in edits:
        if isinstance(edit, UnknownEdit):
            omissions.add("context_management", edit.kind)
    if compaction is not None:
        if management is not None:
            raise Rejected(
                "compaction and context_management exclude each other", param="compaction"
            )
        return ContextOrder(
            compacts=True,
            forced=True,
            only=True,
            focus=_read_focus(compaction.instructions),
            repeated=system,
        )
    _check_edits(edits)
    clear = next((one for one in edits if isinstance(one, ClearToolUses)), None)
    compact = next((one for one in edits if isinstance(one, Compact)), None)
    clearing = None if clear is None else _read_clearing(clear)
    if compact is None:
        return ContextOrder(clearing=clearing)
    return ContextOrder(
        clearing=clearing,
        compacts=True,
        threshold=compact.trigger.value if compact.trigger else _COMPACTED_TOKENS,
        only=compact.pause_after_compaction,
        focus=_read_focus(compact.instructions),
        repeated=system,
    )


def describe_edits(
    management: ContextManagement, cleared: ClearedTools, thinking: Sequence[int]
) -> dict[str, Any]:
    """Return the edits that were applied; `thinking` has the tokens of each reply's thinking."""
    applied: list[dict[str, Any]] = []
    for edit in management.edits or ():
        match edit:
            case ClearThinking(keep=ThinkingTurns(value=kept)) if gone := thinking[:-kept]:
                applied.append(
                    {
                        "type": edit.__struct_config__.tag,
                        "cleared_thinking_turns": len(gone),
                        "cleared_input_tokens": sum(gone),
                    }
                )
            case ClearToolUses() if cleared.uses:
                applied.append(
                    {
                        "type": edit.__struct_config__.tag,
                        "cleared_tool_uses": cleared.uses,
                        "cleared_input_tokens": cleared.tokens,
                    }
                )
    return {"applied_edits": applied}


def _check_edits(edits: Sequence[ContextEdit]) -> None:
    kinds = [type(one) for one in edits]
    for place, kind in enumerate(kinds):
        param = f"context_management.edits[{place}]"
        before = [one for one in kinds[:place] if one is not UnknownEdit]
        if kind in before:
            raise Rejected("an edit may be given once", param=param)
        if kind is ClearThinking and before:
            raise Rejected("clear_thinking_20251015 must be the first edit", param=param)


def _read_clearing(edit: ClearToolUses) -> ToolClearing:
    inputs: Sequence[str] | None = ()
    if edit.clear_tool_inputs is True:
        inputs = None
    elif edit.clear_tool_inputs:
        inputs = edit.clear_tool_inputs
    return ToolClearing(
        tokens=edit.trigger.value if isinstance(edit.trigger, InputTokens) else None,
        uses=edit.trigger.value if isinstance(edit.trigger, ToolUses) else None,
        keep=edit.keep.value,
        least=edit.clear_at_least.value if edit.clear_at_least is not None else 0,
        excluded=edit.exclude_tools or (),
        inputs=inputs,
    )


def _read_focus(instructions: str | None) -> str:
    return repair_text((instructions or "").strip())
