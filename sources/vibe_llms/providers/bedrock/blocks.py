"""Blocks of a reply of Bedrock, while it arrives."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.bedrock.events import MEMBERS, ConverseBlockStep, ToolStart
from vibe_llms.providers.pieces import compact, encode_json
from vibe_llms.providers.repairs import is_object, says_something

#: Kinds of blocks that only Bedrock understands: calls that it carries out, and their results.
_OPAQUE = ("server", "result")


class ReplyBlock:
    """A block of the reply.

    `whole` means that its last event has come, `ended` that no such event will come. `waiting`
    holds the steps not passed on yet; `repaired` means that its text differs from what was sent.
    """

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.waiting: list[ConverseBlockStep] = []
        self.opened = self.ended = self.whole = self.repaired = False
        self.name = self.call = self.signature = self.format = ""
        self.arguments: list[str] = []
        self.citations: list[Raw] = []
        self.results: list[Raw] = []
        self.redacted = b""
        self.image = bytearray()
        self.head = Raw(b"{}")

    def takes(self, kind: str) -> bool:
        """Return True if a step of this kind belongs to the block."""
        if not self.kind:
            # Its beginning did not say what it is.
            self.kind = kind
        return self.kind == kind or (self.kind == "server" and kind == "arguments")

    def take_tool(self, tool: ToolStart) -> None:
        """Take over the beginning of a call."""
        self.name, self.call = repair_text(tool.name or ""), repair_text(tool.tool_use_id or "")
        self.head = Raw(encode_json({"type": tool.type} if tool.type else {}))

    def add_result(self, part: Raw) -> None:
        """Add a part of a result; text continues the text before it."""
        said, before = _read_text(part), _read_text(self.results[-1]) if self.results else None
        if said is not None and before is not None:
            self.results[-1] = Raw(encode_json({"text": before + said}))
        else:
            self.results.append(part)

    def sign(self) -> Raw | None:
        """Return the signature to send back, or None if there is none or the text was repaired."""
        if not self.signature or self.repaired:
            return None
        return Raw(encode_json({"signature": self.signature}))

    @property
    def label(self) -> str:
        """Name of the block in Converse."""
        if self.kind in _OPAQUE:
            return "toolUse" if self.kind == "server" else "toolResult"
        return next(iter(MEMBERS.decode(self.head)), "block")

    def keep_whole(self) -> Raw:
        """Return the whole block as it is sent back."""
        if self.kind not in _OPAQUE:
            return self.head
        members = MEMBERS.decode(self.head)
        if self.kind == "result":
            return Raw(encode_json({"toolResult": {**members, "content": self.results}}))
        text = "".join(self.arguments)
        given = Raw(compact(text.encode())) if is_object(text) else Raw(b"{}")
        call = {"toolUseId": self.call, "name": self.name, "input": given}
        return Raw(encode_json({"toolUse": {**call, **members}}))


def _read_text(part: Raw) -> str | None:
    """Return the text of a part of a result, or None if it is something else."""
    members = MEMBERS.decode(part) if bytes(part)[:1] == b"{" else {}
    text = msgspec.json.decode(members["text"]) if members.keys() == {"text"} else None
    return text if isinstance(text, str) else None


def kind_of(step: ConverseBlockStep) -> str:
    """Return the kind of block that a step belongs to."""
    if step.text is not None or says_something(step.citation):
        return "text"
    if step.reasoning_content is not None:
        return "reasoning"
    if step.tool_use is not None:
        return "arguments"
    if step.tool_result is not None:
        return "result"
    return "image" if says_something(step.image) else ""
