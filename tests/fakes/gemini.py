"""A strict fake of the Gemini API.

Every request is validated with the official package's own types, nothing besides them being allowed
at any depth, and then with the rules that the real server is known to enforce: roles, answered
calls, signatures on the parts that they came on, parts that say something, names of tools, schemas
of OpenAPI. What breaks one is answered with 400 and remembered in `refusals`. Its Files API keeps
what is uploaded, and processes videos for a while.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pydantic
from google.genai import types

from tests.fakes import strict
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Events, Refused, StrictServer, decode, dump, encode_event
from vibe_llms.testing.wires.gemini_replies import MODEL, gather, text_reply

KEY = "AIzaSyTest0123456789abcdefghijklmnopqrs"
#: What Google names for calls of other models.
#: Source: https://ai.google.dev/gemini-api/docs/thought-signatures#faqs.
DUMMIES = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
_LONGEST_REQUEST = 20_000_000
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_FILE_NAME = re.compile(r"files/[a-z0-9][a-z0-9-]{0,38}[a-z0-9]?")
_SIGNED = re.compile(r"gemini-([3-9]|\d\d)(?!.*image)")
_MEMBERS: Mapping[str, Any] = {
    "systemInstruction": types.Content,
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
}
_LISTS: Mapping[str, Any] = {"tools": types.Tool, "safetySettings": types.SafetySetting}
_PLAIN = frozenset({"contents", "cachedContent", "serviceTier", "store", "model"})
#: Keywords that `parameters` does not know, although the package's type has some of them.
#: Source: https://github.com/openswarm-ai/openswarm/issues/24 (2026-05).
_UNKNOWN = frozenset(
    {"additionalProperties", "$ref", "$defs", "$schema", "const", "oneOf", "allOf"}
)


@dataclass
class Issued:
    """Parts that a server has said, and those that it signed with their models."""

    parts: set[str] = field(default_factory=set)
    signed: set[str] = field(default_factory=set)

    def remember(self, events: Events, model: str) -> None:
        for event in events:
            for candidate in event.get("candidates") or ():
                for part in (candidate.get("content") or {}).get("parts") or ():
                    self.parts.add(dump(part))
                    if part.get("thoughtSignature"):
                        self.signed.add(dump([model, _without_arguments(part)]))


class FakeGemini(StrictServer):
    """The server; the list of models comes in pages of `page_size`.

    `polls` is how often a video is still being processed when it is looked at; a file whose bytes
    begin with `broken` fails.
    """

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key)
        self.issued = Issued()
        self.count: Any = 7
        self.models: Sequence[Mapping[str, Any]] = ()
        self.page_size = 1000
        self.polls = 1
        self.files: dict[str, dict[str, Any]] = {}
        self.uploading: dict[str, dict[str, Any]] = {}
        self.vector: Sequence[float] = (0.5, 0.25)

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        address = urlsplit(request.path)
        query = parse_qs(address.query)
        if "key" in query:
            self.refusals.append("the key is in the address")
        if request.headers.get("x-goog-api-key") != self.key:
            return failure(
                400,
                "INVALID_ARGUMENT",
                "API key not valid. Please pass a valid API key.",
                details=[reason("API_KEY_INVALID")],
            )
        if address.path.startswith("/upload/v1beta/files"):
            return self._upload(request, query)
        name, _, method = unquote(address.path).removeprefix("/v1beta/").partition(":")
        if not address.path.startswith("/v1beta/"):
            return failure(404, "NOT_FOUND", f"no {address.path}")
        if request.method == "GET" and name == "models":
            return self._list_models(query)
        if request.method == "GET" and name.startswith("files/"):
            return self._look(name)
        if len(request.body) > _LONGEST_REQUEST:
            return failure(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit")
        try:
            return self._generate(request, name.removeprefix("models/"), method, query)
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, "INVALID_ARGUMENT", str(error))

    def _generate(
        self, request: ReceivedRequest, model: str, method: str, query: Mapping[str, Any]
    ) -> HttpAnswer:
        if method == "batchEmbedContents":
            return self._embed(request, model)
        if method == "countTokens":
            return self._count_tokens(request, model)
        streaming = method == "streamGenerateContent"
        if not streaming and method != "generateContent":
            return failure(404, "NOT_FOUND", f"no method {method}")
        check_request(request.body, self.issued, model, self.files)
        reply = self.next_reply(request, lambda: text_reply("Hello."))
        if isinstance(reply, HttpAnswer):
            return reply
        self.issued.remember(reply, model)
        if not streaming:
            whole = gather(reply)
            self.issued.remember([whole], model)
            return answer_json(whole)
        if query.get("alt") != ["sse"]:
            return answer_json(list(reply))
        return stream(reply)

    def _count_tokens(self, request: ReceivedRequest, model: str) -> HttpAnswer:
        body = decode(request.body, free="args")
        inner = body.pop("generateContentRequest", None)
        if body or not isinstance(inner, dict):
            raise Refused("countTokens: a generateContentRequest is required")
        if inner.pop("model", None) != f"models/{model}":
            raise Refused("countTokens: another model in the request")
        check_request(json.dumps(inner).encode(), self.issued, model, self.files)
        if isinstance(self.count, HttpAnswer):
            return self.count
        return answer_json({"totalTokens": self.count})

    def _embed(self, request: ReceivedRequest, model: str) -> HttpAnswer:
        asked = decode(request.body)["requests"]
        for one in asked:
            if one.pop("model") != f"models/{model}":
                raise Refused("embedContent: another model in the request")
            _check(types.Content, one.pop("content"))
            if set(one) - {"outputDimensionality"}:
                raise Refused(f"embedContent: unknown {set(one)}")
        return answer_json({"embeddings": [{"values": list(self.vector)} for _ in asked]})

    def _list_models(self, query: Mapping[str, Sequence[str]]) -> HttpAnswer:
        start = int(query.get("pageToken", ["0"])[0])
        size = min(self.page_size, int(query.get("pageSize", ["50"])[0]))
        body: dict[str, Any] = {"models": list(self.models[start : start + size])}
        if start + size < len(self.models):
            body["nextPageToken"] = str(start + size)
        return answer_json(body)

    def _upload(self, request: ReceivedRequest, query: Mapping[str, Sequence[str]]) -> HttpAnswer:
        headers = request.headers
        if headers.get("x-goog-upload-command") == "start":
            if headers.get("x-goog-upload-protocol") != "resumable":
                return failure(400, "INVALID_ARGUMENT", "unknown upload protocol")
            about = decode(request.body)["file"]
            _check(types.File, about)
            name = about.get("name") or f"files/made-{len(self.files)}"
            if not _FILE_NAME.fullmatch(name):
                self.refusals.append(f"file name {name!r}")
                return failure(400, "INVALID_ARGUMENT", "The file name is invalid")
            if name in self.files:
                return failure(409, "ALREADY_EXISTS", "Requested entity already exists")
            token = f"u{len(self.uploading)}"
            self.uploading[token] = {
                "name": name,
                "size": int(headers["x-goog-upload-header-content-length"]),
                "mimeType": headers["x-goog-upload-header-content-type"],
            }
            # The real server names its own host.
            address = f"https://upload.example/upload/v1beta/files?upload_id={token}"
            return HttpAnswer(200, {"x-goog-upload-url": address, "content-length": "0"}, [])
        started = self.uploading[query["upload_id"][0]]
        if (
            headers.get("x-goog-upload-command") != "upload, finalize"
            or headers.get("x-goog-upload-offset") != "0"
            or len(request.body) != started["size"]
        ):
            self.refusals.append("an upload that does not fit its start")
            return failure(400, "INVALID_ARGUMENT", "bad upload")
        self.files[started["name"]] = self._keep(started, request.body)
        return answer_json({"file": self._describe(started["name"])})

    def _keep(self, started: Mapping[str, Any], data: bytes) -> dict[str, Any]:
        video = started["mimeType"].startswith("video/")
        digest = hashlib.sha256(data).hexdigest().encode()
        return {
            "name": started["name"],
            "mimeType": started["mimeType"],
            "sizeBytes": str(len(data)),
            "sha256Hash": base64.b64encode(digest).decode(),
            "expirationTime": datetime.now(UTC) + timedelta(hours=48),
            "uri": f"https://generativelanguage.googleapis.com/v1beta/{started['name']}",
            "left": self.polls if video else 0,
            "failed": data.startswith(b"broken"),
        }

    def _describe(self, name: str) -> dict[str, Any]:
        kept = dict(self.files[name])
        left, failed = kept.pop("left"), kept.pop("failed")
        kept["expirationTime"] = kept["expirationTime"].isoformat().replace("+00:00", "Z")
        kept["state"] = "PROCESSING" if left else "FAILED" if failed else "ACTIVE"
        if failed and not left:
            kept["error"] = {"code": 3, "message": "The file could not be decoded."}
        return kept

    def _look(self, name: str) -> HttpAnswer:
        known = self.files.get(name)
        if known is None or known["expirationTime"] < datetime.now(UTC):
            return failure(403, "PERMISSION_DENIED", _gone(name))
        known["left"] = max(known["left"] - 1, 0)
        return answer_json(self._describe(name))


def _gone(name: str) -> str:
    short = name.removeprefix("files/")
    return f"You do not have permission to access the File {short} or it may not exist."


def reason(word: str) -> dict[str, Any]:
    """The detail of an error that says its reason."""
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": word, "domain": "googleapis.com"}


def failure(
    status: int,
    word: str,
    message: str = "m",
    *,
    details: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> HttpAnswer:
    """An error as the server sends it."""
    error: dict[str, Any] = {"code": status, "message": message, "status": word}
    if details:
        error["details"] = list(details)
    answer = answer_json({"error": error}, status=status)
    answer.headers.update(headers or {})
    return answer


def answer_json(body: Any, *, status: int = 200) -> HttpAnswer:
    """A whole body, with its length."""
    return strict.answer_json(body, status=status)


def stream(events: Events, **faults: Any) -> HttpAnswer:
    """Chunks as a stream, each as an HTTP chunk of its own."""
    return stream_bytes([*map(encode_event, events)], **faults)


def stream_bytes(chunks: Sequence[bytes], **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    return HttpAnswer(200, {"content-type": "text/event-stream"}, chunks, **faults)


def check_request(
    data: bytes, issued: Issued, model: str = MODEL, files: Mapping[str, Any] | None = None
) -> None:
    """Raise `Refused` for what the real server would not accept."""
    # What a model wrote as arguments is its own affair.
    body = decode(data, free="args")
    for name, value in body.items():
        if name in _MEMBERS:
            _check(_MEMBERS[name], value)
        elif name in _LISTS:
            for one in value:
                _check(_LISTS[name], one)
        elif name not in _PLAIN:
            raise Refused(f'Invalid JSON payload received. Unknown name "{name}"')
    contents = body.get("contents")
    if not contents:
        raise Refused("* GenerateContentRequest.contents: contents is not specified")
    for content in contents:
        _check_content(content, issued, model, files)
    if "systemInstruction" in body:
        _check_parts(body["systemInstruction"], "system_instruction")
    _check_roles(contents)
    _check_calls(contents, signs=_SIGNED.match(model) is not None)
    _check_tools(body)
    _check_config(body.get("generationConfig") or {})


def _check(kind: type[pydantic.BaseModel], value: Any) -> None:
    try:
        kind.model_validate_json(json.dumps(value))
    except pydantic.ValidationError as error:
        raise Refused(str(error)) from error


def _check_content(
    content: Mapping[str, Any], issued: Issued, model: str, files: Mapping[str, Any] | None
) -> None:
    if set(content) != {"role", "parts"} or content["role"] not in ("user", "model"):
        raise Refused("Please use a valid role: user, model.")
    _check_parts(content, "contents")
    for part in content["parts"]:
        said = content["role"] == "model" and dump(part) in issued.parts
        if not said:
            # What it has said itself a newer server knows better than the package here.
            _check(types.Part, part)
        if "inlineData" in part:
            _check_blob(part["inlineData"])
        if files is not None and "fileData" in part:
            _check_file(part["fileData"], files)
        for inner in (part.get("functionResponse") or {}).get("parts") or ():
            _check_blob(inner["inlineData"]) if "inlineData" in inner else None
        signature = part.get("thoughtSignature")
        if signature is not None:
            if content["role"] != "model":
                raise Refused("thoughtSignature is only for parts of the model")
            if signature in DUMMIES and "functionCall" in part:
                continue
            if dump([model, _without_arguments(part)]) not in issued.signed:
                raise Refused("Corrupted thought signature.")


def _without_arguments(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part as it was said; arguments may be written in another way."""
    call = part.get("functionCall")
    return part if call is None else {**part, "functionCall": call["name"]}


def _check_parts(content: Mapping[str, Any], place: str) -> None:
    parts = content["parts"]
    if not parts:
        raise Refused(f"* GenerateContentRequest.{place}.parts: contents.parts must not be empty.")
    for part in parts:
        kinds = set(part) - {"thought", "thoughtSignature", "videoMetadata", "partMetadata"}
        empty = part.get("text") == "" and "thoughtSignature" not in part
        if len(kinds) != 1 or empty:
            raise Refused(
                f"* GenerateContentRequest.{place}.parts.data: required oneof field 'data' must "
                "have one initialized field"
            )


def _check_blob(blob: Mapping[str, Any]) -> None:
    if not blob.get("mimeType") or not blob.get("data"):
        raise Refused("inline_data: mime_type and data are required")
    try:
        base64.b64decode(blob["data"], validate=True)
    except ValueError as error:
        raise Refused("inline_data.data: Base64 decoding failed") from error


def _check_file(data: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    prefix = "https://generativelanguage.googleapis.com/v1beta/"
    if not data["fileUri"].startswith(prefix):
        return
    name = data["fileUri"].removeprefix(prefix)
    known = files.get(name)
    if known is None:
        raise Refused(_gone(name))
    if known["left"]:
        raise Refused("The File is not in an ACTIVE state and usage is not allowed.")


def _check_roles(contents: Sequence[Mapping[str, Any]]) -> None:
    if contents[0]["role"] != "user" or contents[-1]["role"] != "user":
        raise Refused("Please ensure that single turn requests end with a user role.")
    for before, after in pairwise(contents):
        if before["role"] == after["role"]:
            raise Refused("Please ensure that multiturn requests alternate between user and model.")


def _check_calls(contents: Sequence[Mapping[str, Any]], *, signs: bool) -> None:
    calls: list[Mapping[str, Any]] = []
    for content in contents:
        parts = content["parts"]
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if len(answers) != len(calls):
            raise Refused(
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
        for call, answer in zip(calls, answers, strict=True):
            if (call["name"], call.get("id")) != (answer["name"], answer.get("id")):
                raise Refused(f"the function response {answer['name']!r} answers no call")
        if answers and any("functionResponse" not in part for part in parts[: len(answers)]):
            raise Refused("function responses must come first")
        made = [part for part in parts if "functionCall" in part]
        calls = [part["functionCall"] for part in made]
        if calls and content["role"] != "model":
            raise Refused("function calls are only for the model")
        if signs and made and "thoughtSignature" not in made[0]:
            raise Refused(
                "Function call is missing a thought_signature in functionCall parts. This is "
                "required for tools to work correctly, and missing thought_signature may lead to "
                f"degraded model performance. Additional data, function call {calls[0]['name']}."
            )


def _declarations(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for tool in body.get("tools") or ():
        yield from tool.get("functionDeclarations") or ()


def _check_tools(body: Mapping[str, Any]) -> None:
    names = [one["name"] for one in _declarations(body)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise Refused(f"Invalid function name {name!r}. Must start with a letter")
    if len(set(names)) != len(names):
        raise Refused(f"Duplicate function declaration found: {names}")
    for one in _declarations(body):
        if "parameters" in one:
            _check_schema(one["parameters"])
            if not one["parameters"].get("properties"):
                raise Refused("parameters.properties: should be non-empty for OBJECT type")
    config = (body.get("toolConfig") or {}).get("functionCallingConfig")
    if config is not None:
        if not names:
            raise Refused("Function calling config is set without function_declarations.")
        if set(config.get("allowedFunctionNames") or ()) - set(names):
            raise Refused("allowed_function_names: not in function_declarations")
    if "cachedContent" in body and {"systemInstruction", "tools", "toolConfig"} & set(body):
        raise Refused(
            "CachedContent can not be used with GenerateContent request setting "
            "system_instruction, tools or tool_config."
        )


def _check_schema(schema: Any) -> None:
    if not isinstance(schema, dict):
        raise Refused(f"Invalid value at 'parameters': {schema!r}")
    for name in schema:
        if name in _UNKNOWN:
            raise Refused(f"Unknown name \"{name}\" at 'parameters': Cannot find field.")
    if not isinstance(schema.get("type", ""), str):
        raise Refused("Proto field is not repeating, cannot start list.")
    if schema.get("type") == "array" and "items" not in schema:
        raise Refused("parameters.items: missing field.")
    for inner in (schema.get("properties") or {}).values():
        _check_schema(inner)
    for inner in schema.get("anyOf") or ():
        _check_schema(inner)
    if "items" in schema:
        _check_schema(schema["items"])


def _check_config(config: Mapping[str, Any]) -> None:
    if "responseJsonSchema" in config:
        if config.get("responseMimeType") != "application/json":
            raise Refused("response_json_schema requires response_mime_type application/json")
        _check_references(config["responseJsonSchema"])
    thinking = config.get("thinkingConfig") or {}
    if "thinkingBudget" in thinking and "thinkingLevel" in thinking:
        raise Refused("You can only set only one of thinking budget and thinking level.")
    if len(config.get("stopSequences") or ()) > 5:
        raise Refused("The number of stop sequences must be at most 5.")


def _check_references(value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _check_references(one)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str) and any(not name.startswith("$") for name in value):
            raise Refused("a $ref must not have other members")
        for one in value.values():
            _check_references(one)
