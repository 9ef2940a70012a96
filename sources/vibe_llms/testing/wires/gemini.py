"""Gemini's API, on the server's side: replies, counts of tokens, models, files, embeddings.

Source: the types of google-genai 3.6.1 and https://ai.google.dev/api (2026-11).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from vibe_llms.messages.canisters import StopReason, SupervisorCanister, Usage
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
    encode_event,
    estimate_tokens,
    label,
    parse_arguments,
    produce_invoker,
)
from vibe_llms.testing.wires.gemini_contents import ContentsReader, WireContent, sign
from vibe_llms.testing.wires.gemini_replies import Events, call, chunk, gather, text, usage

ROOT = "/v1beta"
GENERATE = "generateContent"
STREAM = "streamGenerateContent"
STOP_REASONS: dict[str, str] = {
    StopReason.FINISHED: "STOP",
    StopReason.INVOCATIONS: "STOP",
    StopReason.PAUSED: "STOP",
    StopReason.LENGTH: "MAX_TOKENS",
    StopReason.REFUSED: "SAFETY",
}
#: Status, word and reason of each error of a script.
ERRORS = {
    "refused": (400, "INVALID_ARGUMENT", ""),
    "context-overflow": (400, "INVALID_ARGUMENT", ""),
    "credential-refused": (400, "INVALID_ARGUMENT", "API_KEY_INVALID"),
    "payment-required": (403, "PERMISSION_DENIED", "BILLING_DISABLED"),
    "model-unavailable": (404, "NOT_FOUND", ""),
    "too-large": (400, "INVALID_ARGUMENT", ""),
    "rate-limited": (429, "RESOURCE_EXHAUSTED", ""),
    "overloaded": (503, "UNAVAILABLE", ""),
}
_WORDS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 500: "INTERNAL"}
_VECTOR = 8
_KEPT = "2099-01-01T00:00:00Z"


class _Function(Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class _Tool(Struct, rename="camel"):
    function_declarations: list[_Function] = []


class _Body(Struct, rename="camel"):
    contents: list[WireContent] = []
    system_instruction: WireContent | None = None
    tools: list[_Tool] = []


class _Embedding(Struct, rename="camel"):
    content: WireContent
    output_dimensionality: int | None = None


class _Embed(Struct):
    requests: list[_Embedding]


class GeminiWire:
    """The interface below `/v1beta`, with its files."""

    name = "gemini"

    def __init__(self) -> None:
        self._files: dict[str, dict[str, Any]] = {}
        self._uploads: dict[str, dict[str, Any]] = {}

    def claims(self, request: ReceivedRequest) -> bool:
        """Return True if the request has Google's header, or its path."""
        path = urlsplit(request.path).path
        return "x-goog-api-key" in request.headers or path.startswith((f"{ROOT}/", "/upload/"))

    def authorize(self, request: ReceivedRequest, key: str) -> None:
        """Check the key in `x-goog-api-key`, or in the address as old programs send it."""
        query = parse_qs(urlsplit(request.path).query)
        if request.headers.get("x-goog-api-key", query.get("key", [""])[0]) != key:
            raise RefusedRequest(
                "API key not valid. Please pass a valid API key.", error="credential-refused"
            )

    def asks(self, request: ReceivedRequest) -> bool:
        """Return True if the request asks for a reply."""
        return request.method == "POST" and _locate(request)[1] in (GENERATE, STREAM)

    def read(self, request: ReceivedRequest) -> AskedReply:
        """Return the conversation of a request."""
        name, method = _locate(request)
        body = decode(request)
        return self._read(body, name, method, label(request))

    def _read(self, body: Mapping[str, Any], name: str, method: str, given: str) -> AskedReply:
        typed = convert(body, _Body)
        if not typed.contents:
            raise RefusedRequest("* GenerateContentRequest.contents: contents is not specified")
        reader = ContentsReader(name, self._files)
        if typed.system_instruction is not None:
            contents = reader.read_texts(typed.system_instruction, "system_instruction")
            reader.canisters.append(SupervisorCanister(contents=contents))
        for index, content in enumerate(typed.contents):
            reader.add(content, f"contents[{index}]")
        reader.conclude()
        return AskedReply(
            interface=self.name,
            model=name,
            canisters=tuple(reader.canisters),
            invokers=tuple(
                produce_invoker(one.name, one.description, one.parameters or {})
                for tool in typed.tools
                for one in tool.function_declarations
            ),
            streaming=method == STREAM,
            body=body,
            label=given,
        )

    def narrate(self, asked: AskedReply, usage: Usage) -> _Narrator:
        """Return the narrator of a reply."""
        return _Narrator(asked, usage)

    def answer(self, request: ReceivedRequest, catalogue: Catalogue) -> HttpAnswer:
        """Answer with a count of tokens, models, files, or vectors."""
        if urlsplit(request.path).path.startswith("/upload/"):
            return self._upload(request)
        name, method = _locate(request)
        match (request.method, method):
            case ("POST", "countTokens"):
                catalogue.require(name)
                body = decode(request)
                inner = body.get("generateContentRequest", body)
                asked = self._read(inner, name, method, label(request))
                return answer_json(
                    {"totalTokens": estimate_tokens(asked.canisters, asked.invokers)}
                )
            case ("POST", "batchEmbedContents"):
                catalogue.require(name)
                asked_for = convert(decode(request), _Embed).requests
                return answer_json({"embeddings": [_embed(one) for one in asked_for]})
            case ("GET", "") if name == "models":
                return answer_json({"models": [_list(one) for one in catalogue.models]})
            case ("GET", "") if name in self._files:
                return answer_json(self._files[name])
            case ("GET", "") if name.startswith("files/"):
                raise RefusedRequest(
                    f"You do not have permission to access the File {name[6:]} or it may not "
                    "exist.",
                    error="model-unavailable",
                    status=403,
                )
            case ("GET", ""):
                catalogue.require(name)
                return answer_json(_list(name))
            case _:
                raise RefusedRequest(f"no method {method!r} of {name!r}", status=404)

    def _upload(self, request: ReceivedRequest) -> HttpAnswer:
        """Begin an upload, or keep its bytes, by the resumable protocol."""
        headers = request.headers
        if headers.get("x-goog-upload-command") == "start":
            about = decode(request).get("file") or {}
            name = about.get("name") or f"files/fake-{len(self._files)}"
            token = label(request)
            self._uploads[token] = {
                "name": name,
                "mimeType": headers.get("x-goog-upload-header-content-type", ""),
            }
            address = f"http://{headers.get('host', '')}/upload{ROOT}/files?upload_id={token}"
            return HttpAnswer(200, {"x-goog-upload-url": address, "content-length": "0"}, [])
        token = parse_qs(urlsplit(request.path).query).get("upload_id", [""])[0]
        if token not in self._uploads:
            raise RefusedRequest("no upload was started here", status=404)
        begun = self._uploads.pop(token)
        name = begun["name"]
        self._files[name] = {
            **begun,
            "sizeBytes": str(len(request.body)),
            "uri": f"http://{headers.get('host', '')}{ROOT}/{name}",
            "state": "ACTIVE",
            "expirationTime": _KEPT,
        }
        return answer_json({"file": self._files[name]})

    def refuse(self, failure: ScriptedFailure) -> HttpAnswer:
        """Return an error object, with the status of its word."""
        status, error = _name(failure)
        return answer_json({"error": error}, status=status)


class _Narrator:
    headers: Mapping[str, str] = {"content-type": "text/event-stream"}

    def __init__(self, asked: AskedReply, usage: Usage) -> None:
        self._asked = asked
        self._usage = usage
        self._said: Events = []
        self._calls = 0

    def begin(self) -> Iterable[bytes]:
        """Return nothing: the first chunk has the first words."""
        return ()

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Return a chunk for each piece."""
        if reasoning:
            return self._send([chunk(text(one, thought=True)) for one in chunks])
        return self._send([chunk(text(one)) for one in chunks])

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """Return a chunk with the whole call; only the first of a reply is signed."""
        index, self._calls = self._calls, self._calls + 1
        signature = "" if index else sign(self._asked.model, name)
        identity = self._asked.name_call("", index)
        return self._send([chunk(call(name, parse_arguments(pieces), identity, signature))])

    def fail(self, failure: ScriptedFailure) -> Iterable[bytes]:
        """Return a chunk with the error."""
        if failure.error == "malformed":
            return [b'data: {"candidates": [{"content\n\n']
        return [encode_event({"error": _name(failure)[1]}, named=False)]

    def end(self, reason: str) -> Iterable[bytes]:
        """Return the last chunk: an empty text with a signature, the reason, and the usage."""
        return self._send([self._conclude(reason)])

    def whole(self, reason: str) -> Any:
        """Return all chunks in one."""
        return gather([*map(self._complete, self._said), self._complete(self._conclude(reason))])

    def _conclude(self, reason: str) -> dict[str, Any]:
        spent = self._usage
        counts = usage(
            spent.output_tokens,
            prompt=spent.input_tokens,
            cached=spent.cache_read_tokens,
            thoughts=spent.reasoning_tokens,
        )
        last = text("", sign(self._asked.model, ""))
        word = STOP_REASONS.get(reason, reason)
        return chunk(*([] if self._calls else [last]), finish=word, usageMetadata=counts)

    def _send(self, chunks: Events) -> list[bytes]:
        self._said += chunks
        return [encode_event(self._complete(one), named=False) for one in chunks]

    def _complete(self, one: Mapping[str, Any]) -> dict[str, Any]:
        return {**one, "modelVersion": self._asked.model, "responseId": self._asked.label}


def _locate(request: ReceivedRequest) -> tuple[str, str]:
    """Return the name of what a request is about, and the method."""
    path = unquote(urlsplit(request.path).path).removeprefix(f"{ROOT}/")
    name, _, method = path.partition(":")
    return name.removeprefix("models/"), method


def _name(failure: ScriptedFailure) -> tuple[int, dict[str, Any]]:
    """Return the status and the object of an error."""
    status, word, reason = ERRORS.get(failure.error, (500, "INTERNAL", ""))
    if failure.status is not None and failure.status != status:
        status = failure.status
        word = _WORDS.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    message = failure.message
    if failure.error == "context-overflow":
        message = (
            "The input token count (1200000) exceeds the maximum number of tokens allowed "
            f"(1048576). ({message})"
        )
    elif failure.error == "too-large":
        message = f"Request payload size exceeds the limit: 20971520 bytes. ({message})"
    kind = "type.googleapis.com/google.rpc"
    details: list[dict[str, str]] = []
    if reason:
        details.append({"@type": f"{kind}.ErrorInfo", "reason": reason})
    if failure.retry_after is not None:
        delay = f"{failure.retry_after:g}s"
        details.append({"@type": f"{kind}.RetryInfo", "retryDelay": delay})
    error: dict[str, Any] = {"code": status, "message": message, "status": word}
    return status, {**error, "details": details} if details else error


def _list(name: str) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": [GENERATE, "countTokens"],
        "thinking": True,
    }


def _embed(asked: _Embedding) -> dict[str, Any]:
    """Return a vector from the hash of a text: equal texts have equal ones."""
    words = "".join(part.get("text", "") for part in asked.content.parts)
    size = asked.output_dimensionality or _VECTOR
    count = max(count_words(words), 1)
    data = hashlib.shake_128(f"{count} {words}".encode()).digest(size)
    return {"values": [byte / 127.5 - 1 for byte in data]}
