"""OpenAI's Chat Completions, on the server's side.

Source: the types of openai 3.54.0. Reasoning is sent in `reasoning_content`, as by servers of open
models; OpenAI's own sends none by this interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

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
from vibe_llms.messages.contents import Content, ReasoningContent
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest
from vibe_llms.testing.wires.chat_completions_replies import (
    OPENING,
    Events,
    call_chunks,
    chunk,
    complete,
    text_chunks,
)
from vibe_llms.testing.wires.core import (
    AskedReply,
    Catalogue,
    RefusedRequest,
    ScriptedFailure,
    convert,
    decode,
    encode_event,
    label,
    produce_invoker,
)
from vibe_llms.testing.wires.openai import (
    HEADERS,
    MODELS,
    PREFIX,
    authorize,
    count_usage,
    list_models,
    name_error,
    read_parts,
    refuse,
)

CHAT = "/v1/chat/completions"
STOP_REASONS: dict[str, str] = {
    StopReason.FINISHED: "stop",
    StopReason.PAUSED: "stop",
    StopReason.INVOCATIONS: "tool_calls",
    StopReason.LENGTH: "length",
    StopReason.REFUSED: "content_filter",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


class _Function(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(Struct):
    type: str
    function: _Function | None = None


class _CalledFunction(Struct):
    name: str
    arguments: str


class _Call(Struct):
    id: str
    function: _CalledFunction


class _Message(Struct):
    role: str
    content: Any = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _StreamOptions(Struct):
    include_usage: bool | None = False


class _Body(Struct):
    model: str
    messages: list[_Message]
    tools: list[_Tool] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None


class ChatCompletionsWire:
    """OpenAI's interface that most other servers speak too."""

    name = "chat-completions"

    def claims(self, request: ReceivedRequest) -> bool:
        """Return True for all paths below `/v1`; Anthropic and Responses are asked first."""
        return urlsplit(request.path).path.startswith(f"{PREFIX}/")

    def authorize(self, request: ReceivedRequest, key: str) -> None:
        """Check the key in `authorization`."""
        authorize(request, key)

    def asks(self, request: ReceivedRequest) -> bool:
        """Return True if the request asks for a completion."""
        return request.method == "POST" and urlsplit(request.path).path == CHAT

    def read(self, request: ReceivedRequest) -> AskedReply:
        """Return the conversation of a request."""
        body = decode(request)
        if not body.get("model"):
            raise RefusedRequest("you must provide a model parameter")
        typed = convert(body, _Body)
        if not typed.messages:
            raise RefusedRequest(
                "Invalid 'messages': empty array. Expected an array with minimum length 1."
            )
        tools = [tool.function for tool in typed.tools or () if tool.function is not None]
        return AskedReply(
            interface=self.name,
            model=typed.model,
            canisters=tuple(_read_messages(typed.messages)),
            invokers=tuple(
                produce_invoker(tool.name, tool.description or "", tool.parameters or {})
                for tool in tools
            ),
            streaming=bool(typed.stream),
            body=body,
            label=label(request),
        )

    def narrate(self, asked: AskedReply, usage: Usage) -> _Narrator:
        """Return the narrator of a completion."""
        return _Narrator(asked, usage)

    def answer(self, request: ReceivedRequest, catalogue: Catalogue) -> HttpAnswer:
        """Answer with the list of models, or one of them."""
        path = urlsplit(request.path).path
        if request.method == "GET" and (path == MODELS or path.startswith(f"{MODELS}/")):
            return list_models(path, catalogue)
        raise RefusedRequest(f"Invalid URL ({request.method} {path})", status=404)

    def refuse(self, failure: ScriptedFailure) -> HttpAnswer:
        """Return an error object."""
        return refuse(failure)


class _Narrator:
    headers: Mapping[str, str] = {"content-type": "text/event-stream; charset=utf-8", **HEADERS}

    def __init__(self, asked: AskedReply, usage: Usage) -> None:
        self._asked = asked
        self._usage = count_usage(usage, prompt="prompt", reply="completion")
        self._head = {"id": f"chatcmpl-{asked.label}", "created": 1, "model": asked.model}
        self._said: Events = [chunk(OPENING, head=self._head)]
        self._calls = 0

    def begin(self) -> Iterable[bytes]:
        """Return a chunk with the role."""
        return [encode_event(one, named=False) for one in self._said]

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Return chunks of text."""
        member = "reasoning_content" if reasoning else "content"
        return self._send(text_chunks(*chunks, member=member, head=self._head))

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """Return chunks of one call."""
        index, self._calls = self._calls, self._calls + 1
        call = self._asked.name_call("call_", index)
        return self._send(call_chunks(index, name, *pieces, call=call, head=self._head))

    def fail(self, failure: ScriptedFailure) -> Iterable[bytes]:
        """Return an error object in place of a chunk."""
        if failure.error == "malformed":
            return [b'data: {"choices":[{"delta"\n\n']
        return [encode_event({"error": name_error(failure)[1]}, named=False)]

    def end(self, reason: str) -> Iterable[bytes]:
        """Return the stop reason, the usage if requested, and the mark of the end."""
        last = [chunk({}, STOP_REASONS.get(reason, reason), head=self._head)]
        if (self._asked.body.get("stream_options") or {}).get("include_usage"):
            last.append(chunk(usage=self._usage, head=self._head))
        return [*self._send(last), b"data: [DONE]\n\n"]

    def whole(self, reason: str) -> Any:
        """Return the completion."""
        last = chunk({}, STOP_REASONS.get(reason, reason), head=self._head)
        whole = complete([*self._said, last, chunk(usage=self._usage, head=self._head)])
        if not self._calls:
            message = whole["choices"][0]["message"]
            message["content"] = message["content"] or ""
        return whole

    def _send(self, events: Events) -> list[bytes]:
        self._said += events
        return [encode_event(one, named=False) for one in events]


def _read_messages(messages: Sequence[_Message]) -> Iterable[Canister]:
    waiting: dict[str, str] = {}
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        if message.role not in _ROLES:
            raise RefusedRequest(
                f"Invalid value: '{message.role}'. Supported values are: "
                f"{', '.join(repr(role) for role in _ROLES)}."
            )
        if message.role == "tool":
            yield _read_result(message, waiting, index)
            continue
        if waiting:
            _miss(waiting)
        contents: tuple[Content, ...] = ()
        # With calls, empty text, null and no text mean the same.
        if message.content is not None and not (message.tool_calls and message.content == ""):
            contents = read_parts(message.content, where)
        match message.role:
            case "assistant":
                if message.reasoning_content:
                    contents = (ReasoningContent(message.reasoning_content), *contents)
                if not contents and not message.tool_calls:
                    raise RefusedRequest(
                        f"Invalid value for 'content': expected a string in '{where}'."
                    )
                if contents:
                    yield AssistantCanister(contents=contents)
                for call in message.tool_calls or ():
                    canister = InvocationCanister(
                        name=call.function.name, arguments=call.function.arguments, call=call.id
                    )
                    waiting[call.id] = canister.identity
                    yield canister
            case _ if not contents:
                raise RefusedRequest(
                    f"Invalid value for 'content': expected a string in '{where}'."
                )
            case "user":
                yield UserCanister(contents=contents)
            case _:
                yield SupervisorCanister(contents=contents)
    if waiting:
        _miss(waiting)


def _read_result(message: _Message, waiting: dict[str, str], index: int) -> ResultCanister:
    call = message.tool_call_id
    if call is None:
        raise RefusedRequest(f"Missing required parameter: 'messages[{index}].tool_call_id'.")
    if call not in waiting:
        raise RefusedRequest(
            "Invalid parameter: messages with role 'tool' must be a response to a preceding "
            "message with 'tool_calls'."
        )
    contents = read_parts(message.content, f"messages[{index}].content")
    return ResultCanister(contents=contents, invocation=waiting.pop(call))


def _miss(waiting: Iterable[str]) -> None:
    raise RefusedRequest(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{', '.join(waiting)}"
    )
