"""Ollama's interface, on the server's side: chats, models, embeddings.

Source: `api/types.go` and `server/routes.go` of the server, and the package ollama 0.6.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import Content, ImageContent, ReasoningContent, TextualContent
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest
from vibe_llms.testing.wires.core import (
    AskedReply,
    Catalogue,
    RefusedRequest,
    ScriptedFailure,
    answer_json,
    convert,
    count_words,
    decode,
    decode_bytes,
    label,
    parse_arguments,
    produce_invoker,
)
from vibe_llms.testing.wires.ollama_replies import CREATED, Events, call, end, gather, line

CHAT = "/api/chat"
VERSION = "0.33.3"
CONTEXT_TOKENS = 131_072
EMBEDDED = 64
STOP_REASONS: dict[str, str] = {
    StopReason.FINISHED: "stop",
    StopReason.PAUSED: "stop",
    StopReason.REFUSED: "stop",
    StopReason.INVOCATIONS: "stop",
    StopReason.LENGTH: "length",
}
_STATUSES = {
    "refused": 400,
    "context-overflow": 400,
    "credential-refused": 401,
    "payment-required": 402,
    "model-unavailable": 404,
    "too-large": 413,
    "rate-limited": 429,
    "overloaded": 503,
}
_CAPABILITIES = ("completion", "tools", "thinking", "vision")


class _CalledFunction(Struct):
    name: str
    arguments: dict[str, Any] = {}


class _Call(Struct):
    function: _CalledFunction
    id: str = ""


class _Message(Struct):
    role: str
    content: str = ""
    thinking: str = ""
    images: list[str] | None = None
    tool_calls: list[_Call] | None = None
    tool_name: str = ""
    tool_call_id: str = ""


class _Function(Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class _Tool(Struct):
    function: _Function


class _Body(Struct):
    model: str
    messages: list[_Message] = []
    tools: list[_Tool] | None = None
    stream: bool | None = None


class _Embed(Struct):
    model: str
    input: str | list[str]
    dimensions: int | None = None


class OllamaWire:
    """The interface with requests to `/api`; it needs no key, but refuses a wrong one."""

    name = "ollama"

    def claims(self, request: ReceivedRequest) -> bool:
        """Return True if the path is below `/api`, or the root."""
        path = urlsplit(request.path).path
        return path == "/" or path.startswith("/api/")

    def authorize(self, request: ReceivedRequest, key: str) -> None:
        """Refuse a wrong key, as hosted servers do; a missing one is accepted."""
        if request.headers.get("authorization", f"Bearer {key}") != f"Bearer {key}":
            raise RefusedRequest("unauthorized", error="credential-refused")

    def asks(self, request: ReceivedRequest) -> bool:
        """Return True if the request asks for a chat."""
        return request.method == "POST" and urlsplit(request.path).path == CHAT

    def read(self, request: ReceivedRequest) -> AskedReply:
        """Return the conversation of a request."""
        body = decode(request)
        typed = convert(body, _Body)
        if not typed.model:
            raise RefusedRequest("model is required")
        if not typed.messages:
            raise RefusedRequest("there are no messages: the fake server loads no models")
        return AskedReply(
            interface=self.name,
            model=typed.model,
            canisters=tuple(_read_messages(typed.messages)),
            invokers=tuple(
                produce_invoker(
                    tool.function.name, tool.function.description, tool.function.parameters
                )
                for tool in typed.tools or ()
            ),
            streaming=typed.stream is not False,
            body=body,
            label=label(request),
        )

    def narrate(self, asked: AskedReply, usage: Usage) -> _Narrator:
        """Return the narrator of a chat."""
        return _Narrator(asked, usage)

    def answer(self, request: ReceivedRequest, catalogue: Catalogue) -> HttpAnswer:
        """Answer with the models, one of them, the version, or embeddings."""
        match (request.method, urlsplit(request.path).path):
            case ("GET" | "HEAD", "/"):
                return _say(200, b"" if request.method == "HEAD" else b"Ollama is running")
            case ("GET", "/api/version"):
                return answer_json({"version": VERSION})
            case ("GET", "/api/tags"):
                return answer_json({"models": [_list(name) for name in catalogue.models]})
            case ("POST", "/api/show"):
                body = decode(request)
                # The package sends `model`, older clients `name`.
                catalogue.require(str(body.get("model") or body.get("name") or ""))
                return answer_json(_show())
            case ("POST", "/api/embed"):
                return _embed(convert(decode(request), _Embed), catalogue)
            case _:
                raise RefusedRequest("404 page not found", status=404, code="page")

    def refuse(self, failure: ScriptedFailure) -> HttpAnswer:
        """Return an error as JSON, or as plain text for an unknown path."""
        if failure.code == "page":
            return _say(404, b"404 page not found")
        status, words = _name(failure)
        return answer_json({"error": words}, status=status)


class _Narrator:
    headers: Mapping[str, str] = {"content-type": "application/x-ndjson"}

    def __init__(self, asked: AskedReply, usage: Usage) -> None:
        self._asked = asked
        self._usage = usage
        self._said: Events = []
        self._calls = 0

    def begin(self) -> Iterable[bytes]:
        """Return nothing: the first line is the first chunk."""
        return ()

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Return a line for each chunk."""
        if reasoning:
            return self._send([line(thinking=chunk) for chunk in chunks])
        return self._send([line(chunk) for chunk in chunks])

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """Return a line with the whole call."""
        index, self._calls = self._calls, self._calls + 1
        identity = self._asked.name_call("call_", index)
        return self._send([line(tool_calls=[call(name, parse_arguments(pieces), identity, index)])])

    def fail(self, failure: ScriptedFailure) -> Iterable[bytes]:
        """Return a line with the error message."""
        if failure.error == "malformed":
            return [b'{"message":{"role\n']
        return [_encode({"error": _name(failure)[1]})]

    def end(self, reason: str) -> Iterable[bytes]:
        """Return the last line, with the counts."""
        return self._send([self._conclude(reason)])

    def whole(self, reason: str) -> Any:
        """Return all lines in one."""
        return {**gather([*self._said, self._conclude(reason)]), "model": self._asked.model}

    def _send(self, lines: Events) -> list[bytes]:
        self._said += lines
        return [_encode({**one, "model": self._asked.model}) for one in lines]

    def _conclude(self, reason: str) -> dict[str, Any]:
        usage = self._usage
        return end(
            STOP_REASONS.get(reason, reason),
            load_duration=1,
            prompt_eval_count=usage.input_tokens,
            prompt_eval_cached_count=usage.cache_read_tokens,
            prompt_eval_duration=1,
            # Ollama does not count reasoning apart.
            eval_count=usage.output_tokens + usage.reasoning_tokens,
            eval_duration=1,
        )


def _encode(line: Mapping[str, Any]) -> bytes:
    """Encode one line, escaped as Go does it, since some clients split lines at such characters."""
    encoded = msgspec.json.encode(line)
    for character in "\u2028\u2029<>&":
        encoded = encoded.replace(character.encode(), b"\\u%04x" % ord(character))
    return encoded + b"\n"


def _read_messages(messages: Sequence[_Message]) -> Iterable[Canister]:
    # Results of older clients have no id: they belong to the calls in their order.
    waiting: dict[str, str] = {}
    for index, message in enumerate(messages):
        contents: tuple[Content, ...] = tuple(
            ImageContent(decode_bytes(image, f"messages[{index}].images"))
            for image in message.images or ()
        )
        if message.content:
            contents = (TextualContent(message.content), *contents)
        match message.role:
            case "system":
                yield SupervisorCanister(contents=contents)
            case "user":
                yield UserCanister(contents=contents)
            case "assistant":
                if message.thinking:
                    contents = (ReasoningContent(message.thinking), *contents)
                if contents:
                    yield AssistantCanister(contents=contents)
                for number, made in enumerate(message.tool_calls or ()):
                    arguments = msgspec.json.encode(made.function.arguments).decode()
                    canister = InvocationCanister(
                        name=made.function.name, arguments=arguments, call=made.id
                    )
                    waiting[made.id or f"{index}.{number}"] = canister.identity
                    yield canister
            case "tool":
                name = message.tool_call_id or next(iter(waiting), "")
                yield ResultCanister(contents=contents, invocation=waiting.pop(name, ""))
            case role:
                raise RefusedRequest(
                    f"invalid role: {role}, must be one of [system user assistant tool]"
                )


def _name(failure: ScriptedFailure) -> tuple[int, str]:
    """Return the status and message of an error."""
    status = failure.status or _STATUSES.get(failure.error, 500)
    words = failure.message
    if failure.error == "context-overflow":
        words = f"the prompt is longer than the context length currently available ({words})"
    if failure.error == "model-unavailable":
        words = f"{words}: model not found, try pulling it first"
    return status, words


def _list(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": CREATED,
        "size": 1,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": _DETAILS,
    }


_DETAILS = {"format": "gguf", "family": "fake", "parameter_size": "1B", "quantization_level": "F16"}


def _show() -> dict[str, Any]:
    return {
        "details": _DETAILS,
        "model_info": {
            "general.architecture": "fake",
            "fake.context_length": CONTEXT_TOKENS,
        },
        "capabilities": _CAPABILITIES,
        "modified_at": CREATED,
    }


def _embed(asked: _Embed, catalogue: Catalogue) -> HttpAnswer:
    """Return vectors from hashes of the texts: equal texts have equal ones, others rarely."""
    catalogue.require(asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    size = asked.dimensions or EMBEDDED
    vectors = []
    for text in texts:
        data = b"".join(
            hashlib.sha256(b"%d %b" % (part, text.encode())).digest()
            for part in range(-(-size // 32))
        )
        numbers = [byte / 127.5 - 1 for byte in data[:size]]
        length = sum(number * number for number in numbers) ** 0.5
        vectors.append([number / length for number in numbers])
    count = sum(count_words(text) for text in texts)
    return answer_json({"model": asked.model, "embeddings": vectors, "prompt_eval_count": count})


def _say(status: int, text: bytes) -> HttpAnswer:
    headers = {"content-type": "text/plain", "content-length": str(len(text))}
    return HttpAnswer(status, headers, [text])
