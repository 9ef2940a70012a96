"""Deltas: small steps in which a reply grows, translated from a provider's stream.

A provider's `streams.py` yields these in the order of the reply, one block after another; the
accumulator turns them into events and canisters. An unstreamed reply takes the same path, with each
whole block in one step.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.messages.contents import Citation, Content


class ReplyOpened(Struct, frozen=True, gc=False):
    """Beginning of a reply; `response` is the provider's id of it."""

    response: str = ""


class ContentOpened(Struct, frozen=True, gc=False):
    """Beginning of a block of text or reasoning.

    A `TextDelta` or a `ReasoningDelta` also begins one if none of its kind is open.
    """

    kind: Literal["text", "reasoning"]


class TextDelta(Struct, frozen=True, gc=False):
    """More of the open text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """More of the open reasoning."""

    text: str


class CitationDelta(Struct, frozen=True, gc=False):
    """Source of the open text."""

    citation: Citation


class ContentClosed(Struct, frozen=True, gc=False):
    """End of the open block; `native` is sent back to its provider with the block."""

    native: msgspec.Raw | None = None


class ContentReceived(Struct, frozen=True, gc=False):
    """Complete content: an image, or a block that only its provider understands."""

    content: Content
    native: msgspec.Raw | None = None


class InvocationOpened(Struct, frozen=True, gc=False):
    """Beginning of a tool call; `name` is the canonical name, `call` the provider's id."""

    name: str
    call: str = ""


class ArgumentsDelta(Struct, frozen=True, gc=False):
    """More of the arguments of the open call, as text."""

    text: str


class InvocationClosed(Struct, frozen=True, gc=False):
    """End of the open call; `native` is sent back to its provider with the call.

    It comes before anything else begins. A call without it was cut off, and is not run.
    """

    native: msgspec.Raw | None = None


class UsageDelta(Struct, frozen=True, gc=False):
    """Usage so far; a later one replaces it."""

    usage: Usage


class RemarkDelta(Struct, frozen=True, gc=False):
    """Remark of the server on the request or the reply, which becomes a notice."""

    text: str


class ReplyClosed(Struct, frozen=True, gc=False):
    """Provider's mark that the reply is complete.

    `reason` is a `StopReason`, or the server's word if none fits. `native_reason` is always the
    server's word, and `detail` explains it.
    """

    reason: str
    native_reason: str = ""
    detail: str = ""

    @property
    def cut(self) -> bool:
        """True if the model was stopped; a last call may then look complete without being so."""
        return self.reason in (StopReason.LENGTH, StopReason.REFUSED)


Delta: TypeAlias = (
    ReplyOpened
    | ContentOpened
    | TextDelta
    | ReasoningDelta
    | CitationDelta
    | ContentClosed
    | ContentReceived
    | InvocationOpened
    | ArgumentsDelta
    | InvocationClosed
    | UsageDelta
    | RemarkDelta
    | ReplyClosed
)
