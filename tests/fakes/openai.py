"""A strict fake of OpenAI's two interfaces, Chat Completions and Responses.

Every request is validated with the official package's own request types, nothing besides them being
allowed at any depth, and then with the rules that the real server is known to enforce: each call
answered once and directly, unique identities, reasoning unaltered and with what followed it, text
in every message. What breaks one is answered with 400 and remembered in `refusals`. With
`template` the rules of local servers' chat templates hold too: one system message, at the head,
and user and assistant in turn.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from openai.types import EmbeddingCreateParams
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses import ResponseOutputMessageParam
from openai.types.responses.easy_input_message_param import EasyInputMessageParam
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from openai.types.responses.response_input_item_param import Message, ResponseInputItemParam

from tests.fakes import strict
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Refused, StrictServer, decode, dump, encode_event, validate
from vibe_llms.testing.wires.chat_completions_replies import (
    chat_reply,
    complete,
)
from vibe_llms.testing.wires.responses_replies import (
    message,
    response_reply,
)

KEY = "sk-proj-test-0123456789abcdefghijklmnop"
CHAT = "/chat/completions"
RESPONSES = "/responses"
COUNT = "/responses/input_tokens"
EMBEDDINGS = "/embeddings"
#: The models that make vectors, and how many numbers one has.
EMBEDDERS = {"text-embedding-3-small": 16, "text-embedding-ada-002": 16}
_LONGEST_TEXT, _MOST_TEXTS, _MOST_TOKENS = 8192, 2048, 300_000
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_CALL = 40
_LONGEST_CACHE_KEY = 64
_REASONING_MODELS = ("gpt-5", "gpt-6", "o1", "o3", "o4")
_ROLES: dict[str, Any] = {
    "developer": ChatCompletionDeveloperMessageParam,
    "system": ChatCompletionSystemMessageParam,
    "user": ChatCompletionUserMessageParam,
    "assistant": ChatCompletionAssistantMessageParam,
    "tool": ChatCompletionToolMessageParam,
}
_COUNTED = tuple(InputTokenCountParams.__annotations__)


class FakeOpenAI(StrictServer):
    """The server of both interfaces. `responses` are the stored responses by their identity,
    `issued` the items that were ever sent, with the model that sent them.
    """

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key)
        self.issued: dict[str, str] = {}
        self.responses: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.template = False
        self.short_calls = False
        self.members: tuple[str, ...] = ()
        self.count: Any = 7
        self.models: Any = []
        self.encoding = "float"
        self.shuffled = False

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return failure(401, "invalid_request_error", "Incorrect API key", "invalid_api_key")
        path = request.path
        if path == "/models":
            return answer_json(self.models if isinstance(self.models, dict | list) else {})
        if path == EMBEDDINGS:
            return self._embed(request)
        if path not in (CHAT, RESPONSES, COUNT):
            return failure(404, "invalid_request_error", f"Invalid URL (POST {path})")
        try:
            if path == CHAT:
                check_chat(request, self)
            else:
                check_response(request, self, counting=path == COUNT)
        except Refused as error:
            self.refusals.append(str(error))
            status = 404 if error.code == "previous_response_not_found" else 400
            return failure(status, "invalid_request_error", str(error), error.code)
        if path == COUNT:
            return answer_json({"object": "response.input_tokens", "input_tokens": self.count})
        reply = self.next_reply(
            request,
            lambda: chat_reply("Hello.") if path == CHAT else response_reply(message("Hello.")),
        )
        if isinstance(reply, HttpAnswer):
            return reply
        if path == CHAT:
            return stream(reply) if request.json.get("stream") else answer_json(complete(reply))
        return self._answer_response(request, reply)

    def _embed(self, request: ReceivedRequest) -> HttpAnswer:
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, HttpAnswer):
            return reply
        try:
            texts = check_embedding(request)
        except Refused as error:
            self.refusals.append(str(error))
            kind = error.code if error.code == "max_tokens_per_request" else "invalid_request_error"
            status = 404 if error.code == "model_not_found" else 400
            return failure(status, kind, str(error), error.code or None)
        asked = request.json
        size = asked.get("dimensions", EMBEDDERS[asked["model"]])
        encoding = asked.get("encoding_format", self.encoding)
        items: list[dict[str, Any]] = [
            {
                "object": "embedding",
                "index": place,
                "embedding": encode_vector(text, size, encoding),
            }
            for place, text in enumerate(texts)
        ]
        used = sum(map(_count_tokens, texts))
        return answer_json(
            {
                "object": "list",
                "data": items[::-1] if self.shuffled else items,
                "model": asked["model"],
                "usage": {"prompt_tokens": used, "total_tokens": used},
            }
        )

    def _answer_response(
        self, request: ReceivedRequest, events: Sequence[Mapping[str, Any]]
    ) -> HttpAnswer:
        whole = events[-1].get("response") or {}
        self.remember(whole.get("output", ()), request.json["model"])
        if request.json.get("store") is not False:
            said = [*_history(request.json, self), *whole.get("output", ())]
            self.responses[whole["id"]] = said
        return stream(events, done=False) if request.json.get("stream") else answer_json(whole)

    def remember(self, items: Sequence[Mapping[str, Any]], model: str) -> None:
        for item in items:
            self.issued[dump(item)] = model


# Vectors.


def check_embedding(request: ReceivedRequest) -> Sequence[str]:
    """The texts of a request; `Refused` for what the real server refuses."""
    body = decode(request.body)
    validate(EmbeddingCreateParams, body)
    if body["model"] not in EMBEDDERS:
        raise Refused(f"The model `{body['model']}` does not exist", "model_not_found")
    if "dimensions" in body and not body["model"].startswith("text-embedding-3"):
        raise Refused("This model does not support specifying dimensions.")
    texts: Sequence[str] = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if not texts or len(texts) > _MOST_TEXTS or not all(texts):
        raise Refused("'$.input' is invalid. Please check the API reference.")
    for place, text in enumerate(texts):
        if _count_tokens(text) > _LONGEST_TEXT:
            raise Refused(f"Invalid 'input[{place}]': maximum input length is 8192 tokens.")
    used = sum(map(_count_tokens, texts))
    if used > _MOST_TOKENS:
        message = f"Requested {used} tokens, max 300000 tokens per request"
        raise Refused(message, "max_tokens_per_request")
    return texts


def encode_vector(text: str, size: int, encoding: str = "float") -> Any:
    """A vector of length 1 from the text: as numbers, or as the base64 of single floats."""
    numbers = [0.0] * size
    numbers[len(text) % size] = 1.0
    if encoding == "float":
        return numbers
    return base64.b64encode(struct.pack(f"<{size}f", *numbers)).decode()


def _count_tokens(text: str) -> int:
    return -(-len(text) // 4)


# Answers.


def failure(
    status: int,
    kind: str,
    message: str = "m",
    code: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> HttpAnswer:
    """An error as the server sends it."""
    error = {"message": message, "type": kind, "param": None, "code": code or None}
    answer = answer_json({"error": error}, status=status)
    answer.headers.update(headers or {})
    return answer


def answer_json(body: Any, *, status: int = 200) -> HttpAnswer:
    """A whole body, with its length."""
    return strict.answer_json(body, status=status, x_request_id="req_1")


def stream(events: Sequence[Mapping[str, Any]], *, done: bool = True, **faults: Any) -> HttpAnswer:
    """Events as a stream, each as an HTTP chunk of its own."""
    chunks = [encode_event(event) for event in events]
    return stream_bytes([*chunks, b"data: [DONE]\n\n"] if done else chunks, **faults)


def stream_bytes(chunks: Sequence[bytes], **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    headers = {"content-type": "text/event-stream; charset=utf-8", "x-request-id": "req_1"}
    return HttpAnswer(200, headers, chunks, **faults)


# What the real servers refuse.


def _check_cache_key(body: Mapping[str, Any]) -> None:
    if len(body.get("prompt_cache_key") or "") > _LONGEST_CACHE_KEY:
        raise Refused("'prompt_cache_key': string too long; expected at most 64 characters")


def _check_tools(body: Mapping[str, Any]) -> None:
    names = [tool.get("function", tool).get("name") for tool in body.get("tools") or ()]
    named = [name for name in names if name is not None]
    for name in named:
        if not _NAME.fullmatch(name):
            raise Refused(f"tools: {name!r} does not match '^[a-zA-Z0-9_-]+$'")
    if len(set(named)) != len(named):
        raise Refused("tools: names must be unique")
    if "tools" in body and not names:
        raise Refused("tools: [] is too short")
    for member in ("tool_choice", "parallel_tool_calls"):
        if member in body and not names:
            raise Refused(f"'{member}' is only allowed when 'tools' are specified.")
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("function", choice).get("name") not in named:
        raise Refused(f"Tool choice {choice} not found in 'tools'")


def _check_schema(schema: Mapping[str, Any]) -> None:
    if schema.get("strict"):
        inner = schema["schema"]
        closed = inner.get("additionalProperties") is False
        if inner.get("type") == "object" and not (
            closed and set(inner.get("required", ())) == set(inner.get("properties", ()))
        ):
            raise Refused("Invalid schema for response_format: strict")
    if not _NAME.fullmatch(schema["name"]):
        raise Refused("response_format: bad name")


def check_chat(request: ReceivedRequest, server: FakeOpenAI) -> None:
    """Raise `Refused` for what Chat Completions would not accept."""
    body = decode(request.body)
    streams = body.get("stream")
    kind: Any = CompletionCreateParamsStreaming if streams else CompletionCreateParamsNonStreaming
    validate(kind, {**body, "messages": []})
    if not streams and "stream_options" in body:
        raise Refused("'stream_options' is only allowed when 'stream' is enabled")
    if body["model"].startswith(_REASONING_MODELS) and "max_tokens" in body:
        raise Refused("Unsupported parameter: 'max_tokens'; use 'max_completion_tokens'")
    _check_tools(body)
    _check_cache_key(body)
    if (schema := body.get("response_format", {}).get("json_schema")) is not None:
        _check_schema(schema)
    messages = body["messages"]
    if not messages:
        raise Refused("messages: [] is too short")
    waiting: dict[str, None] = {}
    seen: set[str] = set()
    for item in messages:
        if item.get("role") not in _ROLES:
            raise Refused(f"messages: there is no role {item.get('role')!r}")
        validate(_ROLES[item["role"]], {k: v for k, v in item.items() if k not in server.members})
        waiting = _check_chat_message(item, waiting, seen, server)
    if waiting:
        raise Refused(f"'tool_calls' must be followed by tool messages: {list(waiting)}")
    if server.template:
        _check_template(messages)


def _check_chat_message(
    item: Mapping[str, Any], waiting: dict[str, None], seen: set[str], server: FakeOpenAI
) -> dict[str, None]:
    """The calls that the next messages have to answer."""
    content = item.get("content")
    if item["role"] == "tool":
        if item["tool_call_id"] not in waiting:
            raise Refused("messages with role 'tool' must be a response to 'tool_calls'")
        if item["tool_call_id"] != next(iter(waiting)):
            raise Refused("tool messages are not in the order of the calls")
        return {call: None for call in waiting if call != item["tool_call_id"]}
    if waiting:
        raise Refused(f"'tool_calls' must be followed by tool messages: {list(waiting)}")
    calls = item.get("tool_calls")
    if calls == [] or (not content and not calls):
        raise Refused(f"messages: the content of {item['role']!r} is empty")
    for part in content if isinstance(content, list) else ():
        _check_part(part)
    made: dict[str, None] = {}
    for call in calls or ():
        form = r"[a-zA-Z0-9]{9}" if server.short_calls else rf".{{1,{_LONGEST_CALL}}}"
        if not re.fullmatch(form, call["id"]):
            raise Refused(f"tool_calls.id: {call['id']!r} has a wrong length")
        if call["id"] in seen:
            raise Refused(f"tool_calls.id: {call['id']!r} is there twice")
        seen.add(call["id"])
        made[call["id"]] = None
        _check_function(call["function"])
    return made


def _check_function(function: Mapping[str, Any]) -> None:
    if not _NAME.fullmatch(function["name"]):
        raise Refused(f"function.name: {function['name']!r}")
    try:
        if not isinstance(json.loads(function["arguments"]), dict):
            raise Refused("function.arguments: no object")
    except ValueError as error:
        raise Refused(f"function.arguments: {error}") from error


def _check_part(part: Mapping[str, Any]) -> None:
    match part["type"]:
        case "text" if not part["text"].strip():
            raise Refused("a part of text is empty")
        case "image_url":
            _check_uri(part["image_url"]["url"], "image/")
        case "input_audio":
            _check_base64(part["input_audio"]["data"])
        case "file":
            file = part["file"]
            if "file_data" in file:
                _check_uri(file["file_data"], "application/pdf")
                if not file.get("filename"):
                    raise Refused("file: a filename is required")
            elif not file.get("file_id"):
                raise Refused("file: neither file_data nor file_id")


def _check_uri(uri: str, kind: str) -> None:
    if uri.startswith(("http://", "https://")):
        return
    head, _, data = uri.partition(",")
    if not head.startswith(f"data:{kind}") or not head.endswith(";base64"):
        raise Refused(f"{head[:60]!r} is no data of {kind}")
    _check_base64(data)


def _check_base64(data: str) -> None:
    try:
        if not base64.b64decode(data, validate=True):
            raise Refused("the data is empty")
    except ValueError as error:
        raise Refused("invalid base64 data") from error


def _check_template(messages: Sequence[Mapping[str, Any]]) -> None:
    """What the chat templates of local models demand."""
    rest = messages[1:] if messages[0]["role"] in ("system", "developer") else messages
    if not rest or rest[0]["role"] != "user":
        raise Refused("Conversation roles must begin with user")
    if any(item["role"] in ("system", "developer") for item in rest):
        raise Refused("System message must be at the beginning.")
    for before, after in pairwise(rest):
        if before["role"] == after["role"] != "tool":
            raise Refused("Conversation roles must alternate user/assistant")
    if rest[-1]["role"] == "assistant":
        raise Refused("Expected last role User or Tool")


@cache
def _item_types() -> dict[str, Any]:
    types: dict[str, Any] = {}
    for kind in get_args(ResponseInputItemParam):
        for name in get_args(_bare(get_type_hints(kind, include_extras=True)["type"])):
            types.setdefault(name, kind)
    return types


def _bare(hint: Any) -> Any:
    """The literal within `Required` and `Optional`."""
    while any(not isinstance(one, str) for one in get_args(hint)):
        hint = next(one for one in get_args(hint) if not isinstance(one, str))
    return hint


def check_response(request: ReceivedRequest, server: FakeOpenAI, *, counting: bool) -> None:
    """Raise `Refused` for what Responses would not accept."""
    body = decode(request.body)
    kind: Any = ResponseCreateParamsNonStreaming
    if counting:
        kind = InputTokenCountParams
    elif body.get("stream"):
        kind = ResponseCreateParamsStreaming
    validate(kind, {**body, "input": []})
    _check_tools(body)
    _check_cache_key(body)
    form = body.get("text", {}).get("format", {})
    if form.get("type") == "json_schema":
        _check_schema(form)
    if "reasoning.encrypted_content" in body.get("include", ()) and not body["model"].startswith(
        _REASONING_MODELS
    ):
        raise Refused("Encrypted content is not supported with this model.")
    items = body["input"]
    if not items:
        raise Refused("input: [] is too short")
    for item in items:
        # What it has said itself a newer server knows better than the package installed here.
        if dump(item) not in server.issued:
            _check_item_types(item)
        elif server.issued[dump(item)] != body["model"] and item["type"] == "reasoning":
            raise Refused("The encrypted content could not be verified: model mismatch")
    _check_items(_history(body, server), server)


def _history(body: Mapping[str, Any], server: FakeOpenAI) -> list[Mapping[str, Any]]:
    previous = body.get("previous_response_id")
    if previous is None:
        return [*body["input"]]
    if previous not in server.responses:
        raise Refused(
            f"Previous response with id '{previous}' not found.", "previous_response_not_found"
        )
    return [*server.responses[previous], *body["input"]]


def _check_item_types(item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        said = item.get("role") == "assistant"
        if "id" in item:
            validate(ResponseOutputMessageParam, item)
            raise Refused(f"the message {item['id']!r} was never sent, or altered")
        validate(EasyInputMessageParam if said else Message, item)
        if not item["content"]:
            raise Refused("input: a message has no content")
        for part in item["content"] if isinstance(item["content"], list) else ():
            _check_input(part)
        return
    if kind not in _item_types():
        raise Refused(f"input: there is no item {kind!r}")
    validate(_item_types()[kind], item)
    if kind == "reasoning":
        raise Refused("The encrypted content could not be verified.")
    if kind == "function_call":
        _check_function(item)
        if "id" in item:
            raise Refused(f"the call {item['id']!r} was never sent, or altered")
    for part in item["output"] if isinstance(item.get("output"), list) else ():
        _check_input(part)


def _check_input(part: Mapping[str, Any]) -> None:
    match part["type"]:
        case "input_text" if not part["text"].strip():
            raise Refused("a part of text is empty")
        case "input_image" if "image_url" in part:
            _check_uri(part["image_url"], "image/")
        case "input_file" if "file_data" in part:
            _check_uri(part["file_data"], "application/pdf")
            if not part.get("filename"):
                raise Refused("input_file: a filename is required")
        case "input_image" | "input_file":
            if not any(part.get(name) for name in ("file_id", "file_url")):
                raise Refused(f"{part['type']}: no data")


def _check_items(items: Sequence[Mapping[str, Any]], server: FakeOpenAI) -> None:
    calls: dict[str, bool] = {}
    for item, after in zip(items, [*items[1:], None], strict=True):
        match item.get("type", "message"):
            case "function_call" | "custom_tool_call":
                if item["call_id"] in calls or not 0 < len(item["call_id"]) <= 64:
                    raise Refused(f"call_id: {item['call_id']!r} is there twice, or too long")
                calls[item["call_id"]] = False
            case "function_call_output" | "custom_tool_call_output":
                if calls.get(item["call_id"]) is not False:
                    raise Refused(
                        f"No tool call found for function call output with call_id "
                        f"{item['call_id']}."
                    )
                calls[item["call_id"]] = True
            case "reasoning":
                said = after is not None and (
                    after.get("role", "assistant") == "assistant"
                    and after["type"] != "function_call_output"
                )
                if not said:
                    raise Refused(
                        f"Item '{item['id']}' of type 'reasoning' was provided without its "
                        "required following item."
                    )
    if missing := [call for call, answered in calls.items() if not answered]:
        raise Refused(f"No tool output found for function call {missing[0]}.")
