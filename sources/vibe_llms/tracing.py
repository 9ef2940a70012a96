"""The seam for telemetry: what a session says of its work while it works.

The classes here record nothing. `vibe_llms.telemetry` derives from them for OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Literal, Self, TypeAlias

from msgspec import Struct

from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler
from vibe_llms.messages.canisters import Canister, InvocationCanister

#: Work that is neither a turn, nor a request, nor a call of a tool.
Work: TypeAlias = Literal["search_memory", "upsert_memory", "read_document", "retrieval"]


class Requested(Struct, frozen=True, kw_only=True):
    """What a model is asked, and in which conversation, perhaps one of an agent.

    `controls` are those of the call, `default_controls` complete them.
    """

    conversation: str
    provider: str
    model: str
    messages: Sequence[Canister]
    agent: str = ""
    controls: Controls = Controls()
    default_controls: Controls = Controls()
    streaming: bool = False


class Span:
    """One operation, from `__enter__` to `__exit__`; an error that leaves the block is its own.

    It lies within the operation that was running when the tracer made it.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def watch(self, handler: EventHandler) -> EventHandler:
        """The handler to give a request, so that the span learns when and what the model says."""
        return handler

    def record(self, canisters: Sequence[Canister]) -> None:
        """Take what the operation made: the messages of a turn, or the result of a call."""

    def count(self, number: int) -> None:
        """Take how many entries of memory were found."""

    def answer(self, status: int, conversation: str = "") -> None:
        """Take the status of the response of a server, and the conversation that it is about."""


_SPAN = Span()


class Tracer:
    """Makes the spans of a session; derive from it to record them. Every method is optional."""

    def serve(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Span:
        """A request that a server answers; its headers may name the span of the client.

        `path` is one of few: it holds no identity.
        """
        return _SPAN

    def turn(self, requested: Requested) -> Span:
        """A turn, with all its requests and calls."""
        return _SPAN

    def request(self, requested: Requested) -> Span:
        """A request to a model, with all attempts at it."""
        return _SPAN

    def attempt(self, number: int) -> Span:
        """One attempt at a request, counted from 1."""
        return _SPAN

    def call(self, invocation: InvocationCanister) -> Span:
        """A call of a tool."""
        return _SPAN

    def work(self, work: Work, *, conversation: str = "", text: str = "") -> Span:
        """Work on memory or documents; `text` is what is searched for, or a document's name."""
        return _SPAN

    def write_parent(self) -> Mapping[str, str]:
        """The span that this task is in, for `continuing` in any process; empty without one."""
        return {}

    def continuing(self, parent: Mapping[str, str]) -> AbstractContextManager[None]:
        """Within the block, spans that are in no other one lie within a span of another process."""
        return nullcontext()

    async def close(self) -> None:
        """Send what is recorded; safe to call twice."""
