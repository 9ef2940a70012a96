"""A strict fake of Ollama's own interface.

Every request is read as the server reads it, by its own types and their rules (`api/types.go`), and
validated with the request types of the official package; then come the rules of the models'
templates, that the server does not check and many a model fails by: roles alternate, system text
comes first, every call is answered. What breaks one is answered with 400 and remembered in
`refusals`.

A prompt that is too long is cut as the real server cuts it, or refused where the server is new
enough and was asked to.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import ollama._types as official
import pydantic

from tests.fakes import strict
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Refused, StrictServer, encode
from vibe_llms.testing.wires.ollama_replies import (
    MODEL,
    gather,
    text_reply,
)

_ROLES = ("system", "user", "assistant", "tool")
_DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|ms|s|m|h))+")
_OPTIONS: dict[str, Any] = {
    "num_ctx": int,
    "num_predict": int,
    "top_k": int,
    "seed": int,
    "num_keep": int,
    "temperature": float,
    "top_p": float,
    "stop": list[str],
}
_LEVELS = ("low", "medium", "high", "max")


class Property(msgspec.Struct):
    """`ToolProperty` of the server; what it does not know it passes over."""

    anyOf: list[Property] | None = None  # noqa: N815
    type: str | list[str] | None = None
    items: Any = None
    description: str | None = None
    enum: list[Any] | None = None
    properties: dict[str, Property] | None = None
    required: list[str] | None = None


class Parameters(msgspec.Struct):
    """`ToolFunctionParameters` of the server."""

    properties: dict[str, Property]
    type: str
    required: list[str] | None = None


class Function(msgspec.Struct):
    """`ToolFunction` of the server."""

    name: str
    parameters: Parameters
    description: str = ""


class Tool(msgspec.Struct):
    """`Tool` of the server."""

    type: str
    function: Function


class CalledFunction(msgspec.Struct):
    """`ToolCallFunction` of the server."""

    name: str
    arguments: dict[str, Any]
    index: int = 0


class Call(msgspec.Struct):
    """`ToolCall` of the server."""

    function: CalledFunction
    id: str = ""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """`Message` of the server."""

    role: str
    content: str
    thinking: str = ""
    images: list[str] = []
    tool_calls: list[Call] = []
    tool_name: str = ""
    tool_call_id: str = ""


class ChatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`ChatRequest` of the server."""

    model: str
    messages: list[Message]
    options: dict[str, Any] = {}
    stream: bool = True
    format: Any = None
    keep_alive: float | str | None = None
    tools: list[Tool] = []
    think: bool | str | None = None
    truncate: bool = True
    shift: bool = True


@dataclass
class FakeModel:
    """A model of the server; `trained` is the context that it was made for."""

    capabilities: Sequence[str] | None = ("completion", "tools", "thinking", "vision")
    trained: int = 40_960
    family: str = "qwen3"


def count_tokens(text: str) -> int:
    """The tokens of a text by a tokenizer like those of today: words, cut where they are long."""
    pieces = re.findall(r" ?[^\W\d_]+|\d{1,3}|[^\w\s]{1,3}|_+|\s+(?=\s)", text)
    return sum((len(piece.strip()) + 6) // 7 or 1 for piece in pieces)


def count_message(message: Message) -> int:
    """The tokens of a message with what its template puts around it."""
    calls = sum(
        count_tokens(json.dumps(call.function.arguments)) + 8 for call in message.tool_calls
    )
    return count_tokens(message.content) + calls + 768 * len(message.images) + 5


@dataclass
class Served:
    """What a request was answered with: the tokens of the prompt, whole and as it was read."""

    whole: int = 0
    read: int = 0
    window: int = 0


class FakeOllama(StrictServer):
    """The server. `refuses_long` and `reports_cached` are what newer servers
    do, `counts_cached` what all but a few old ones do; `largest` is a context that the machine has
    no memory beyond.
    """

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, FakeModel] = {MODEL: FakeModel()}
        self.served: list[Served] = []
        self.refuses_long = True
        self.reports_cached = True
        self.counts_cached = True
        self.largest = 1_000_000
        self.default_window = 4_096
        self.describes = True
        self._cached: list[str] = []
        self.count: Callable[[Message], int] = count_message

    @property
    def chats(self) -> list[Any]:
        """The bodies of the chats."""
        return [request.json for request in self.requests if request.path == "/api/chat"]

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return failure(401, "unauthorized")
        match request.path:
            case "/api/tags":
                return self._list()
            case "/api/show":
                return self._show(request.json["model"])
            case "/api/embed":
                return self._embed(request.json)
            case "/api/pull":
                return self._pull(request.json["model"])
            case "/api/chat":
                return self._chat(request)
        return HttpAnswer(404, {"content-type": "text/plain"}, [b"404 page not found"])

    def _list(self) -> HttpAnswer:
        return answer_json(
            {
                "models": [
                    {
                        "name": name,
                        "model": name,
                        "size": 5_200_000_000,
                        "digest": "sha256:0",
                        "details": {
                            "family": model.family,
                            "parameter_size": "8.2B",
                            "quantization_level": "Q4_K_M",
                        },
                    }
                    for name, model in self.models.items()
                ]
            }
        )

    def _show(self, name: str) -> HttpAnswer:
        if not self.describes:
            return failure(500, "it is not known")
        if name not in self.models:
            return failure(404, f"model '{name}' not found")
        model = self.models[name]
        shown: dict[str, Any] = {
            "details": {"family": model.family},
            "model_info": {
                "general.architecture": model.family,
                f"{model.family}.context_length": model.trained,
            },
        }
        if model.capabilities is not None:
            shown["capabilities"] = list(model.capabilities)
        return answer_json(shown)

    def _embed(self, body: Mapping[str, Any]) -> HttpAnswer:
        official.EmbedRequest.model_validate(body, extra="forbid")
        if body["model"] not in self.models:
            return failure(404, f"model '{body['model']}' not found")
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        counts = [count_tokens(text) for text in texts]
        if max(counts, default=0) > 512 and body.get("truncate") is False:
            return failure(400, "the input length exceeds the context length")
        size = body.get("dimensions", 3)
        vectors = [[len(text) / 100, 0.5, -1.0][:size] for text in texts]
        return answer_json({"embeddings": vectors, "prompt_eval_count": sum(counts)})

    def _pull(self, name: str) -> HttpAnswer:
        if name not in ("qwen3:8b", "phi4"):
            return stream([{"status": "pulling manifest"}, {"error": "file does not exist"}])
        self.models[name] = FakeModel()
        part = {"status": "pulling 1", "digest": "sha256:1", "total": 10}
        return stream(
            [{"status": "pulling manifest"}, {**part, "completed": 4}, {**part, "completed": 10},
             {"status": "success"}]
        )  # fmt: skip

    def _chat(self, request: ReceivedRequest) -> HttpAnswer:
        try:
            chat = read_request(request.body)
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, str(error))
        model = self.models.get(chat.model)
        if model is None:
            return failure(404, f"model '{chat.model}' not found")
        if complaint := _complain(chat, model):
            return failure(400, complaint)
        served = self._read_prompt(chat, model)
        if served is None:
            return failure(400, "the prompt is longer than the context length currently available")
        self.served.append(served)
        reply = self.next_reply(request, lambda: text_reply("Hello."))
        if isinstance(reply, HttpAnswer):
            return reply
        lines = [dict(line) for line in reply]
        if lines[-1].get("done"):
            lines[-1] = {**self._metrics(chat, served), **lines[-1]}
        if chat.stream:
            return stream(lines)
        return answer_json(gather(lines))

    def _read_prompt(self, chat: ChatRequest, model: FakeModel) -> Served | None:
        """Read the prompt as far as it fits; see `chatPrompt` of the server."""
        window = min(chat.options.get("num_ctx", self.default_window), model.trained, self.largest)
        tools = sum(count_tokens(json.dumps(msgspec.to_builtins(tool))) for tool in chat.tools)
        sizes = [self.count(message) for message in chat.messages]
        whole = sum(sizes) + tools
        if whole <= window:
            return Served(whole, whole, window)
        if self.refuses_long and not chat.truncate:
            return None
        for start in range(1, len(sizes)):
            system = sum(
                size
                for size, message in zip(sizes[:start], chat.messages, strict=False)
                if message.role == "system"
            )
            read = system + sum(sizes[start:]) + tools
            if read <= window:
                return Served(whole, read, window)
        # Even the last message alone does not fit: the runner cuts its tokens.
        return Served(whole, window, window)

    def _metrics(self, chat: ChatRequest, served: Served) -> dict[str, Any]:
        texts = [message.content for message in chat.messages]
        same = 0
        for text, cached in zip(texts, self._cached, strict=False):
            if text != cached:
                break
            same += 1
        self._cached = texts
        kept = 0 if served.read < served.whole else sum(map(self.count, chat.messages[:same]))
        metrics: dict[str, Any] = {"prompt_eval_count": served.read, "eval_count": 7}
        if self.reports_cached:
            metrics["prompt_eval_cached_count"] = kept
        elif not self.counts_cached:
            metrics["prompt_eval_count"] = served.read - kept
            if not metrics["prompt_eval_count"]:
                del metrics["prompt_eval_count"]
        return metrics


def read_request(data: bytes) -> ChatRequest:
    """The request as the server reads it; `Refused` where it, or a template, would not."""
    try:
        json.dumps(json.loads(data.decode()), ensure_ascii=False).encode()
        chat = msgspec.json.decode(data, type=ChatRequest)
        official.ChatRequest.model_validate(json.loads(data), extra="ignore")
    except (ValueError, pydantic.ValidationError) as error:
        raise Refused(f"the body is not what the server reads: {error}") from error
    for name, value in chat.options.items():
        if name not in _OPTIONS:
            raise Refused(f"invalid option provided: {name}")
        try:
            msgspec.convert(value, _OPTIONS[name])
        except msgspec.ValidationError as error:
            raise Refused(f"option {name!r} has the wrong type: {error}") from error
    if chat.format is not None and chat.format != "json" and not isinstance(chat.format, dict):
        raise Refused(f"invalid format: {chat.format!r}")
    if isinstance(chat.keep_alive, str) and not _DURATION.fullmatch(chat.keep_alive):
        raise Refused(f"time: invalid duration {chat.keep_alive!r}")
    if isinstance(chat.think, str) and chat.think not in _LEVELS:
        raise Refused(f"invalid think value: {chat.think!r}")
    _check_messages(chat.messages)
    return chat


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise Refused("there are no messages, so nothing is asked")
    previous = "system"
    waiting: list[tuple[str, str]] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        role = message.role
        if role not in _ROLES:
            raise Refused(f"invalid role: {role}, must be one of {_ROLES}")
        if role == "system" and index:
            raise Refused("System message must be at the beginning")
        if role == previous and role in ("user", "assistant"):
            raise Refused(f"Conversation roles must alternate: {role} after {previous}")
        if previous == "system" and role not in ("system", "user"):
            raise Refused("Conversation roles must begin with a user's")
        if not (message.content.strip() or message.images or message.tool_calls):
            raise Refused(f"a message of {role} that says nothing")
        _check_images(message)
        if role == "tool":
            if not waiting or waiting[0] != (message.tool_call_id, message.tool_name):
                raise Refused(f"a result {message.tool_call_id!r} out of its place: {waiting}")
            waiting.pop(0)
        elif waiting:
            raise Refused(f"calls without a result: {waiting}")
        if message.tool_calls and role != "assistant":
            raise Refused(f"a call of {role}")
        for call in message.tool_calls:
            if not call.id or call.id in seen or not call.function.name:
                raise Refused(f"a call {call.id!r} that is not the only one of its identity")
            seen.add(call.id)
            waiting.append((call.id, call.function.name))
        previous = role
    if waiting or previous in ("assistant", "system"):
        raise Refused("the last message asks nothing")


def _check_images(message: Message) -> None:
    if message.images and message.role != "user":
        raise Refused(f"a picture of {message.role}")
    for image in message.images:
        try:
            data = base64.b64decode(image, validate=True)
        except ValueError as error:
            raise Refused(f"illegal base64 data: {error}") from error
        if not data:
            raise Refused("an image without data")


def _complain(chat: ChatRequest, model: FakeModel) -> str:
    capabilities = model.capabilities or ("completion", "tools", "thinking", "vision")
    if chat.tools and "tools" not in capabilities:
        return f"registry.ollama.ai/library/{chat.model} does not support tools"
    if chat.think and "thinking" not in capabilities:
        return f'"{chat.model}" does not support thinking'
    if any(message.images for message in chat.messages) and "vision" not in capabilities:
        return "this model is missing data required for image input"
    return ""


def failure(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """An error as the server sends it."""
    answer = answer_json({"error": message}, status=status)
    answer.headers.update(headers or {})
    return answer


def answer_json(body: Any, *, status: int = 200) -> HttpAnswer:
    """A whole body, with its length."""
    return strict.answer_json(body, status=status)


def stream(lines: Sequence[Mapping[str, Any]], **faults: Any) -> HttpAnswer:
    """Lines as a stream, each as an HTTP chunk of its own."""
    return stream_bytes([encode_line(line) for line in lines], **faults)


def stream_bytes(chunks: Sequence[bytes], **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    return HttpAnswer(200, {"content-type": "application/x-ndjson"}, chunks, **faults)


def encode_line(line: Mapping[str, Any]) -> bytes:
    """One line on the wire."""
    return f"{encode(line)}\n".encode()
