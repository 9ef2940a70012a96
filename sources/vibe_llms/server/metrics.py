"""`Metrics`: counters of the server in the Prometheus format."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from types import TracebackType
from typing import Self

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from vibe_llms.base.exceptions import BudgetExceeded
from vibe_llms.messages.canisters import InvocationCanister, ReplyCanister, usage_of
from vibe_llms.messages.events import (
    Event,
    EventHandler,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
)
from vibe_llms.messages.tracing import Requested, Span, Tracer, Work
from vibe_llms.runs.interfaces import RunStatus

MEDIA_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counters of requests, turns, runs, tokens, and errors, without users or content."""

    def __init__(self, count_turns: Callable[[], int]) -> None:
        """Create the counters; `count_turns` returns the number of running turns."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"vibe_llms_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str, label: str) -> Histogram:
            return Histogram(
                f"vibe_llms_{name}", words, (label,), buckets=_BUCKET_SECONDS, registry=registry
            )

        # Cached, because looking up a labeled counter takes longer than counting.
        requests = counter("requests", "Requests, by path and status.", "path", "status")
        self._find_requests = cache(requests.labels)
        seconds = histogram(
            "request_seconds", "Seconds from a request to the end of its response.", "path"
        )
        self._find_seconds = cache(seconds.labels)
        model_seconds = histogram(
            "model_request_seconds", "Seconds of a request to a model.", "model"
        )
        self.find_model_seconds = cache(model_seconds.labels)
        self.model_errors = counter(
            "model_errors", "Requests to models that failed, by error.", "model", "error"
        )
        tokens = counter("tokens", "Tokens read and written by models.", "model", "kind")
        self.find_tokens = cache(tokens.labels)
        self.refusals = counter("budget_refusals", "Requests refused by a budget or a limit.")
        running = Gauge("vibe_llms_running_turns", "Turns in progress.", registry=registry)
        running.set_function(count_turns)
        self._runs = Gauge(
            "vibe_llms_runs", "Unfinished runs, by status.", ("status",), registry=registry
        )
        self._ended_runs = counter("ended_runs", "Runs that ended here, by status.", "status")
        self._ended: Mapping[RunStatus, int] = {}

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._find_requests(path, status).inc()
        self._find_seconds(path).observe(seconds)

    def render(self, runs: Mapping[RunStatus, int], ended: Mapping[RunStatus, int]) -> bytes:
        """Return all metrics in the text format of Prometheus.

        `runs` counts unfinished runs, and `ended` those that this process has ended.
        """
        for status, number in runs.items():
            self._runs.labels(status).set(number)
        for status in filter(lambda one: one.ended, RunStatus):
            added = ended.get(status, 0) - self._ended.get(status, 0)
            self._ended_runs.labels(status).inc(added)
        self._ended = dict(ended)
        return generate_latest(self._registry)


class CountingTracer(Tracer):
    """A tracer that counts requests to models and delegates to another tracer."""

    def __init__(self, metrics: Metrics, tracer: Tracer) -> None:
        self._metrics = metrics
        self._tracer = tracer

    def serve(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Span:
        """Delegate to the other tracer; see `Tracer.serve`."""
        return self._tracer.serve(method, path, headers)

    def turn(self, requested: Requested) -> Span:
        """Delegate to the other tracer; see `Tracer.turn`."""
        return self._tracer.turn(requested)

    def request(self, requested: Requested) -> Span:
        """Start a counted span; see `Tracer.request`."""
        model = f"{requested.provider}/{requested.model}"
        return _CountedRequest(self._metrics, model, self._tracer.request(requested))

    def attempt(self, number: int) -> Span:
        """Delegate to the other tracer; see `Tracer.attempt`."""
        return self._tracer.attempt(number)

    def call(self, invocation: InvocationCanister) -> Span:
        """Delegate to the other tracer; see `Tracer.call`."""
        return self._tracer.call(invocation)

    def work(self, work: Work, *, conversation: str = "", text: str = "") -> Span:
        """Delegate to the other tracer; see `Tracer.work`."""
        return self._tracer.work(work, conversation=conversation, text=text)

    def write_parent(self) -> Mapping[str, str]:
        """Delegate to the other tracer; see `Tracer.write_parent`."""
        return self._tracer.write_parent()

    def continuing(self, parent: Mapping[str, str]) -> AbstractContextManager[None]:
        """Delegate to the other tracer; see `Tracer.continuing`."""
        return self._tracer.continuing(parent)

    async def close(self) -> None:
        """Close the other tracer; see `Tracer.close`."""
        await self._tracer.close()


class _CountedRequest(Span):
    """A request to a model, with the other tracer's span."""

    def __init__(self, metrics: Metrics, model: str, span: Span) -> None:
        self._metrics = metrics
        self._model = model
        self._span = span
        self._replies: list[ReplyCanister] = []

    def __enter__(self) -> Self:
        self._begun = time.perf_counter()
        self._span.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._span.__exit__(kind, error, trace)
        metrics, model = self._metrics, self._model
        if isinstance(error, BudgetExceeded):
            metrics.refusals.inc()
            return
        metrics.find_model_seconds(model).observe(time.perf_counter() - self._begun)
        if isinstance(error, Exception):
            metrics.model_errors.labels(model, type(error).__name__).inc()
        usage = usage_of(self._replies)
        metrics.find_tokens(model, "input").inc(usage.input_tokens)
        metrics.find_tokens(model, "output").inc(usage.output_tokens + usage.reasoning_tokens)

    def watch(self, handler: EventHandler) -> EventHandler:
        """Collect the replies of the request; see `Span.watch`."""
        handler = self._span.watch(handler)

        def read(event: Event) -> None:
            match event:
                case MessageProgressEvent():
                    pass
                case MessageCompletedEvent(canister=canister):
                    self._replies.append(canister)
                case MessageFailedEvent(partial=partial):
                    self._replies.append(partial)
            handler(event)

        return read
