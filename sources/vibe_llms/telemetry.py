"""Spans and metrics of OpenTelemetry, by its conventions for generative AI.

OpenTelemetry is imported only when a tracer is created.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.credentials import guard_loggers
from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.base.meta import __version__
from vibe_llms.base.network.offline import permit_request
from vibe_llms.base.redaction import redact
from vibe_llms.messages.caching import RequestCaching
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Usage,
    role_of,
    usage_of,
)
from vibe_llms.messages.contents import Content, ReasoningContent, TextualContent
from vibe_llms.messages.events import (
    Event,
    EventHandler,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageStartedEvent,
)
from vibe_llms.messages.tracing import Requested, Span, Tracer, Work

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import TracerProvider

SCOPE = "vibe_llms"
CONVERSATION = "gen_ai.conversation.id"
#: Context key of the span of the request that the server is answering.
_SERVED = "vibe_llms.served"
#: Timeout of an export in seconds; commands would wait for OpenTelemetry's default of 10 s at exit.
_EXPORT_SECONDS = 2.0
#: Bucket boundaries of the conventions, in seconds and tokens.
_SECONDS = [0.01 * 2**step for step in range(14)]
_TURN_SECONDS = [0.1 * 2**step for step in range(14)]
_TOKENS = [4.0**step for step in range(14)]
#: Words of the conventions for stop reasons; other reasons are the same in both.
_REASONS: Mapping[str, str] = {
    StopReason.FINISHED: "stop",
    StopReason.INVOCATIONS: "tool_call",
    StopReason.REFUSED: "content_filter",
    StopReason.FAILED: "error",
}
#: Names of companies that differ from the names of our rows.
_PROVIDERS = {"openai-chat": "openai"}
_CONTROLS = {
    "max_tokens": "output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "stop_sequences": "stop",
}
_ROLES = {"result": "tool", "invocation": "assistant", "document": "user", "supervisor": "system"}
_DIMENSIONS = (
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
    *("gen_ai.agent.name", "gen_ai.tool.name"),
)
#: Attribute for the text of each kind of work.
_TEXTS: Mapping[Work, str] = {
    "search_memory": "gen_ai.memory.query.text",
    "retrieval": "gen_ai.retrieval.query.text",
    "read_document": "vibe_llms.document.name",
}


class OpenTelemetryTracer(Tracer):
    """A tracer that reports to the given providers, or to the program's global ones.

    With `content`, messages, tool arguments, and tool results are recorded too.
    """

    def __init__(
        self,
        *,
        content: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        _require_package("opentelemetry.trace")
        from opentelemetry import metrics, trace

        self.content = content
        self._providers = (
            tracer_provider or trace.get_tracer_provider(),
            meter_provider or metrics.get_meter_provider(),
        )
        self.tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)

        def histogram(name: str, buckets: Sequence[float], unit: str, words: str) -> Histogram:
            return meter.create_histogram(
                f"gen_ai.{name}",
                unit=unit,
                description=words,
                explicit_bucket_boundaries_advisory=buckets,
            )

        self.duration = histogram(
            "client.operation.duration", _SECONDS, "s", "GenAI operation duration."
        )
        #: Durations of the operations that have their own metric.
        self.durations = {
            "invoke_agent": histogram(
                "invoke_agent.duration", _TURN_SECONDS, "s", "GenAI agent invocation duration."
            ),
            "execute_tool": histogram(
                "execute_tool.duration", _SECONDS, "s", "GenAI tool execution duration."
            ),
        }
        self.first_chunk = histogram(
            "client.operation.time_to_first_chunk", _SECONDS, "s", "Time to the first chunk."
        )
        self.token_usage = histogram(
            "client.token.usage", _TOKENS, "{token}", "Number of input and output tokens used."
        )

    def serve(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Span:
        """See `Tracer.serve`."""
        return _Served(self, method, path, headers)

    def turn(self, requested: Requested) -> Span:
        """See `Tracer.turn`."""
        return _Turn(
            self,
            "invoke_agent",
            requested.agent,
            attributes=self._describe(requested),
            conversation=requested.conversation,
        )

    def request(self, requested: Requested) -> Span:
        """See `Tracer.request`."""
        attributes = self._describe(requested)
        controls = requested.controls.over(requested.default_controls)
        for name, control in _CONTROLS.items():
            if (value := getattr(controls, control)) is not None:
                attributes[f"gen_ai.request.{name}"] = value
        attributes["gen_ai.request.stream"] = requested.streaming
        if controls.response_schema is not None:
            attributes["gen_ai.output.type"] = "json"
        return _Request(
            self,
            "chat",
            requested.model,
            attributes=attributes,
            conversation=requested.conversation,
        )

    def attempt(self, number: int) -> Span:
        """See `Tracer.attempt`."""
        return _Operation(self, "", "attempt", attributes={"vibe_llms.attempt.number": number})

    def call(self, invocation: InvocationCanister) -> Span:
        """See `Tracer.call`."""
        attributes = {
            "gen_ai.tool.name": invocation.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": invocation.call or invocation.identity,
        }
        if self.content:
            attributes["gen_ai.tool.call.arguments"] = redact(invocation.arguments)
        return _Call(
            self,
            "execute_tool",
            invocation.name,
            attributes=attributes,
        )

    def work(self, work: Work, *, conversation: str = "", text: str = "") -> Span:
        """See `Tracer.work`."""
        attributes = {_TEXTS[work]: redact(text)} if self.content and text else {}
        return _Operation(self, work, attributes=attributes, conversation=conversation)

    def write_parent(self) -> Mapping[str, str]:
        """See `Tracer.write_parent`: `traceparent` and `tracestate` of the W3C."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(parent)
        return parent

    @contextmanager
    def continuing(self, parent: Mapping[str, str]) -> Iterator[None]:
        """Continue the trace of a span in another process.

        That span becomes the parent, so a run has a single trace in all processes. OpenTelemetry
        requires links only for spans that process several messages.

        Source: OTEP 220 of OpenTelemetry, "Span structure for messaging scenarios".
        """
        from opentelemetry import context, trace

        if not parent or trace.get_current_span().get_span_context().is_valid:
            yield
            return
        token = context.attach(_read_parent(parent))
        try:
            yield
        finally:
            context.detach(token)

    async def close(self) -> None:
        """Flush the providers, if they support it; they stay open."""
        sends = [getattr(one, "force_flush", None) for one in self._providers]
        await asyncio.gather(*(asyncio.to_thread(send) for send in sends if send is not None))

    def _describe(self, requested: Requested) -> dict[str, Any]:
        provider = _PROVIDERS.get(requested.provider, requested.provider)
        attributes = {"gen_ai.provider.name": provider, "gen_ai.request.model": requested.model}
        if requested.agent:
            attributes["gen_ai.agent.name"] = requested.agent
        if self.content:
            attributes |= _write_input(requested.messages)
        return attributes


class _Operation(Span):
    """A span, and the duration of its operation as a metric."""

    def __init__(
        self,
        tracer: OpenTelemetryTracer,
        operation: str,
        subject: str = "",
        *,
        attributes: Mapping[str, Any],
        conversation: str = "",
    ) -> None:
        from opentelemetry import context

        self._tracer = tracer
        self._parent = context.get_current()
        self._name = f"{operation} {subject}".strip()
        self._operation = operation
        self._conversation = conversation or str(context.get_value(CONVERSATION) or "")
        self._attributes = {
            **({"gen_ai.operation.name": operation} if operation else {}),
            **({CONVERSATION: self._conversation} if self._conversation else {}),
            **attributes,
        }
        self._error = ""

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._span = self._tracer.tracer.start_span(
            self._name,
            self._parent,
            trace.SpanKind.CLIENT if self._operation == "chat" else trace.SpanKind.INTERNAL,
            self._attributes,
        )
        within = context.set_value(CONVERSATION, self._conversation, self._parent)
        self._token = context.attach(trace.set_span_in_context(self._span, within))
        self._begun = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from opentelemetry import context
        from opentelemetry.trace import StatusCode

        if error is not None:
            self._error = type(error).__name__
        if self._error:
            words = redact(str(error)) if self._tracer.content and error is not None else None
            self._span.set_status(StatusCode.ERROR, words)
            self._span.set_attribute("error.type", self._error)
        # Metrics are recorded within the span, so that exemplars can refer to it.
        self._measure()
        context.detach(self._token)
        self._span.end()

    def record(self, canisters: Sequence[Canister]) -> None:
        """See `Span.record`."""
        self._record_replies(canisters)

    def count(self, number: int) -> None:
        """See `Span.count`."""
        self._span.set_attribute("gen_ai.memory.record.count", number)

    def report_caching(self, measured: RequestCaching) -> None:
        """See `Span.report_caching`."""
        attributes: dict[str, Any] = {
            "vibe_llms.cache.new_tokens": measured.new_tokens,
            "vibe_llms.cache.rewrite_factor": measured.rewrite_factor,
        }
        if measured.reason:
            attributes["vibe_llms.cache.break"] = measured.reason
        self._span.set_attributes(attributes)

    def _record_replies(self, canisters: Iterable[Canister]) -> Usage:
        """Record replies; return their usage."""
        replies = [c for c in canisters if isinstance(c, AssistantCanister | InvocationCanister)]
        usage = usage_of(replies)
        attributes: dict[str, Any] = {}
        if endings := [reply.ending for reply in replies if reply.ending is not None]:
            reason = endings[-1].reason
            attributes["gen_ai.response.finish_reasons"] = [_REASONS.get(reason, reason)]
        if usage.total_tokens:
            attributes |= {
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": _count_output(usage),
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            }
        self._span.set_attributes(attributes)
        if self._tracer.content:
            self._set("gen_ai.output.messages", [_write_message(one) for one in replies])
        return usage

    def _measure(self) -> None:
        if self._operation:
            duration = self._tracer.durations.get(self._operation, self._tracer.duration)
            duration.record(perf_counter() - self._begun, self._dimensions)

    def _set(self, name: str, value: object) -> None:
        self._span.set_attribute(name, _write(value))

    @property
    def _dimensions(self) -> Mapping[str, Any]:
        """Attributes of metrics, with few values each."""
        known = {name: self._attributes[name] for name in _DIMENSIONS if name in self._attributes}
        return {**known, "error.type": self._error} if self._error else known


class _Turn(_Operation):
    """A turn; the request that it answers, if any, gets its conversation too."""

    def __enter__(self) -> Self:
        from opentelemetry import context
        from opentelemetry.trace import Span as Served

        served = context.get_value(_SERVED, self._parent)
        if isinstance(served, Served) and served.is_recording():
            served.set_attribute(CONVERSATION, self._conversation)
        return super().__enter__()


class _Served(Span):
    """A request that a server answers, as a child of the client's span."""

    def __init__(
        self,
        tracer: OpenTelemetryTracer,
        method: str,
        path: str,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self._tracer = tracer
        self._name = f"{method} {path}"
        self._attributes = {"http.request.method": method, "http.route": path}
        self._carrier = {
            name: value.decode("latin-1")
            for name in ("traceparent", "tracestate")
            if (value := headers.get(name.encode())) is not None
        }

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        around = _read_parent(self._carrier)
        self._span = self._tracer.tracer.start_span(
            self._name, around, trace.SpanKind.SERVER, self._attributes
        )
        within = context.set_value(_SERVED, self._span, around)
        self._token = context.attach(trace.set_span_in_context(self._span, within))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from opentelemetry import context

        if error is not None:
            self._fail(type(error).__name__)
        context.detach(self._token)
        self._span.end()

    def answer(self, status: int, conversation: str = "") -> None:
        """See `Span.answer`."""
        if conversation:
            self._span.set_attribute(CONVERSATION, conversation)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._fail(str(status))

    def _fail(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR)
        self._span.set_attribute("error.type", kind)


class _Call(_Operation):
    """A tool call, which records its result."""

    def record(self, canisters: Sequence[Canister]) -> None:
        """See `Span.record`."""
        for result in canisters:
            if isinstance(result, ResultCanister) and result.failed:
                self._error = "tool_error"
            if self._tracer.content:
                parts = [_write_part(content) for content in result.contents]
                self._set("gen_ai.tool.call.result", parts)


class _Request(_Operation):
    """A request to a model, which reads the events of the reply."""

    def watch(self, handler: EventHandler) -> EventHandler:
        """See `Span.watch`."""
        self._replies: list[ReplyCanister] = []
        waiting = bool(self._attributes["gen_ai.request.stream"])

        def read(event: Event) -> None:
            nonlocal waiting
            match event:
                case MessageStartedEvent() if waiting:
                    waiting = False
                    self._record_first_chunk()
                case MessageCompletedEvent(canister=canister):
                    self._replies.append(canister)
                case MessageFailedEvent(partial=partial):
                    self._replies.append(partial)
            handler(event)

        return read

    def _record_first_chunk(self) -> None:
        seconds = perf_counter() - self._begun
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
        self._tracer.first_chunk.record(seconds, self._dimensions)

    def _measure(self) -> None:
        super()._measure()
        usage = self._record_replies(self._replies)
        for reply in self._replies[-1:]:
            if reply.provenance is not None and reply.provenance.response:
                self._span.set_attribute("gen_ai.response.id", reply.provenance.response)
        if usage.total_tokens:
            counts = {"input": usage.input_tokens, "output": _count_output(usage)}
            for kind, count in counts.items():
                dimensions = {**self._dimensions, "gen_ai.token.type": kind}
                dimensions.pop("error.type", None)
                self._tracer.token_usage.record(count, dimensions)


def _read_parent(parent: Mapping[str, str]) -> Context:
    """Return the context of this task, within a span of another process."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(parent)


def produce_tracer(configuration: Configuration) -> OpenTelemetryTracer:
    """Return the tracer that `[telemetry]` configures.

    If the program has no tracer provider, set up global ones from the variables `OTEL_*`.
    """
    _require_package("opentelemetry.sdk")
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        _set_up_exporters(offline=configuration.offline)
    return OpenTelemetryTracer(content=configuration.telemetry.content)


def _set_up_exporters(*, offline: bool) -> None:
    """Set up global providers that send to a collector by OTLP over HTTP."""
    _require_package("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "vibe-llms"}))
    # Closing a session or a server sends everything. Another attempt at exit would only wait again
    # for a collector that does not answer.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if _is_wanted("TRACES", offline=offline):
        exporter = OTLPSpanExporter(timeout=_read_timeout("TRACES"))
        provider.add_span_processor(BatchSpanProcessor(exporter))
    readers: list[MetricReader] = []
    if _is_wanted("METRICS", offline=offline):
        measures = OTLPMetricExporter(timeout=_read_timeout("METRICS"))
        readers.append(PeriodicExportingMetricReader(measures))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider(readers, resource, shutdown_on_exit=False))
    # Errors of the exporters contain addresses, which may contain a key.
    guard_loggers("opentelemetry")


def _is_wanted(signal: str, *, offline: bool) -> bool:
    """Return True if a signal is exported; raises `RequestForbidden` if that is forbidden."""
    if os.environ.get(f"OTEL_{signal}_EXPORTER") == "none":
        return False
    names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    for address in filter(None, map(os.environ.get, names)):
        permit_request(address, "telemetry", offline=offline)
    return True


def _read_timeout(signal: str) -> float | None:
    """Return the timeout of an export, or None if a variable sets it for the exporter."""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    return None if any(map(os.environ.get, names)) else _EXPORT_SECONDS


def _require_package(module: str) -> None:
    try:
        import_module(module)
    except ImportError as error:
        raise PackageMissing(
            "telemetry",
            package="opentelemetry-sdk",
            command="python -m pip install 'vibe-llms[telemetry]'",
        ) from error


def _count_output(usage: Usage) -> int:
    return usage.output_tokens + usage.reasoning_tokens


def _write_input(canisters: Iterable[Canister]) -> Mapping[str, str]:
    """Return a model's input in the form of the conventions."""
    system: list[Any] = []
    messages: list[Any] = []
    for canister in canisters:
        if isinstance(canister, SupervisorCanister):
            system += map(_write_part, canister.contents)
        else:
            messages.append(_write_message(canister))
    written = {"gen_ai.input.messages": _write(messages)}
    return {**written, "gen_ai.system_instructions": _write(system)} if system else written


def _write_message(canister: Canister) -> Mapping[str, Any]:
    role = role_of(canister)
    parts: list[dict[str, Any]] = [_write_part(content) for content in canister.contents]
    match canister:
        case InvocationCanister(identity=identity, name=name, arguments=text, parsed=parsed):
            arguments = text if parsed is None else parsed
            parts = [{"type": "tool_call", "id": identity, "name": name, "arguments": arguments}]
        case ResultCanister(invocation=identity):
            parts = [{"type": "tool_call_response", "id": identity, "response": parts}]
    message: dict[str, Any] = {"role": _ROLES.get(role, role), "parts": parts}
    if isinstance(canister, AssistantCanister | InvocationCanister) and canister.ending is not None:
        message["finish_reason"] = _REASONS.get(canister.ending.reason, canister.ending.reason)
    return message


def _write_part(content: Content) -> dict[str, Any]:
    """Return a content as a message part; only the kind for contents other than text."""
    match content:
        case TextualContent(data=str(text)):
            return {"type": "text", "content": text}
        case ReasoningContent(data=str(text)):
            return {"type": "reasoning", "content": text}
        case _:
            return {"type": str(content.__struct_config__.tag)}


def _write(value: object) -> str:
    return redact(msgspec.json.encode(value).decode())
