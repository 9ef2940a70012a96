"""Spans and metrics: what is recorded of a session, how it nests, and what is never in it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.documents.making import make_pdf
from tests.fakes.anthropic import KEY, answer_json, failure, stream
from tests.fakes.interfaces import Player
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import (
    DocumentUnreadable,
    PackageMissing,
    RequestForbidden,
    RequestRefused,
)
from vibe_llms.base.redaction import remember
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import Usage, UserCanister
from vibe_llms.messages.contents import FileContent, ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageProgressEvent
from vibe_llms.messages.tracing import Tracer
from vibe_llms.opening import open_session
from vibe_llms.telemetry import OpenTelemetryTracer
from vibe_llms.testing import Part, Script, ScriptedModel, ScriptedReply, scripted_model
from vibe_llms.testing.wires.anthropic_replies import text_reply

SECRET = "the horse of Troy"
CONVERSATION = "gen_ai.conversation.id"
TOKENS = "gen_ai.client.token.usage"


class _Open(SpanProcessor):
    """Counts the spans that have begun and not ended."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, span: ReadableSpan, parent_context: Any = None) -> None:
        self.count += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.count -= 1


class Recording:
    """A tracer, and what it has recorded."""

    def __init__(self, *, content: bool = False) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._open = _Open()
        provider.add_span_processor(self._open)
        self.tracer = OpenTelemetryTracer(
            content=content,
            tracer_provider=provider,
            meter_provider=MeterProvider([self._reader]),
        )

    async def settle(self) -> None:
        """Wait until all spans have ended: that of a request ends after its response."""
        while self._open.count:
            await asyncio.sleep(0.005)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended, in the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda one: one.start_time or 0)

    @property
    def tree(self) -> list[str]:
        """The names of the spans, with those of the spans around each."""
        by_id = {one.context.span_id: one for one in self.spans if one.context is not None}

        def path(span: ReadableSpan) -> str:
            above = f"{path(by_id[span.parent.span_id])} > " if span.parent is not None else ""
            return above + span.name

        return [path(one) for one in self.spans]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (span,) = (one for one in self.spans if one.name == name)
        return span

    @property
    def metrics(self) -> dict[str, list[HistogramDataPoint]]:
        """The data points of each metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: [p for p in metric.data.data_points if isinstance(p, HistogramDataPoint)]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def read(span: ReadableSpan, name: str) -> Any:
    return json.loads(of(span)[name])


def says(*chunks: str, usage: Usage | None = None) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=chunks),), usage=usage)


def calls(name: str, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(invocation=name, arguments=arguments),))


def fails(error: str) -> ScriptedReply:
    return ScriptedReply(parts=(Part(error=error),))


def model_of(*replies: ScriptedReply, **options: Any) -> ScriptedModel:
    return scripted_model(Script(replies), **options)


async def test_a_request_tells_why_the_cache_broke(home: Path) -> None:
    recording = Recording()
    async with open_session(home=home, tracer=recording.tracer) as session:
        conversation = await session.begin(
            model_of(
                says("a", usage=Usage(20_000, cache_write_tokens=9)),
                says("b", usage=Usage(21_000)),
                says("c", usage=Usage(500, cache_read_tokens=21_000)),
            )
        )
        for _ in range(3):
            await conversation.converse("Hi")
    requests = [of(span) for span in recording.spans if span.name.startswith("chat")]
    assert [one.get("vibe_llms.cache.break") for one in requests] == [None, "unexpected", None]
    assert [one["vibe_llms.cache.new_tokens"] for one in requests] == [20_009, 991, 500]
    assert requests[2]["vibe_llms.cache.rewrite_factor"] == 1


async def test_spans_of_a_turn_lie_within_each_other(home: Path) -> None:
    recording = Recording()
    async with open_session(home=home, tracer=recording.tracer) as session:

        async def consult(question: str) -> str:
            other = await session.begin(model_of(says("Wood.")), save=False)
            return (await other.converse(question)).text

        model = model_of(calls("consult", question="What?"), says("It is", " wood."))
        conversation = await session.begin(model, invokers=[consult])
        await conversation.converse("What is it made of?")
    assert recording.tree == [
        "invoke_agent",
        "invoke_agent > chat script",
        "invoke_agent > chat script > attempt",
        "invoke_agent > execute_tool consult",
        "invoke_agent > execute_tool consult > invoke_agent",
        "invoke_agent > execute_tool consult > invoke_agent > chat script",
        "invoke_agent > execute_tool consult > invoke_agent > chat script > attempt",
        "invoke_agent > chat script",
        "invoke_agent > chat script > attempt",
    ]
    outer = [one for one, path in zip(recording.spans, recording.tree, strict=True)
             if path.count("invoke_agent") == 1]  # fmt: skip
    assert {of(one)[CONVERSATION] for one in outer} == {conversation.identity}
    inner = {of(one)[CONVERSATION] for one in recording.spans if one not in outer}
    assert len(inner) == 1
    assert inner != {conversation.identity}
    kinds = {one.kind for one in recording.spans if one.name == "chat script"}
    assert kinds == {SpanKind.CLIENT}
    tool = of(recording.one("execute_tool consult"))
    assert tool["gen_ai.operation.name"] == "execute_tool"
    assert tool["gen_ai.tool.name"] == "consult"
    assert {one.status.status_code for one in recording.spans} == {StatusCode.UNSET}


async def test_conversations_at_the_same_time_are_kept_apart(home: Path) -> None:
    recording, both = Recording(), asyncio.Barrier(2)

    async def meet() -> str:
        await both.wait()
        return "met"

    async with open_session(home=home, tracer=recording.tracer) as session:
        conversations = [
            await session.begin(model_of(calls("meet"), says("Well.")), invokers=[meet])
            for _ in range(2)
        ]
        await asyncio.gather(*(one.converse("Meet") for one in conversations))
    for conversation in conversations:
        own = [one for one in recording.spans if of(one)[CONVERSATION] == conversation.identity]
        assert [one.name for one in own].count("execute_tool meet") == 1
        assert len({one.context.trace_id for one in own if one.context}) == 1
        assert len(own) == 6


async def test_the_turn_of_an_agent_has_its_name(home: Path) -> None:
    recording = Recording()
    agents = {"agents": {"coder": {"model": "scripted/demo"}}}
    async with open_session(home=home, tracer=recording.tracer, configuration=agents) as session:
        await (await session.begin(agent="coder")).converse("Hi")
    assert of(recording.one("invoke_agent coder"))["gen_ai.agent.name"] == "coder"
    (point,) = recording.metrics["gen_ai.invoke_agent.duration"]
    assert dict(point.attributes or {})["gen_ai.agent.name"] == "coder"


async def test_a_request_has_its_model_its_controls_its_tokens_and_its_first_chunk(
    home: Path,
) -> None:
    recording = Recording()
    usage = Usage(
        10, cache_read_tokens=5, cache_write_tokens=1, output_tokens=3, reasoning_tokens=4
    )
    defaults = {"controls": {"temperature": 0.5, "seed": 3}}
    async with open_session(home=home, tracer=recording.tracer, configuration=defaults) as session:
        conversation = await session.begin(
            model_of(says("a", "b", usage=usage), says("c", usage=Usage(4)))
        )
        await conversation.converse("Hi", controls=Controls(seed=7, output_tokens=100))
        first, turn = recording.one("chat script"), recording.one("invoke_agent")
        await conversation.converse("Hi", streaming=False)
    counted = {
        "gen_ai.usage.input_tokens": 16,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.cache_creation.input_tokens": 1,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }
    named = {
        CONVERSATION: conversation.identity,
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "script",
        "gen_ai.response.finish_reasons": ("stop",),
        **counted,
    }
    assert of(turn) == {"gen_ai.operation.name": "invoke_agent", **named}
    attributes = of(first)
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "scripted",
        "vibe_llms.cache.new_tokens": 16,
        "vibe_llms.cache.rewrite_factor": 11 / 16,
        **named,
    }
    second = of(recording.spans[-2])
    assert second["gen_ai.request.stream"] is False
    assert "gen_ai.response.time_to_first_chunk" not in second

    asked = {"gen_ai.provider.name": "scripted", "gen_ai.request.model": "script"}
    chat = {"gen_ai.operation.name": "chat", **asked}
    metrics = recording.metrics
    tokens = {dict(p.attributes or {})["gen_ai.token.type"]: p for p in metrics[TOKENS]}
    assert {kind: (p.count, p.sum) for kind, p in tokens.items()} == {
        "input": (2, 20),
        "output": (2, 7),
    }
    assert dict(tokens["input"].attributes or {}) == {**chat, "gen_ai.token.type": "input"}
    (duration,) = metrics["gen_ai.client.operation.duration"]
    assert (duration.count, dict(duration.attributes or {})) == (2, chat)
    assert duration.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    (turns,) = metrics["gen_ai.invoke_agent.duration"]
    assert turns.count == 2
    (waited,) = metrics["gen_ai.client.operation.time_to_first_chunk"]
    assert waited.count == 1


async def test_each_attempt_at_a_request_is_seen(home: Path) -> None:
    recording = Recording()
    async with open_session(home=home, tracer=recording.tracer) as session:
        model = model_of(fails("overloaded"), says("Hello."), stream=StreamSettings(retries=1))
        conversation = await session.begin(model)
        await conversation.converse("Hi")
    first, second = (one for one in recording.spans if one.name == "attempt")
    assert of(first)["error.type"] == "ProviderOverloaded"
    assert first.status.status_code == StatusCode.ERROR
    assert of(second) == {CONVERSATION: conversation.identity, "vibe_llms.attempt.number": 2}
    assert "error.type" not in of(recording.one("chat script"))


async def test_attempts_over_http_are_seen_too(home: Path) -> None:
    recording = Recording()
    refusal = failure(429, "rate_limit_error", headers={"retry-after-ms": "1"})
    with Player([refusal, stream(text_reply("Hello."))]) as server:
        configuration = {"providers": {"anthropic": {"base-url": server.url}}}
        async with open_session(
            home=home,
            tracer=recording.tracer,
            keys={"anthropic": KEY},
            configuration=configuration,
        ) as session:
            conversation = await session.begin("anthropic/claude-opus-5")
            await conversation.converse("Hi")
    errors = [of(one).get("error.type") for one in recording.spans if one.name == "attempt"]
    assert errors == ["RateLimited", None]
    assert of(recording.one("chat claude-opus-5"))["gen_ai.response.id"] == "msg_1"


async def test_a_failure_has_the_name_of_its_error_and_no_words(home: Path) -> None:
    recording = Recording()
    async with open_session(home=home, tracer=recording.tracer) as session:
        reply = ScriptedReply(parts=(Part(error="refused", message=f"no: {SECRET}"),))
        conversation = await session.begin(model_of(reply))
        with pytest.raises(RequestRefused):
            await conversation.converse("Hi")
    assert [one.name for one in recording.spans] == ["invoke_agent", "chat script", "attempt"]
    for span in recording.spans:
        assert of(span)["error.type"] == "RequestRefused"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
        assert span.events == ()
    (duration,) = recording.metrics["gen_ai.client.operation.duration"]
    assert dict(duration.attributes or {})["error.type"] == "RequestRefused"


async def test_a_cancelled_turn_ends_all_its_spans_and_keeps_what_had_arrived(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording, begun = Recording(), asyncio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, MessageProgressEvent):
            begun.set()

    async with open_session(home=home, tracer=recording.tracer, event_handler=watch) as session:
        reply = ScriptedReply(parts=(Part(text=("Hel",)), Part(stall=True)))
        conversation = await session.begin(model_of(reply))
        turn = asyncio.create_task(conversation.converse("Hi"))
        await begun.wait()
        await conversation.cancel()
        await asyncio.gather(turn, return_exceptions=True)
    assert {of(one)["error.type"] for one in recording.spans} == {"CancelledError"}
    assert [one.name for one in recording.spans] == ["invoke_agent", "chat script", "attempt"]
    for span in recording.spans[:2]:
        assert of(span)["gen_ai.response.finish_reasons"] == ("interrupted",)
    assert caplog.records == []


async def test_a_cancelled_call_ends_its_span(home: Path) -> None:
    recording, begun = Recording(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing ends the wait")

    async with open_session(home=home, tracer=recording.tracer) as session:
        conversation = await session.begin(model_of(calls("wait")), invokers=[wait])
        turn = asyncio.create_task(conversation.converse("Hi"))
        await begun.wait()
        await conversation.cancel()
        await asyncio.gather(turn, return_exceptions=True)
    assert of(recording.one("execute_tool wait"))["error.type"] == "CancelledError"


async def test_a_failing_tool_has_the_name_of_its_error(home: Path) -> None:
    recording = Recording()

    def explode() -> str:
        raise KeyError(SECRET)

    def refuse() -> InvocationOutput:
        return InvocationOutput((TextualContent(SECRET),), failed=True)

    model = model_of(calls("explode"), calls("explode", x=1), calls("refuse"), says("Well."))
    async with open_session(home=home, tracer=recording.tracer) as session:
        conversation = await session.begin(model, invokers=[explode, refuse])
        await conversation.converse("Hi")
    errors = [str(of(s)["error.type"]) for s in recording.spans if s.name.startswith("execute")]
    assert errors == ["KeyError", "ArgumentsInvalid", "tool_error"]
    assert SECRET not in write_down(recording)
    points = recording.metrics["gen_ai.execute_tool.duration"]
    assert sorted(str(dict(p.attributes or {})["error.type"]) for p in points) == sorted(errors)


def write_down(recording: Recording) -> str:
    """All that was recorded."""
    points = [repr(point) for some in recording.metrics.values() for point in some]
    return "\n".join([*(one.to_json() for one in recording.spans), *points])


async def hold_a_secret_conversation(home: Path, recording: Recording) -> None:
    """A turn with a secret in every place that it can have, and a key in one."""
    remember(KEY)

    def keep(secret: str) -> str:
        return f"kept: {secret}"

    async with open_session(home=home, tracer=recording.tracer) as session:
        model = model_of(
            ScriptedReply(
                parts=(
                    Part(reasoning=(SECRET,)),
                    Part(invocation="keep", arguments={"secret": f"{SECRET} {KEY}"}),
                )
            ),
            says(f"It was {SECRET}."),
        )
        conversation = await session.begin(model, supervisor=f"Know {SECRET}.", invokers=[keep])
        image = ImageContent(SECRET.encode(), mimetype="image/png")
        await conversation.converse([UserCanister((TextualContent(f"Hear {SECRET}"), image))])


async def test_nothing_of_what_is_said_is_recorded_by_default(home: Path) -> None:
    recording = Recording()
    await hold_a_secret_conversation(home, recording)
    assert "horse" not in write_down(recording)
    assert len(recording.spans) == 6


async def test_messages_arguments_and_results_are_recorded_where_it_is_asked_for(
    home: Path,
) -> None:
    recording = Recording(content=True)
    await hold_a_secret_conversation(home, recording)
    assert KEY not in write_down(recording)
    first, last = (one for one in recording.spans if one.name == "chat script")
    heard = {"role": "user", "parts": [text_part(f"Hear {SECRET}"), {"type": "image"}]}
    assert read(first, "gen_ai.system_instructions") == [text_part(f"Know {SECRET}.")]
    assert read(first, "gen_ai.input.messages") == [heard]
    thought, call = read(first, "gen_ai.output.messages")
    assert thought["parts"] == [{"type": "reasoning", "content": SECRET}]
    (made,) = call["parts"]
    assert (call["role"], call["finish_reason"], made["type"]) == (
        "assistant",
        "tool_call",
        "tool_call",
    )
    assert made["arguments"] == {"secret": f"{SECRET} [secret]"}
    answered = read(last, "gen_ai.input.messages")[-1]
    kept = [text_part(f"kept: {SECRET} [secret]")]
    response = {"type": "tool_call_response", "id": made["id"], "response": kept}
    assert answered == {"role": "tool", "parts": [response]}
    tool = recording.one("execute_tool keep")
    assert read(tool, "gen_ai.tool.call.arguments") == made["arguments"]
    assert read(tool, "gen_ai.tool.call.result") == kept
    turn = recording.one("invoke_agent")
    assert read(turn, "gen_ai.input.messages") == [heard]
    assert read(turn, "gen_ai.output.messages")[-1]["parts"] == [text_part(f"It was {SECRET}.")]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


@pytest.mark.parametrize("content", [False, True])
async def test_recall_and_ingestion_belong_to_their_turn(home: Path, content: bool) -> None:
    recording = Recording(content=content)
    async with open_session(home=home, tracer=recording.tracer) as session:
        replies = (says(f"{n}") for n in range(20))
        conversation = await session.begin(model_of(*replies), memory=True)
        await conversation.converse(SECRET)
        await conversation.converse(SECRET)
        await session.background.wait()
    tree = recording.tree
    assert tree.count("invoke_agent > search_memory") == 2
    assert tree.count("invoke_agent > upsert_memory") == 2
    assert "invoke_agent > upsert_memory > invoke_agent > chat script > attempt" in tree
    searches = [one for one in recording.spans if one.name == "search_memory"]
    assert of(searches[0])["gen_ai.memory.record.count"] == 0
    turns = [one for one, path in zip(recording.spans, tree, strict=True) if path == "invoke_agent"]
    for name in ("search_memory", "upsert_memory"):
        parents = [s.parent.span_id for s in recording.spans if s.name == name and s.parent]
        assert parents == [one.context.span_id for one in turns if one.context]
    for span in searches:
        assert of(span)[CONVERSATION] == conversation.identity
        assert of(span).get("gen_ai.memory.query.text") == (SECRET if content else None)
    assert (SECRET in write_down(recording)) == content


@pytest.mark.parametrize("content", [False, True])
async def test_reading_and_searching_documents_are_seen(home: Path, content: bool) -> None:
    recording = Recording(content=content)
    file = FileContent(make_pdf([f"Hear of {SECRET}."]), "application/pdf", "horse.pdf")
    async with open_session(home=home, tracer=recording.tracer) as session:

        async def look() -> str:
            return (await session.access_documents().read(file)).text

        model = model_of(calls("look"), says("Well."))
        conversation = await session.begin(model, invokers=[look])
        await conversation.converse("Look")
        found = await session.access_documents().find("horse", [file])
    assert [one.name for one in found] == ["horse.pdf"]
    assert "invoke_agent > execute_tool look > read_document" in recording.tree
    assert recording.tree[-1] == "retrieval"
    read_span, search = recording.one("read_document"), recording.one("retrieval")
    assert of(read_span)[CONVERSATION] == conversation.identity
    assert of(read_span).get("vibe_llms.document.name") == ("horse.pdf" if content else None)
    assert of(search).get("gen_ai.retrieval.query.text") == ("horse" if content else None)
    assert CONVERSATION not in of(search)
    assert ("orse" in write_down(recording)) == content


async def test_a_document_that_cannot_be_read_is_an_error_of_its_span(home: Path) -> None:
    recording = Recording()
    async with open_session(home=home, tracer=recording.tracer) as session:
        file = FileContent(b"%PDF-1.4 broken", "application/pdf", "a.pdf")
        with pytest.raises(DocumentUnreadable):
            await session.access_documents().read(file)
    assert of(recording.one("read_document"))["error.type"] == "DocumentUnreadable"


async def test_a_tracer_of_ones_own_needs_no_method_and_is_left_open(home: Path) -> None:
    class Own(Tracer):
        closed = False

        async def close(self) -> None:
            self.closed = True

    own = Own()
    async with open_session(home=home, tracer=own) as session:
        conversation = await session.begin(model_of(says("Hello.")))
        assert (await conversation.converse("Hi")).text == "Hello."
    assert not own.closed


async def test_without_the_package_the_error_says_how_to_install_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_session(home=home, configuration={"telemetry": {"enabled": True}}) as session:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
        with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[telemetry\]'"):
            await session.begin("scripted/demo")


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"]
)
async def test_offline_nothing_is_sent_to_another_machine(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"telemetry": {"enabled": True}, "offline": True}
    monkeypatch.setenv(name, "https://collector.example.org:4318")
    async with open_session(home=home, configuration=settings) as session:
        with pytest.raises(RequestForbidden, match=r"telemetry would go to collector\.example"):
            await session.begin("scripted/demo")


#: A program of its own: the providers of OpenTelemetry are set once for a process.
PROGRAM = """
import asyncio, sys
from vibe_llms import open_session

async def main():
    async with open_session(home=sys.argv[1], configuration={"telemetry": {"enabled": %s}}) as one:
        await (await one.begin("scripted/demo")).converse("Hello!")
        two = await one.begin("scripted/demo", memory=True)
        await two.converse("Hello!")
        await (await one.start(two, "Hello!")).result()

asyncio.run(main())
"""


def run(home: Path, *, enabled: bool, before: str = "", after: str = "", **variables: str) -> str:
    """What a program prints that has two conversations."""
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM % enabled + after, str(home)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    return done.stdout + done.stderr


def test_when_it_is_off_nothing_of_it_is_imported(home: Path) -> None:
    names = run(home, enabled=False, after="print(*sys.modules)").split()
    assert "vibe_llms.conversations.turns" in names
    assert [n for n in names if n.startswith(("opentelemetry", "vibe_llms.telemetry"))] == []


def test_a_command_without_a_conversation_imports_nothing_of_it(home: Path) -> None:
    code = """
import asyncio, sys
from vibe_llms import open_session

async def main():
    async with open_session(home=sys.argv[1], configuration={"telemetry": {"enabled": True}}) as it:
        await it.survey_conversations()

asyncio.run(main())
assert not {"opentelemetry", "vibe_llms.telemetry"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code, str(home)], check=True)


async def test_the_variables_of_opentelemetry_say_where_it_is_sent(home: Path) -> None:
    with Player([answer_json({}) for _ in range(9)]) as collector:
        address = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        assert await asyncio.to_thread(run, home, enabled=True, **address) == ""
        sent = {one.path: one.body for one in collector.asked}
        assert {*sent} == {"/v1/traces", "/v1/metrics"}
        assert b"invoke_agent" in sent["/v1/traces"]
        assert b"vibe-llms" in sent["/v1/traces"]
        assert TOKENS.encode() in sent["/v1/metrics"]
        collector.asked.clear()
        quiet = {**address, "OTEL_METRICS_EXPORTER": "none", "OTEL_SERVICE_NAME": "mine"}
        assert await asyncio.to_thread(run, home, enabled=True, **quiet) == ""
        (traces,) = collector.asked
        assert b"mine" in traces.body


def test_the_programs_own_providers_are_used(home: Path) -> None:
    setup = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
"""
    assert '"name": "invoke_agent"' in run(home, enabled=True, before=setup)


async def test_without_a_collector_a_session_ends_and_says_what_is_missing(home: Path) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    said = await asyncio.to_thread(run, home, enabled=True, **variables)
    # Once each: the end of the program does not wait for a second try.
    assert said.count("Failed to export spans") == 1
    assert said.count("Failed to export metrics") == 1
