"""Shared parts of OpenAI's two interfaces on the server's side: keys, errors, models.

Source: https://developers.openai.com/api/docs/guides/error-codes (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    Upload,
)
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest
from vibe_llms.testing.wires.core import (
    Catalogue,
    RefusedRequest,
    ScriptedFailure,
    answer_json,
    decode_bytes,
)

PREFIX = "/v1"
MODELS = "/v1/models"
#: Name of the row to which uploads belong.
_ROW = "openai"
HEADERS = {"x-request-id": "req_fake"}
#: Status, type and code of each error of a script.
ERRORS: dict[str, tuple[int, str, str]] = {
    "refused": (400, "invalid_request_error", ""),
    "context-overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "credential-refused": (401, "invalid_request_error", "invalid_api_key"),
    "payment-required": (429, "insufficient_quota", "insufficient_quota"),
    "model-unavailable": (404, "invalid_request_error", "model_not_found"),
    "too-large": (413, "invalid_request_error", "request_too_large"),
    "rate-limited": (429, "requests", "rate_limit_exceeded"),
    "overloaded": (503, "server_error", "server_error"),
}


def authorize(request: ReceivedRequest, key: str) -> None:
    """Check the key in `authorization`."""
    given = request.headers.get("authorization", "")
    if not given.startswith("Bearer "):
        # The error for a missing key has no code.
        raise RefusedRequest(
            "You didn't provide an API key. You need to provide your API key in an Authorization "
            "header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
            error="credential-refused",
            code=None,
        )
    if given != f"Bearer {key}":
        raise RefusedRequest("Incorrect API key provided.", error="credential-refused")


def name_error(failure: ScriptedFailure) -> tuple[int, dict[str, Any]]:
    """Return the status and the error object."""
    status, kind, code = ERRORS.get(failure.error, (500, "server_error", "server_error"))
    if failure.status is not None and failure.status != status:
        status, code = failure.status, ""
        kind = "server_error" if status >= 500 else "invalid_request_error"
    named = (failure.code or code) if failure.code is not None else ""
    reported = {"type": kind, "param": None, "code": named or None}
    return status, {"message": failure.message, **reported}


def refuse(failure: ScriptedFailure) -> HttpAnswer:
    """Return an error as both interfaces send it."""
    status, error = name_error(failure)
    return answer_json({"error": error}, status=status, headers=HEADERS)


def list_models(path: str, catalogue: Catalogue) -> HttpAnswer:
    """Return the list of models, or one of them."""
    if path == MODELS:
        data = [_describe(name) for name in catalogue.models]
        return answer_json({"object": "list", "data": data}, headers=HEADERS)
    name = path.removeprefix(f"{MODELS}/")
    catalogue.require(name)
    return answer_json(_describe(name), headers=HEADERS)


def count_usage(usage: Usage, *, prompt: str, reply: str) -> dict[str, Any]:
    """Return the usage as both interfaces count it, with their names for prompt and reply."""
    written = usage.output_tokens + usage.reasoning_tokens
    return {
        f"{prompt}_tokens": usage.input_tokens,
        f"{prompt}_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        f"{reply}_tokens": written,
        f"{reply}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + written,
    }


def read_parts(content: object, where: str) -> tuple[Content, ...]:
    """Return the parts of a message of either interface."""
    if isinstance(content, str):
        return (TextualContent(content),)
    if not isinstance(content, Sequence):
        raise RefusedRequest(
            f"Invalid type for '{where}': expected an array of objects or a string."
        )
    return tuple(_read_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _read_part(part: object, where: str) -> Content:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return TextualContent(text)
        case {"type": "refusal", "refusal": str(text)}:
            return TextualContent(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return _read_image(url, where)
        case {"type": "input_image", "image_url": str(url)}:
            return _read_image(url, where)
        case {"type": "input_image", "file_id": str(identity)} if identity:
            return ImageContent(Upload(identity, _ROW))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return AudioContent(decode_bytes(data, where), f"audio/{kind}")
        case {"type": "file", "file": {**file}}:
            return _read_file(file, where)
        case {"type": "input_file", **file}:
            return _read_file(file, where)
        case {"type": str(kind)}:
            raise RefusedRequest(f"Invalid value: '{kind}' for '{where}.type'.")
        case _:
            raise RefusedRequest(f"Missing required parameter: '{where}.type'.")


def _read_image(url: str, where: str) -> Content:
    if not url.startswith("data:"):
        return ImageContent(Location(url))
    head, _, data = url.partition(",")
    return ImageContent(decode_bytes(data, where), head[5:].partition(";")[0])


def _read_file(file: Mapping[Any, Any], where: str) -> Content:
    name = str(file.get("filename") or "")
    if isinstance(url := file.get("file_url"), str):
        return FileContent(Location(url), name=name)
    if isinstance(identity := file.get("file_id"), str) and identity:
        return FileContent(Upload(identity, _ROW), name=name)
    head, _, data = str(file.get("file_data") or "").partition(",")
    return FileContent(decode_bytes(data, where), head[5:].partition(";")[0], name)


def _describe(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "fake"}
