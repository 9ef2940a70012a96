"""A strict fake of Bedrock's Converse and ConverseStream, and of its lists of models.

Every request is validated with the service model of `botocore`, nothing besides its shapes being
allowed, and then with the rules that the real service is known to enforce: roles, answered calls,
untouched reasoning, no blank text, names of files, tools that are declared. What breaks one is
answered with 400 and remembered in `refusals`. Signatures are checked with `botocore` too.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from zlib import crc32

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.validate import ParamValidator

from tests.fakes import strict
from tests.fakes.bedrock_replies import accumulate, text_reply
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Events, Refused, StrictServer, decode, dump

KEY = "bedrock-api-key-0123456789abcdefghijklmnop"
REGION = "us-east-1"
_PATH = re.compile(r"/model/([^/]+)/(converse|converse-stream)")
_MOST_MARKS = 4
_MOST_FILES, _MOST_IMAGES = 5, 20
_SMALLEST_BUDGET = 1024
_FILE_NAME = re.compile(r"[a-zA-Z0-9()\[\]-]+(?: [a-zA-Z0-9()\[\]-]+)*")
_EXCEPTION = re.compile(r"[a-z]\w*Exception|error")


@dataclass
class Issued:
    """Signatures and encrypted reasoning, with the model and the words that they cover."""

    signatures: dict[str, str] = field(default_factory=dict)

    def remember(self, content: Sequence[Mapping[str, Any]], model: str) -> None:
        for item in content:
            match item.get("reasoningContent"):
                case {"reasoningText": {"signature": signature, "text": text}}:
                    self.signatures[signature] = dump([model, text])
                case {"redactedContent": data}:
                    self.signatures[data] = dump([model, ""])


class FakeBedrock(StrictServer):
    """The service; with `identity`, requests have to be signed with this key."""

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key)
        self.issued = Issued()
        self.identity: Credentials | None = None
        self.models: Sequence[Mapping[str, Any]] = ()
        self.profiles: Sequence[Mapping[str, Any]] = ()
        self.page_size = 1000

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if (refusal := self._authorize(request)) is not None:
            return refusal
        address = urlsplit(request.path)
        if request.method == "GET":
            return self._list(address.path, parse_qs(address.query))
        found = _PATH.fullmatch(address.path)
        if found is None:
            # As the real service says it, with the status of success.
            kind = "com.amazon.coral.service#UnknownOperationException"
            return answer_json({"Output": {"__type": kind}, "Version": "1.0"})
        model, streamed = unquote(found[1]), found[2] == "converse-stream"
        try:
            check_request(request, model, self.issued, streamed=streamed)
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, "ValidationException", str(error))
        reply = self.next_reply(request, lambda: text_reply("Hello."))
        if isinstance(reply, HttpAnswer):
            return reply
        whole = accumulate(reply)
        self.issued.remember(whole["output"]["message"]["content"], model)
        return stream(reply) if streamed else answer_json(whole)

    def _authorize(self, request: ReceivedRequest) -> HttpAnswer | None:
        told = request.headers.get("authorization", "")
        if self.identity is None:
            if told == f"Bearer {self.key}":
                return None
            words = "Authentication failed: Please make sure your API Key is valid."
            return failure(403, "AccessDeniedException", words)
        if told == self.sign(request):
            return None
        words = "The request signature we calculated does not match the signature you provided."
        return failure(403, "InvalidSignatureException", words)

    def sign(self, request: ReceivedRequest) -> str:
        """The header that `botocore` makes for a request that came."""
        assert self.identity is not None
        return sign(request, self.identity)

    def _list(self, path: str, query: Mapping[str, Sequence[str]]) -> HttpAnswer:
        if path == "/foundation-models":
            return answer_json({"modelSummaries": list(self.models)})
        if path != "/inference-profiles":
            return failure(404, "ResourceNotFoundException", "not found")
        start = int(query.get("nextToken", ["0="])[0].rstrip("="))
        size = min(self.page_size, int(query.get("maxResults", ["10"])[0]))
        page = {"inferenceProfileSummaries": list(self.profiles[start : start + size])}
        if start + size < len(self.profiles):
            page["nextToken"] = f"{start + size}="  # type: ignore[assignment]
        return answer_json(page)


def sign(request: ReceivedRequest, identity: Credentials, region: str = REGION) -> str:
    """The header `authorization` of a request as `botocore` makes it, at the request's own time."""
    sent = request.headers
    names = re.search(r"SignedHeaders=([^,]*)", sent.get("authorization", ""))
    signed = names[1].split(";") if names else []
    headers = {name: sent.get(name, "") for name in signed if name != "authorization"}
    url = f"http://{sent['host']}{request.path}"
    made = AWSRequest(request.method, url, headers, request.body)
    made.context["timestamp"] = sent.get("x-amz-date", "")
    signer = SigV4Auth(identity, "bedrock", region)
    text = signer.string_to_sign(made, signer.canonical_request(made))
    signer._inject_signature_to_request(made, signer.signature(text, made))
    if identity.token != sent.get("x-amz-security-token"):
        return ""
    told: str = made.headers["authorization"]
    return told


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """A message of an event stream."""
    head = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    start = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    body = start + struct.pack("!I", crc32(start)) + head + payload
    return body + struct.pack("!I", crc32(body))


def encode_event(event: Mapping[str, Any], *, escaped: bool = False) -> bytes:
    """One event as a message; `…Exception` is one, and `error` an error that has no shape."""
    ((kind, body),) = event.items()
    if kind == "error":
        told = {":error-code": body["code"], ":error-message": body["message"]}
        return encode_message({**told, ":message-type": "error"}, b"")
    exception = bool(_EXCEPTION.fullmatch(kind))
    headers = {
        ":exception-type" if exception else ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception" if exception else "event",
    }
    # The service pads its events, against guesses of their words by their sizes.
    padded = body if exception else {**body, "p": "abcdefghijk"}
    text = json.dumps(padded) if escaped else strict.encode(padded)
    return encode_message(headers, text.encode())


def failure(
    status: int, kind: str, message: str = "m", *, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """An error as the service sends it: its name is in a header."""
    answer = answer_json({"message": message}, status=status)
    answer.headers |= {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/", **(headers or {})}
    return answer


def answer_json(body: Any, *, status: int = 200) -> HttpAnswer:
    """A whole body, with its length."""
    return strict.answer_json(body, status=status, x_amzn_requestid="req_1")


def stream(events: Events, **faults: Any) -> HttpAnswer:
    """Events as a stream, each as an HTTP chunk of its own."""
    return stream_bytes([*map(encode_event, events)], **faults)


def stream_bytes(chunks: Sequence[bytes], **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    headers = {"content-type": "application/vnd.amazon.eventstream", "x-amzn-requestid": "req_1"}
    return HttpAnswer(200, headers, chunks, **faults)


@cache
def describe(operation: str, service: str = "bedrock-runtime") -> Any:
    """The official model of an operation: its shapes and its errors."""
    model: Any = botocore.session.Session().get_service_model(service)
    return model.operation_model(operation)


def check_request(request: ReceivedRequest, model: str, issued: Issued, *, streamed: bool) -> None:
    """Raise `Refused` for what the real service would not accept."""
    # What a model wrote as arguments is its own affair.
    body = decode(request.body, free="input")
    official = describe("ConverseStream" if streamed else "Converse").input_shape
    params = _decode_blobs({**body, "modelId": model}, official, "")
    report = ParamValidator().validate(params, official)
    if report.has_errors():
        raise Refused(report.generate_report())
    messages = body.get("messages") or []
    _check_roles(messages)
    _check_tools(body)
    _check_thinking(body)
    _check_files(body, model)
    marks = [one for one in _walk(body) if "cachePoint" in one]
    if len(marks) > _MOST_MARKS:
        raise Refused(f"You have exceeded the maximum number of cache points: {len(marks)}")
    for text in (body.get("inferenceConfig") or {}).get("stopSequences") or ():
        if not text.strip():
            raise Refused("stopSequences: each stop sequence must contain non-whitespace")
    for item in body.get("system") or ():
        _check_text(item, "system")
    calls: dict[str, None] = {}
    seen: set[str] = set()
    for message in messages:
        calls = _check_message(message, calls, seen, issued, model)
    if calls:
        raise Refused(f"Expected toolResult blocks for the following Ids: {list(calls)}")


def _decode_blobs(value: Any, official: Any, place: str) -> Any:
    """Parameters with bytes for base64; what a shape says besides types is checked."""
    if getattr(official, "is_document_type", False):
        return value
    kind, rules = official.type_name, official.metadata
    if kind == "structure" and isinstance(value, dict):
        if getattr(official, "is_tagged_union", False) and len(value) != 1:
            raise Refused(f"{place}: exactly one member of the union must be set: {list(value)}")
        return {
            name: _decode_blobs(item, official.members[name], f"{place}.{name}")
            if name in official.members
            else item
            for name, item in value.items()
        }
    if kind == "list" and isinstance(value, list):
        if len(value) > rules.get("max", len(value)):
            raise Refused(f"{place}: too many items")
        return [_decode_blobs(item, official.member, f"{place}[]") for item in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _decode_blobs(item, official.value, place) for name, item in value.items()}
    if kind == "blob" and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError as error:
            raise Refused(f"{place}: not base64") from error
    if kind == "string" and isinstance(value, str):
        if official.enum and value not in official.enum:
            raise Refused(f"{place}: {value!r} is none of {official.enum}")
        if len(value) > rules.get("max", len(value)):
            raise Refused(f"{place}: {value[:50]!r} is too long")
        pattern = rules.get("pattern")
        if pattern and not re.fullmatch(pattern, value):
            raise Refused(f"{place}: {value!r} does not match {pattern}")
    numeric = kind in ("float", "integer") and isinstance(value, int | float)
    if numeric and value > rules.get("max", value):
        raise Refused(f"{place}: {value} is too large")
    return value


def _walk(value: Any) -> list[dict[str, Any]]:
    """All objects in a body, except within what a model or a tool wrote."""
    found: list[dict[str, Any]] = []
    if isinstance(value, dict):
        found.append(value)
        for name, item in value.items():
            found += [] if name in ("input", "json") else _walk(item)
    elif isinstance(value, list):
        for item in value:
            found += _walk(item)
    return found


def _check_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise Refused("messages: at least one message is required")
    if messages[0]["role"] != "user":
        raise Refused("A conversation must start with a user message.")
    for before, after in pairwise(messages):
        if before["role"] == after["role"]:
            raise Refused("A conversation must alternate between user and assistant roles.")
    if messages[-1]["role"] != "user":
        raise Refused("The conversation must end with a user message.")


def _check_tools(body: Mapping[str, Any]) -> None:
    config = body.get("toolConfig")
    used = [one for one in _walk(body["messages"]) if "toolUse" in one or "toolResult" in one]
    if used and not config:
        raise Refused(
            "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        )
    if config is None:
        return
    specs = [tool["toolSpec"] for tool in config["tools"] if "toolSpec" in tool]
    names = [spec["name"] for spec in specs]
    if len(set(names)) != len(names):
        raise Refused("The tool names must be unique.")
    for spec in specs:
        if spec["inputSchema"]["json"].get("type") != "object":
            raise Refused("toolConfig: the type of an inputSchema must be object")
    choice = config.get("toolChoice") or {}
    if "tool" in choice and choice["tool"]["name"] not in names:
        raise Refused(f"Tool {choice['tool']['name']!r} not found in provided tools")


def _check_thinking(body: Mapping[str, Any]) -> None:
    fields = body.get("additionalModelRequestFields") or {}
    thinking = fields.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return
    budget = thinking["budget_tokens"]
    if budget < _SMALLEST_BUDGET:
        raise Refused("thinking.budget_tokens: Input should be greater than or equal to 1024")
    if budget >= (body.get("inferenceConfig") or {}).get("maxTokens", 4096):
        raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`")
    choice = (body.get("toolConfig") or {}).get("toolChoice") or {}
    if "any" in choice or "tool" in choice:
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
    # A run of calls and results is one turn of the assistant's, which has to begin with thinking.
    for parted in (False, True):
        begins, calls = None, False
        for message in body["messages"]:
            kinds = {name: None for item in message["content"] for name in item}
            kinds.pop("cachePoint", None)
            ends = "toolResult" not in kinds or (parted and len(kinds) > 1)
            if message["role"] == "user" and ends:
                begins = None
            elif message["role"] == "assistant":
                begins = begins or next(iter(kinds))
                calls = "toolUse" in kinds
        if calls and begins is not None and begins != "reasoningContent":
            raise Refused(
                f"Expected `thinking` or `redacted_thinking`, but found `{begins}`. When "
                "`thinking` is enabled, a final `assistant` message must start with a thinking "
                "block"
            )


def _check_files(body: Mapping[str, Any], model: str) -> None:
    objects = _walk(body["messages"])
    files = [one["document"] for one in objects if "document" in one]
    images = [one for one in objects if "image" in one]
    if len(files) > _MOST_FILES or len(images) > _MOST_IMAGES:
        raise Refused(f"too many files or images: {len(files)}, {len(images)}")
    names = [one["name"] for one in files]
    if len(set(names)) != len(names):
        raise Refused("Messages can't contain duplicate document names.")
    for name in names:
        if not _FILE_NAME.fullmatch(name):
            raise Refused(f"The document file name can only contain alphanumeric …: {name!r}")
    shaped = "textFormat" in (body.get("outputConfig") or {})
    if shaped and any((one.get("citations") or {}).get("enabled") for one in files):
        raise Refused("citations cannot be enabled with a structured output")
    for message in body["messages"]:
        kinds = {name for item in message["content"] for name in item}
        if "document" in kinds and "text" not in kinds:
            raise Refused("A document block needs a text block in the same message.")
    for one in objects:
        if "s3Location" in one and "amazon.nova" not in model:
            raise Refused("This model doesn't support the s3Location field")


def _check_text(item: Mapping[str, Any], place: str) -> None:
    if "text" in item and not item["text"].strip():
        raise Refused(f"The text field in the ContentBlock object at {place} is blank.")


def _check_message(
    message: Mapping[str, Any],
    calls: Mapping[str, None],
    seen: set[str],
    issued: Issued,
    model: str,
) -> dict[str, None]:
    """The calls that the next message has to answer."""
    role, content = message["role"], message["content"]
    if not content:
        raise Refused("The content field in the Message object is empty.")
    made: dict[str, None] = {}
    answered: dict[str, None] = {}
    _check_server_tools(content)
    for place, item in enumerate(content):
        _check_text(item, "messages")
        match item:
            case {"image": _} | {"document": _} if role != "user":
                raise Refused("images and files can only be in user messages")
            case {"reasoningContent": reasoning}:
                _check_signature(reasoning, issued, model)
            case {"citationsContent": cited}:
                for part in cited["content"]:
                    _check_text(part, "citationsContent")
            case {"toolUse": {"type": "server_tool_use"}} | {"toolResult": {"type": _}}:
                pass
            case {"toolUse": call}:
                if role != "assistant":
                    raise Refused("toolUse blocks can only be in assistant messages")
                if not isinstance(call["input"], dict):
                    raise Refused("The format of the value at toolUse.input is invalid.")
                if call["toolUseId"] in seen:
                    raise Refused(f"toolUse ids must be unique: {call['toolUseId']}")
                seen.add(call["toolUseId"])
                made[call["toolUseId"]] = None
            case {"toolResult": result}:
                if role != "user" or result["toolUseId"] not in calls:
                    raise Refused(f"unexpected toolResult: {result['toolUseId']}")
                if result["toolUseId"] in answered:
                    raise Refused(f"toolResult twice: {result['toolUseId']}")
                if place != len(answered):
                    raise Refused("toolResult blocks must come first")
                if not result["content"]:
                    raise Refused("The content field at toolResult cannot be empty.")
                answered[result["toolUseId"]] = None
                for part in result["content"]:
                    _check_text(part, "toolResult")
            case {"cachePoint": _} if place and "reasoningContent" in content[place - 1]:
                raise Refused("cachePoint cannot be inserted after reasoningContent block.")
    if list(answered) != list(calls):
        missing = set(calls) - set(answered)
        raise Refused(f"Expected toolResult blocks for the following Ids: {missing}")
    if role == "assistant" and "reasoningContent" in content[-1]:
        raise Refused("The final block in an assistant message cannot be `thinking`.")
    return made


def _check_server_tools(content: Sequence[Mapping[str, Any]]) -> None:
    """Calls that the service carried out have their results in the same message."""
    running: set[str] = set()
    for item in content:
        match item:
            case {"toolUse": {"type": "server_tool_use", "toolUseId": call}}:
                running.add(call)
            case {"toolResult": {"type": _, "toolUseId": call}}:
                running.discard(call)
    if running:
        raise Refused(f"server tools without results: {running}")


def _check_signature(reasoning: Mapping[str, Any], issued: Issued, model: str) -> None:
    match reasoning:
        case {"reasoningText": {"text": text, "signature": signature}}:
            if issued.signatures.get(signature) != dump([model, text]):
                raise Refused("thinking blocks cannot be modified: Invalid `signature`")
        case {"redactedContent": data} if issued.signatures.get(data) == dump([model, ""]):
            pass
        case _:
            raise Refused("reasoning without a signature of this model")
