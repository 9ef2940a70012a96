"""The interface for telemetry: reports of a session on its work.

The classes here record nothing. `vibe_llms.telemetry` derives from them for OpenTelemetry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

from msgspec import Struct

from vibe_llms.base.credentials import get_logger
from vibe_llms.messages.caching import RequestCaching
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, EventHandler, MessageProgressEvent, ignore_events

_LOGGER = get_logger("vibe_llms.messages.tracing")
T = TypeVar("T")

#: Kinds of work other than turns, requests, and calls of tools.
Work: TypeAlias = Literal["search_memory", "upsert_memory", "read_document", "retrieval"]


class Requested(Struct, frozen=True, kw_only=True):
    """A request to a model, and its conversation, which may be an agent's.

    `controls` are those of the call; `default_controls` complete them.
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

    Its parent is the operation that was running when the tracer created it.
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
        """Return the handler for a request, which tells the span when and what the model replies.

        It must pass on every event. A session sends the span no `MessageProgressEvent`.
        """
        return handler

    def record(self, canisters: Sequence[Canister]) -> None:
        """Record the results of the operation: the messages of a turn, or the result of a call."""

    def count(self, number: int) -> None:
        """Record the number of memory entries found."""

    def report_caching(self, measured: RequestCaching) -> None:
        """Record the part of a request that the provider's prompt cache held."""

    def answer(self, status: int, conversation: str = "") -> None:
        """Record the status of a server's response, and the conversation that it concerns."""


_SPAN = Span()


class Tracer:
    """A factory of a session's spans; derive from it to record them. Every method is optional."""

    def serve(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Span:
        """Start the span of a request to a server; its headers may name the client's span.

        `path` is a route template without identities, so its cardinality is low.
        """
        return _SPAN

    def turn(self, requested: Requested) -> Span:
        """Start the span of a turn, with all its requests and calls."""
        return _SPAN

    def request(self, requested: Requested) -> Span:
        """Start the span of a request to a model, with all its attempts."""
        return _SPAN

    def attempt(self, number: int) -> Span:
        """Start the span of one attempt at a request, counted from 1."""
        return _SPAN

    def call(self, invocation: InvocationCanister) -> Span:
        """Start the span of a tool call."""
        return _SPAN

    def work(self, work: Work, *, conversation: str = "", text: str = "") -> Span:
        """Start the span of work on memory or documents; `text` is a query or a document's name."""
        return _SPAN

    def write_parent(self) -> Mapping[str, str]:
        """Return the current span for `continuing` in any process; empty without one."""
        return {}

    def continuing(self, parent: Mapping[str, str]) -> AbstractContextManager[None]:
        """In the block, make spans without a parent children of a span of another process."""
        return nullcontext()

    async def close(self) -> None:
        """Send all recorded data; safe to call twice."""


def guard(tracer: Tracer) -> Tracer:
    """Return a tracer whose errors are logged and never fail a turn or request."""
    return tracer if type(tracer) in (Tracer, _GuardedTracer) else _GuardedTracer(tracer)


_NONE = object()


class _Reports:
    """A caller of telemetry that logs each kind of its errors once."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, type[Exception]]] = set()

    def call(self, otherwise: T, method: Callable[..., T], *values: Any, **named: Any) -> T:
        """Return the result of a method, or `otherwise` if it fails."""
        try:
            return method(*values, **named)
        except Exception as error:  # noqa: BLE001  (telemetry: the turn goes on)
            self.report(method.__qualname__, error)
            return otherwise

    def report(self, where: str, error: Exception) -> None:
        """Log an error, unless one of the same kind was logged."""
        if (where, type(error)) not in self._seen:
            self._seen.add((where, type(error)))
            _LOGGER.warning("telemetry failed in %s; the turn continues", where, exc_info=error)


class _GuardedBlock(AbstractContextManager[Any]):
    """A block of telemetry whose errors are reported; it is exited only if it was entered."""

    def __init__(self, block: AbstractContextManager[Any], reports: _Reports) -> None:
        self._block = block
        self._reports = reports

    def __enter__(self) -> Self:
        self._entered = self._reports.call(_NONE, self._block.__enter__) is not _NONE
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._entered:
            self._reports.call(None, self._block.__exit__, kind, error, trace)


class _GuardedSpan(_GuardedBlock, Span):
    """A span whose errors are reported."""

    def __init__(self, span: Span, reports: _Reports) -> None:
        super().__init__(span, reports)
        self._span = span

    def watch(self, handler: EventHandler) -> EventHandler:
        """See `Span.watch`."""
        reports = self._reports
        plain: EventHandler = ignore_events
        watch = reports.call(plain, self._span.watch, plain)
        if watch is plain:
            return handler

        def pass_on(event: Event) -> None:
            if type(event) is not MessageProgressEvent:
                reports.call(None, watch, event)
            handler(event)

        return pass_on

    def record(self, canisters: Sequence[Canister]) -> None:
        """See `Span.record`."""
        self._reports.call(None, self._span.record, canisters)

    def count(self, number: int) -> None:
        """See `Span.count`."""
        self._reports.call(None, self._span.count, number)

    def report_caching(self, measured: RequestCaching) -> None:
        """See `Span.report_caching`."""
        self._reports.call(None, self._span.report_caching, measured)

    def answer(self, status: int, conversation: str = "") -> None:
        """See `Span.answer`."""
        self._reports.call(None, self._span.answer, status, conversation)


class _GuardedTracer(Tracer):
    """A tracer whose errors are reported."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._reports = _Reports()

    def serve(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Span:
        """See `Tracer.serve`."""
        return self._produce(self._tracer.serve, method, path, headers)

    def turn(self, requested: Requested) -> Span:
        """See `Tracer.turn`."""
        return self._produce(self._tracer.turn, requested)

    def request(self, requested: Requested) -> Span:
        """See `Tracer.request`."""
        return self._produce(self._tracer.request, requested)

    def attempt(self, number: int) -> Span:
        """See `Tracer.attempt`."""
        return self._produce(self._tracer.attempt, number)

    def call(self, invocation: InvocationCanister) -> Span:
        """See `Tracer.call`."""
        return self._produce(self._tracer.call, invocation)

    def work(self, work: Work, *, conversation: str = "", text: str = "") -> Span:
        """See `Tracer.work`."""
        return self._produce(self._tracer.work, work, conversation=conversation, text=text)

    def write_parent(self) -> Mapping[str, str]:
        """See `Tracer.write_parent`."""
        return self._reports.call({}, self._tracer.write_parent)

    def continuing(self, parent: Mapping[str, str]) -> AbstractContextManager[None]:
        """See `Tracer.continuing`."""
        none: AbstractContextManager[None] = nullcontext()
        return _GuardedBlock(
            self._reports.call(none, self._tracer.continuing, parent), self._reports
        )

    async def close(self) -> None:
        """See `Tracer.close`."""
        (failed,) = await asyncio.gather(self._tracer.close(), return_exceptions=True)
        if isinstance(failed, Exception):
            self._reports.report("close", failed)

    def _produce(self, method: Callable[..., Span], *values: Any, **named: Any) -> Span:
        span = self._reports.call(_SPAN, method, *values, **named)
        return span if span is _SPAN else _GuardedSpan(span, self._reports)
