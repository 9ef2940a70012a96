"""What a provider's stream is translated to: small steps in which a reply grows.

A provider's `streams.py` yields these in the order of the reply, one block after the other; the
accumulator turns them into events and canisters. An unstreamed reply takes the same path, with the
whole of each block in one step.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.messages.contents import Citation, Content


class ReplyOpened(Struct, frozen=True, gc=False):
    """The provider began to answer; `response` is its own identity for the reply."""

    response: str = ""


class ContentOpened(Struct, frozen=True, gc=False):
    """A block of text or reasoning begins.

    A `TextDelta` or a `ReasoningDelta` begins one by itself where none of its kind is open.
    """

    kind: Literal["text", "reasoning"]


class TextDelta(Struct, frozen=True, gc=False):
    """More of the open text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """More of the open reasoning."""

    text: str


class CitationDelta(Struct, frozen=True, gc=False):
    """The open text has a source."""

    citation: Citation


class ContentClosed(Struct, frozen=True, gc=False):
    """The open block is whole; `native` is what its provider wants back with it."""

    native: msgspec.Raw | None = None


class ContentReceived(Struct, frozen=True, gc=False):
    """A content arrived whole: a picture, or a block that only its provider understands."""

    content: Content
    native: msgspec.Raw | None = None


class InvocationOpened(Struct, frozen=True, gc=False):
    """A tool call begins; `name` is the tool's canonical name, `call` the provider's identity."""

    name: str
    call: str = ""


class ArgumentsDelta(Struct, frozen=True, gc=False):
    """More of the arguments of the open call, as text."""

    text: str


class InvocationClosed(Struct, frozen=True, gc=False):
    """The open call is whole; `native` is what its provider wants back with it.

    It comes before anything else begins. A call without it was cut, and does not run.
    """

    native: msgspec.Raw | None = None


class UsageDelta(Struct, frozen=True, gc=False):
    """The usage so far; a later one replaces it."""

    usage: Usage


class ReplyClosed(Struct, frozen=True, gc=False):
    """The provider's mark that the reply is complete.

    `reason` is a `StopReason`, or the server's word where none fits. `native_reason` is always the
    server's word, and `detail` explains it.
    """

    reason: str
    native_reason: str = ""
    detail: str = ""

    @property
    def cut(self) -> bool:
        """Whether the model was stopped: a call that comes last may look whole and is not."""
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
    | ReplyClosed
)
