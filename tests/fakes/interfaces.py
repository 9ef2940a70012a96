"""All interfaces at one table: for what has to hold of each of them alike.

Each has its strict fake, its recorded reply with tools, and the same few things said in its own
format, so that one test can be held with all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import (
    anthropic,
    clients,
    ollama,
    ollama_clients,
    openai,
    openai_clients,
    recordings,
    strict,
)
from tests.fakes.recordings import Recordings
from tests.fakes.server import Answer, FakeServer, Request
from tests.fakes.strict import Events
from vibe_llms.configuration import StorageSettings
from vibe_llms.credentials import Credential, Secret
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    ollama_replies,
    responses_replies,
)

#: What a request of Ollama's provider asks before its first chat.
_SHOW = "/api/show"


@dataclass(frozen=True)
class Interface:
    """One interface: `row` is its row in the shipped configuration.

    `texts` and `tools` make replies, `encode` their bytes event by event; of a reply of text the
    first `opened` events come before its first words and the first `spoken` hold these. `failures`
    are whole answers and `late` errors within a stream, each by a word for its class.
    """

    row: str
    model: str
    produce_server: Callable[..., Any]
    produce_model: Callable[..., Any]
    texts: Callable[..., Events]
    tools: Callable[..., Events]
    thoughts: Callable[[str, str, str], Events]
    encode: Callable[[Events], list[bytes]]
    stream_bytes: Callable[..., Answer]
    whole: Callable[[Events], Answer]
    failures: Mapping[str, Callable[..., Answer]]
    late: Mapping[str, Mapping[str, Any]]
    opened: int
    spoken: int
    recordings: Recordings
    remember: Callable[[Any, Events], None] = lambda server, events: None

    @property
    def address(self) -> str:
        """The model with its row before it."""
        return f"{self.row}/{self.model}"

    def configure(self, url: str, **settings: Any) -> dict[str, Any]:
        """A configuration whose row leads to a server."""
        row = {"base-url": url, "retries": 0}
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return {"providers": {self.row: {**row, **given}}}

    def keys(self, server: Any) -> Mapping[str, str]:
        """The key of the row, where it needs one."""
        return {self.row: server.key} if server.key else {}

    def open_session(
        self, server: Any, home: Path | None = None, **settings: Any
    ) -> AbstractAsyncContextManager[Session]:
        """A session whose row leads to a server; its archive lies in `home`, if that is given."""
        archive = None
        if home is not None:
            archive = DirectoryArchive(home, StorageSettings(durability="fast"))
        configuration = self.configure(server.url, **settings)
        return open_session(configuration=configuration, archive=archive, keys=self.keys(server))

    def escape(self, event: Mapping[str, Any]) -> bytes:
        """An event on the wire of a server that escapes whatever is not ASCII."""
        data = json.dumps(event).encode()
        return data + b"\n" if self is OLLAMA else b"data: " + data + b"\n\n"

    def refuse(self, words: str) -> Answer:
        """A refusal in these words."""
        match self.row:
            case "anthropic":
                return anthropic.failure(400, "invalid_request_error", words)
            case "ollama":
                return ollama.failure(400, words)
            case _:
                return openai.failure(400, "invalid_request_error", words)

    def stream(self, events: Events, **faults: Any) -> Answer:
        """A reply as a stream, each event as a chunk of its own."""
        return self.stream_bytes(self.encode(events), **faults)


class Player(FakeServer):
    """Answers with one reply after the other and looks at nothing, which would take its time."""

    def __init__(self, replies: Sequence[Answer]) -> None:
        super().__init__()
        self.replies = list(replies)
        self.asked: list[Request] = []

    def respond(self, request: Request) -> Answer:
        if request.path == _SHOW:
            return ollama.answer_json({"capabilities": ["completion", "tools", "thinking"]})
        self.asked.append(request)
        return self.replies.pop(0)


def asked(server: FakeServer) -> list[Request]:
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


def _remember_message(server: Any, events: Events) -> None:
    """What a server signed of a reply, although it is cut, it knows when it comes back."""
    content = anthropic.accumulate(events)["content"]
    server.issued.remember(content, ANTHROPIC.model)


def _remember_response(server: Any, events: Events) -> None:
    server.remember(events[-1]["response"]["output"], RESPONSES.model)


def _openai_model(interface: str) -> Callable[..., Any]:
    async def produce(url: str, **options: Any) -> Any:
        return await openai_clients.produce_openai_model(interface, url, **options)

    return produce


def _encode_chat(events: Events) -> list[bytes]:
    return [*map(strict.encode_event, events), b"data: [DONE]\n\n"]


_OPENAI_FAILURES: Mapping[str, Callable[..., Answer]] = {
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

ANTHROPIC = Interface(
    row="anthropic",
    model="claude-opus-5",
    produce_server=anthropic.FakeAnthropic,
    produce_model=clients.produce_model,
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
    remember=_remember_message,
)
RESPONSES = Interface(
    row="openai",
    model=openai_clients.MODELS["responses"],
    produce_server=openai.FakeOpenAI,
    produce_model=_openai_model("responses"),
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
    remember=_remember_response,
)
CHAT = Interface(
    row="openai-chat",
    model=openai_clients.MODELS["chat"],
    produce_server=openai.FakeOpenAI,
    produce_model=_openai_model("chat"),
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
OLLAMA = Interface(
    row="ollama",
    model=ollama_replies.MODEL,
    produce_server=ollama.FakeOllama,
    produce_model=ollama_clients.produce_model,
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
INTERFACES = {interface.row: interface for interface in (ANTHROPIC, RESPONSES, CHAT, OLLAMA)}
RECORDED = [(one, name) for one in INTERFACES.values() for name in one.recordings.names]

every_interface = pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES)
#: Every recorded stream of every interface.
every_recording = pytest.mark.parametrize(
    ("interface", "name"), RECORDED, ids=[f"{one.row}-{name}" for one, name in RECORDED]
)


def key_of(interface: Interface, key: str) -> Credential:
    """A credential with a key."""
    return Credential(interface.row, given=Secret(key))
