"""All interfaces at one table: for what has to hold of each of them alike.

Each has its strict fake and the same few things said in its own format, so that one test can be
held with all of them; those of vendors also have recorded replies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.fakes import (
    anthropic,
    azure,
    azure_clients,
    azure_recordings,
    bedrock,
    bedrock_clients,
    bedrock_replies,
    clients,
    gemini,
    gemini_clients,
    ollama,
    ollama_clients,
    openai,
    openai_clients,
    recordings,
    shout,
    strict,
    vertex,
    vertex_clients,
    vertex_recordings,
)
from tests.fakes.backends import Interface, produce_row
from tests.fakes.embedded import CONTRACT, LLAMACPP, SCRIPTED
from tests.fakes.recordings import Recordings
from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest
from tests.fakes.strict import Events
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    gemini_replies,
    ollama_replies,
    responses_replies,
)

#: What a request of Ollama's provider asks before its first chat.
_SHOW = "/api/show"
#: Where nothing listens.
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True, kw_only=True, eq=False)
class HttpInterface(Interface):
    """An interface of a server.

    `encode` makes the bytes of a reply, event by event; of a reply of text the first `opened`
    events come before its first words and the first `spoken` hold these. `late` are errors within a
    stream, by a word for their class. `lines` is whether events are lines of JSON. `lost` is what a
    server says of a model that it does not have, where it does not say so by itself; `extras` are
    what its row needs in addition to an address. `maker` is the row whose wire a row of a cloud
    speaks.
    """

    produce_server: Callable[..., Any]
    connect: Callable[..., Any]
    encode: Callable[[Events], list[bytes]]
    stream_bytes: Callable[..., HttpAnswer]
    whole: Callable[[Events], HttpAnswer]
    refuse: Callable[[str], HttpAnswer]
    late: Mapping[str, Mapping[str, Any]]
    opened: int
    spoken: int
    signed: Callable[[Any, Events], None] = lambda server, events: None
    lines: bool = False
    lost: HttpAnswer | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    maker: str = ""

    def serve(self) -> Any:
        return self.produce_server()

    def play(self, *replies: Any) -> Player:
        return Player([one if isinstance(one, HttpAnswer) else self.stream(one) for one in replies])

    def cut(self, reply: Any, part: float) -> HttpAnswer:
        return self.stream(reply, cut=int(part * len(b"".join(self.encode(reply)))))

    def stall(self, reply: Any, part: float) -> HttpAnswer:
        size = len(b"".join(self.encode(reply)))
        return self.stream(reply, stall=-1 if part < 0 else int(part * size), pause=0.001)

    def escape(self, reply: Any) -> HttpAnswer:
        return self.stream_bytes([self._escape_event(event) for event in reply])

    def _escape_event(self, event: Mapping[str, Any]) -> bytes:
        """An event with escapes, named as `encode` names it if its data do not say what it is."""
        data = {name: value for name, value in event.items() if name != "event"}
        head = f"event: {event['event']}\n" if "event" in event else ""
        return head.encode() + self.frame(json.dumps(data).encode())

    def remember(self, backend: Any, reply: Any) -> None:
        self.signed(backend, reply)

    async def produce_model(self, backend: Any, **options: Any) -> Any:
        url = backend if isinstance(backend, str) else backend.url
        return await self.connect(url, **options)

    def sent(self, backend: Any) -> list[bytes]:
        return [request.body for request in asked(backend)]

    def count_left(self, backend: Any) -> int:
        left: int = backend.closed_by_client
        return left

    def configure(self, backend: Any, **settings: Any) -> dict[str, Any]:
        """A configuration whose row leads to a server, or to an address."""
        url = backend if isinstance(backend, str) else backend.url
        row = {"base_url": url, **self.extras, **settings}
        return {"providers": {self.row: produce_row(**row)}}

    def frame(self, data: bytes) -> bytes:
        """Data as an event of a stream."""
        return data + b"\n" if self.lines else b"data: " + data + b"\n\n"

    def stream(self, events: Events, **faults: Any) -> HttpAnswer:
        """A reply as a stream, each event as a chunk of its own."""
        return self.stream_bytes(self.encode(events), **faults)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedInterface(HttpInterface):
    """An interface of a vendor, of which there are recorded streams."""

    recordings: Recordings


@dataclass(frozen=True, kw_only=True, eq=False)
class FramedInterface(RecordedInterface):
    """An interface whose events are binary messages with checksums."""

    def escape(self, reply: Any) -> HttpAnswer:
        return self.stream_bytes([bedrock.encode_event(event, escaped=True) for event in reply])

    def frame(self, data: bytes) -> bytes:
        headers = {":event-type": "ping", ":message-type": "event"}
        return bedrock.encode_message(headers, data)


class Player(FakeServer):
    """Answers with one reply after the other and looks at nothing, which would take its time."""

    def __init__(self, replies: Sequence[HttpAnswer]) -> None:
        super().__init__()
        self.key = ""
        self.replies = list(replies)
        self.asked: list[ReceivedRequest] = []

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path == _SHOW:
            return ollama.answer_json({"capabilities": ["completion", "tools", "thinking"]})
        self.asked.append(request)
        return self.replies.pop(0)


def asked(server: FakeServer) -> list[ReceivedRequest]:
    """The requests for a reply."""
    return [request for request in server.requests if request.path != _SHOW]


def _response_texts(*chunks: str) -> Events:
    events = responses_replies.response_reply(responses_replies.message("".join(chunks)), pieces=1)
    reported: list[Mapping[str, Any]] = []
    for event in events:
        if event["type"] == "response.output_text.delta":
            reported += [{**event, "delta": chunk} for chunk in chunks]
        else:
            reported.append(event)
    return reported


def _response_tools(*calls: tuple[str, str]) -> Events:
    items = [
        responses_replies.function_call(name, text, f"call_{n}")
        for n, (name, text) in enumerate(calls)
    ]
    return responses_replies.response_reply(responses_replies.reasoning("Hm."), *items)


def _anthropic_thoughts(thought: str, text: str, arguments: str) -> Events:
    return anthropic_replies.reply(
        anthropic_replies.thinking_block(0, thought, "."),
        anthropic_replies.text_block(1, "a", text, "b"),
        anthropic_replies.tool_block(2, "speak", arguments),
        stop_reason="tool_use",
    )


def _response_thoughts(thought: str, text: str, arguments: str) -> Events:
    items = (
        responses_replies.reasoning(thought),
        responses_replies.message(text),
        responses_replies.function_call("speak", arguments),
    )
    return responses_replies.response_reply(*items)


def _chat_thoughts(thought: str, text: str, arguments: str) -> Events:
    return chat_completions_replies.chat_reply(
        chat_completions_replies.text_chunks(thought, member="reasoning_content"),
        text,
        chat_completions_replies.call_chunks(0, "speak", arguments),
        finish="tool_calls",
    )


def _ollama_thoughts(thought: str, text: str, arguments: str) -> Events:
    call = ollama_replies.call("speak", json.loads(arguments))
    return [
        ollama_replies.line(thinking=thought),
        ollama_replies.line(text),
        ollama_replies.line(tool_calls=[call]),
        ollama_replies.end(),
    ]


def _bedrock_thoughts(thought: str, text: str, arguments: str) -> Events:
    return bedrock_replies.reply(
        bedrock_replies.reasoning_block(0, thought, "."),
        bedrock_replies.text_block(1, "a", text, "b"),
        bedrock_replies.tool_block(2, "speak", arguments),
        reason="tool_use",
    )


def _remember_converse(server: Any, events: Events) -> None:
    message = bedrock_replies.accumulate(events)["output"]["message"]
    server.issued.remember(message["content"], BEDROCK.model)


def _gemini_thoughts(thought: str, text: str, arguments: str) -> Events:
    return gemini_replies.reply(
        gemini_replies.chunk(gemini_replies.text(thought, thought=True)),
        gemini_replies.chunk(gemini_replies.text("a")),
        gemini_replies.chunk(gemini_replies.text(text)),
        gemini_replies.chunk(gemini_replies.call("speak", json.loads(arguments), "c", "U0lH")),
    )


def _remember_message(server: Any, events: Events) -> None:
    """What a server signed of a reply, although it is cut, it knows when it comes back."""
    message = anthropic.accumulate(events)
    server.issued.remember(message["content"], ANTHROPIC.model, message.get("stop_reason") or "")


def _remember_response(server: Any, events: Events) -> None:
    server.remember(events[-1]["response"]["output"], RESPONSES.model)


def _openai_model(interface: str) -> Callable[..., Any]:
    async def produce(url: str, **options: Any) -> Any:
        return await openai_clients.produce_openai_model(interface, url, **options)

    return produce


def _encode_chat(events: Events) -> list[bytes]:
    return [*map(strict.encode_event, events), b"data: [DONE]\n\n"]


_OPENAI_FAILURES: Mapping[str, Callable[..., HttpAnswer]] = {
    "limited": lambda **more: openai.failure(429, "tokens", "slow", "rate_limit_exceeded", **more),
    "broken": lambda **more: openai.failure(500, "server_error", "oh", **more),
    "overloaded": lambda **more: openai.failure(503, "service_unavailable_error", "busy", **more),
    "refused": lambda **more: openai.failure(400, "invalid_request_error", "no", **more),
    "unauthorized": lambda **more: openai.failure(401, "invalid_request_error", "key", **more),
}
_CHAT_LATE: Mapping[str, Mapping[str, Any]] = {
    "limited": {"error": {"message": "slow", "type": "tokens", "code": "rate_limit_exceeded"}},
    "broken": {"error": {"message": "oh", "type": "server_error"}},
    "overloaded": {"error": {"message": "busy", "type": "service_unavailable_error"}},
}

ANTHROPIC = RecordedInterface(
    row="anthropic",
    model="claude-opus-5",
    module="vibe_llms.providers.anthropic",
    produce_server=anthropic.FakeAnthropic,
    connect=clients.produce_model,
    refuse=lambda words: anthropic.failure(400, "invalid_request_error", words),
    lost=anthropic.failure(404, "not_found_error"),
    texts=anthropic_replies.text_reply,
    tools=anthropic_replies.tools_reply,
    thoughts=_anthropic_thoughts,
    encode=lambda events: [*map(strict.encode_event, events)],
    stream_bytes=anthropic.stream_bytes,
    whole=lambda events: anthropic.answer_json(anthropic.accumulate(events)),
    failures={
        "limited": lambda **more: anthropic.failure(429, "rate_limit_error", **more),
        "broken": lambda **more: anthropic.failure(500, "api_error", **more),
        "overloaded": lambda **more: anthropic.failure(529, "overloaded_error", **more),
        "refused": lambda **more: anthropic.failure(400, "invalid_request_error", **more),
        "unauthorized": lambda **more: anthropic.failure(401, "authentication_error", **more),
    },
    late={
        name: {"type": "error", "error": {"type": kind, "message": "m"}}
        for name, kind in (
            ("limited", "rate_limit_error"),
            ("broken", "api_error"),
            ("overloaded", "overloaded_error"),
        )
    },
    opened=2,
    spoken=4,
    recordings=recordings.ANTHROPIC,
    signed=_remember_message,
)
RESPONSES = RecordedInterface(
    row="openai",
    model=openai_clients.MODELS["responses"],
    produce_server=openai.FakeOpenAI,
    module=openai_clients.MODULES["responses"],
    connect=_openai_model("responses"),
    refuse=lambda words: openai.failure(400, "invalid_request_error", words),
    lost=openai.failure(404, "invalid_request_error", "no", "model_not_found"),
    texts=_response_texts,
    tools=_response_tools,
    thoughts=_response_thoughts,
    encode=lambda events: [*map(strict.encode_event, events)],
    stream_bytes=openai.stream_bytes,
    whole=lambda events: openai.answer_json(events[-1]["response"]),
    failures=_OPENAI_FAILURES,
    late={name: {**reported["error"], "type": "error"} for name, reported in _CHAT_LATE.items()},
    opened=4,
    spoken=5,
    recordings=recordings.RESPONSES,
    signed=_remember_response,
)
CHAT = RecordedInterface(
    row="openai-chat",
    model=openai_clients.MODELS["chat"],
    produce_server=openai.FakeOpenAI,
    module=openai_clients.MODULES["chat"],
    connect=_openai_model("chat"),
    refuse=lambda words: openai.failure(400, "invalid_request_error", words),
    lost=openai.failure(404, "invalid_request_error", "no", "model_not_found"),
    texts=chat_completions_replies.chat_reply,
    tools=chat_completions_replies.chat_tools,
    thoughts=_chat_thoughts,
    encode=_encode_chat,
    stream_bytes=openai.stream_bytes,
    whole=lambda events: openai.answer_json(chat_completions_replies.complete(events)),
    failures=_OPENAI_FAILURES,
    late=_CHAT_LATE,
    opened=1,
    spoken=2,
    recordings=recordings.CHAT,
)
OLLAMA = RecordedInterface(
    row="ollama",
    model=ollama_replies.MODEL,
    produce_server=ollama.FakeOllama,
    module="vibe_llms.providers.ollama",
    connect=ollama_clients.produce_model,
    refuse=lambda words: ollama.failure(400, words),
    lines=True,
    texts=lambda *chunks: [ollama_replies.line(), *ollama_replies.text_reply(*chunks)],
    tools=ollama_replies.tools_reply,
    thoughts=_ollama_thoughts,
    encode=lambda events: [*map(ollama.encode_line, events)],
    stream_bytes=ollama.stream_bytes,
    whole=lambda events: ollama.answer_json(ollama_replies.gather(events)),
    failures={
        "limited": lambda **more: ollama.failure(429, "slow down", **more),
        "broken": lambda **more: ollama.failure(500, "runner stopped", **more),
        "overloaded": lambda **more: ollama.failure(503, "server busy", **more),
        "refused": lambda **more: ollama.failure(400, "no", **more),
        "unauthorized": lambda **more: ollama.failure(401, "unauthorized", **more),
    },
    late={"broken": {"error": "runner stopped"}},
    opened=1,
    spoken=2,
    recordings=recordings.OLLAMA,
)
BEDROCK = FramedInterface(
    row="bedrock",
    model=bedrock_clients.MODEL,
    module="vibe_llms.providers.bedrock",
    produce_server=bedrock.FakeBedrock,
    connect=bedrock_clients.produce_model,
    refuse=lambda words: bedrock.failure(400, "ValidationException", words),
    lost=bedrock.failure(400, "ValidationException", "The provided model identifier is invalid."),
    texts=bedrock_replies.text_reply,
    tools=bedrock_replies.tools_reply,
    thoughts=_bedrock_thoughts,
    encode=lambda events: [*map(bedrock.encode_event, events)],
    stream_bytes=bedrock.stream_bytes,
    whole=lambda events: bedrock.answer_json(bedrock_replies.accumulate(events)),
    failures={
        "limited": lambda **more: bedrock.failure(429, "ThrottlingException", "slow", **more),
        "broken": lambda **more: bedrock.failure(500, "InternalServerException", "oh", **more),
        "overloaded": lambda **more: bedrock.failure(
            503, "ServiceUnavailableException", "busy", **more
        ),
        "refused": lambda **more: bedrock.failure(400, "ValidationException", "no", **more),
        "unauthorized": lambda **more: bedrock.failure(
            403, "UnrecognizedClientException", "key", **more
        ),
    },
    late={
        "limited": {"throttlingException": {"message": "slow"}},
        "broken": {"modelStreamErrorException": {"message": "oh", "originalStatusCode": 500}},
        "overloaded": {"serviceUnavailableException": {"message": "busy"}},
    },
    opened=1,
    spoken=2,
    recordings=recordings.BEDROCK,
    signed=_remember_converse,
)
GEMINI = RecordedInterface(
    row="gemini",
    model=gemini_replies.MODEL,
    module="vibe_llms.providers.gemini",
    produce_server=gemini.FakeGemini,
    connect=gemini_clients.produce_model,
    refuse=lambda words: gemini.failure(400, "INVALID_ARGUMENT", words),
    lost=gemini.failure(404, "NOT_FOUND", "models/m is not found for API version v1beta"),
    texts=gemini_replies.text_reply,
    tools=gemini_replies.tools_reply,
    thoughts=_gemini_thoughts,
    encode=lambda events: [*map(strict.encode_event, events)],
    stream_bytes=gemini.stream_bytes,
    whole=lambda events: gemini.answer_json(gemini_replies.gather(events)),
    failures={
        "limited": lambda **more: gemini.failure(429, "RESOURCE_EXHAUSTED", "slow", **more),
        "broken": lambda **more: gemini.failure(500, "INTERNAL", "oh", **more),
        "overloaded": lambda **more: gemini.failure(503, "UNAVAILABLE", "busy", **more),
        "refused": lambda **more: gemini.failure(400, "INVALID_ARGUMENT", "no", **more),
        "unauthorized": lambda **more: gemini.failure(401, "UNAUTHENTICATED", "key", **more),
    },
    late={
        name: {"error": {"code": code, "message": "m", "status": word}}
        for name, code, word in (
            ("limited", 429, "RESOURCE_EXHAUSTED"),
            ("broken", 500, "INTERNAL"),
            ("overloaded", 503, "UNAVAILABLE"),
        )
    },
    opened=0,
    spoken=1,
    recordings=recordings.GEMINI,
    signed=lambda server, events: server.issued.remember(events, gemini_replies.MODEL),
)
SHOUT = HttpInterface(
    row="shout",
    model=shout.MODELS[0],
    module=shout.MODULE,
    produce_server=shout.FakeShout,
    connect=shout.produce_model,
    texts=shout.text_reply,
    tools=shout.tools_reply,
    thoughts=lambda thought, text, arguments: [
        shout.shout(text), *shout.tools_reply(("speak", arguments))
    ],
    encode=lambda events: [*map(shout.encode_event, events)],
    stream_bytes=shout.stream_bytes,
    whole=shout.answer_whole,
    refuse=lambda words: shout.failure(400, words),
    failures={
        "limited": lambda **more: shout.failure(429, "slow down", **more),
        "broken": lambda **more: shout.failure(500, "hoarse", **more),
        "overloaded": lambda **more: shout.failure(503, "busy", **more),
        "refused": lambda **more: shout.failure(400, "no", **more),
        "unauthorized": lambda **more: shout.failure(401, "who?", **more),
    },
    late={"broken": {"event": "hush", "kind": "hoarse", "says": "no voice"}},
    opened=0,
    spoken=1,
    extras={"module": shout.MODULE, "credential": "none"},
    thinks=False,
    caches=False,
)  # fmt: skip
#: The same interfaces at resources of Azure: only paths, keys and errors differ.
AZURE = {
    row: replace(
        usual,
        row=row,
        model=azure_clients.MODELS[row],
        produce_server=azure.FakeFoundry if usual is ANTHROPIC else azure.FakeAzure,
        connect=azure_clients.azure_model(row),
        recordings=recorded,
        lost=azure.LOST,
        maker=usual.row,
    )
    for row, usual, recorded in (
        ("azure", RESPONSES, azure_recordings.RESPONSES),
        ("azure-chat", CHAT, azure_recordings.CHAT),
        ("azure-anthropic", ANTHROPIC, azure_recordings.FOUNDRY),
    )
}
#: The same interfaces on Vertex AI.
VERTEX = {
    row: replace(
        usual,
        row=row,
        model=vertex_clients.MODELS[row],
        produce_server=vertex.FakeVertexAnthropic if usual is ANTHROPIC else vertex.FakeVertex,
        connect=vertex_clients.vertex_model(row),
        recordings=recorded,
        lost=vertex.lose("gone"),
        maker=usual.row,
        extras={
            "project": vertex.PROJECT,
            "location": vertex.LOCATION,
            # Otherwise a row without a key logs in.
            "credential": "key",
        },
    )
    for row, usual, recorded in (
        ("vertex", GEMINI, vertex_recordings.GOOGLE),
        ("vertex-anthropic", ANTHROPIC, vertex_recordings.ANTHROPIC),
    )
}
#: The rows of clouds, each with the row whose wire it speaks.
MAKERS = {row: one.maker for row, one in {**AZURE, **VERTEX}.items()}
#: One row for each wire of a vendor.
VENDORS = {one.row: one for one in (ANTHROPIC, RESPONSES, CHAT, OLLAMA, BEDROCK, GEMINI)}
SERVERS = {**VENDORS, **AZURE, **VERTEX, SHOUT.row: SHOUT}
EVERY: Mapping[str, Interface] = {
    **SERVERS,
    **{one.name: one for one in (LLAMACPP, SCRIPTED, CONTRACT)},
}
#: Of Azure's streams, those of OpenAI's interfaces are others: they have results of filters.
_STREAMED = [*VENDORS.values(), AZURE["azure"], AZURE["azure-chat"]]
RECORDED = [(one, name) for one in _STREAMED for name in one.recordings.names]


def slow_if_repeated(*rows: str, clouds: bool = False) -> Sequence[pytest.MarkDecorator]:
    """The marks of a case with these rows: slow if the row of a maker shows the same.

    At clouds only addresses, keys and errors differ. Tests of these have `clouds`: then only two of
    the three rows at Azure are slow, of which the third shows what Azure does otherwise.
    """
    repeating = ("azure-chat", "azure-anthropic") if clouds else MAKERS
    return (pytest.mark.slow,) if any(row in repeating for row in rows) else ()


def every(fits: Callable[[Interface], bool], *, clouds: bool = False) -> pytest.MarkDecorator:
    """Every interface of some kind; those that repeat others are left to the slow tests."""
    return pytest.mark.parametrize(
        "interface",
        [
            pytest.param(one, id=name, marks=slow_if_repeated(name, clouds=clouds))
            for name, one in EVERY.items()
            if fits(one)
        ],
    )


every_interface = every(lambda one: True)
every_server = every(lambda one: isinstance(one, HttpInterface))
every_server_of_clouds_too = every(lambda one: isinstance(one, HttpInterface), clouds=True)
every_vendor = every(lambda one: isinstance(one, RecordedInterface))
#: Every recorded stream; of those at Azure and on Vertex AI, two in the
#: ordinary run.
every_recording = pytest.mark.parametrize(
    ("interface", "name"),
    [
        pytest.param(
            *(one, name),
            id=f"{one.row}-{name}",
            marks=() if name in ("text", "tools") else slow_if_repeated(one.row),
        )
        for one, name in RECORDED
    ],
)
