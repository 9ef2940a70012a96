"""A strict fake of OpenAI's images interface.

Every request is validated with the official package's own request type, nothing besides it being
allowed, and with the rules that its documentation has for sizes, backgrounds and models. What
breaks one is answered as the real server answers it, and remembered in `refusals`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from openai.types import ImagesResponse
from openai.types.image_generate_params import ImageGenerateParamsNonStreaming

from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest

KEY = "sk-proj-pictures-0123456789abcdefghijkl"
PATH = "/v1/images/generations"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_RETIRED = ("dall-e-2", "dall-e-3", "gpt-image-1")


class Refused(Exception):
    """The real server would refuse this."""

    def __init__(self, message: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class FakeImages(FakeServer):
    """Answers with the next of `replies`, else with a picture of one point.

    With `keeps` it answers with an address of its own, as servers do that keep pictures.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[HttpAnswer | Callable[[ReceivedRequest], HttpAnswer]] = []
        self.refusals: list[str] = []
        self.keeps = False
        self.kept: Mapping[str, HttpAnswer] = {"/kept/1.png": HttpAnswer(200, {}, [PNG])}

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.method == "GET":
            assert "authorization" not in request.headers, "a key was sent to where pictures lie"
            return self.kept.get(request.path, HttpAnswer(404, {}, [b"nothing"]))
        try:
            self.check(request)
        except Refused as refusal:
            self.refusals.append(str(refusal))
            return error_answer(str(refusal), refusal.code, refusal.status)
        if self.replies:
            reply = self.replies.pop(0)
            return reply if isinstance(reply, HttpAnswer) else reply(request)
        if self.keeps:
            return picture_answer({"url": f"{self.url}/kept/1.png"})
        return picture_answer({"b64_json": base64.b64encode(PNG).decode()})

    def check(self, request: ReceivedRequest) -> None:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            raise Refused("Incorrect API key provided.", "invalid_api_key", 401)
        if (request.method, request.path) != ("POST", PATH):
            raise Refused(f"Invalid URL ({request.method} {request.path})", None, 404)
        if request.headers.get("content-type") != "application/json":
            raise Refused("the body is not announced as JSON", None, 415)
        body = request.json
        strict = pydantic.ConfigDict(extra="forbid")
        params: Any = pydantic.with_config(strict)(ImageGenerateParamsNonStreaming)
        try:
            pydantic.TypeAdapter(params).validate_python(body, strict=True)
        except pydantic.ValidationError as error:
            raise Refused(str(error)) from error
        if not 0 < len(body["prompt"]) <= 32_000:
            raise Refused("Invalid 'prompt': string too long.", "string_above_max_length")
        model = body.get("model", "")
        if model in _RETIRED or not model:
            raise Refused(f"The model '{model}' does not exist", "model_not_found", 404)
        self.check_size(body.get("size", "auto"))
        if body.get("background") == "transparent" and body.get("output_format") == "jpeg":
            raise Refused("Transparent background needs png or webp.", "invalid_value")
        if "response_format" in body and model.startswith("gpt-image"):
            raise Refused("Unknown parameter: 'response_format'.", "unknown_parameter")

    def check_size(self, size: str) -> None:
        found = _SIZE.fullmatch(size)
        if size == "auto":
            return
        if found is None:
            raise Refused(f"Invalid size '{size}'.", "invalid_value")
        width, height = int(found[1]), int(found[2])
        if (
            width % 16
            or height % 16
            or not 1 / 3 <= width / height <= 3
            or width * height > 3840 * 2160
        ):
            raise Refused(
                f"Invalid size '{size}'. Width and height must be divisible by 16, and their ratio "
                "between 1:3 and 3:1.",
                "invalid_value",
            )


def picture_answer(picture: Mapping[str, Any]) -> HttpAnswer:
    """The answer that holds one picture, as the package's own type has it."""
    body = {"created": 1, "data": [picture]}
    ImagesResponse.model_validate(body)
    return HttpAnswer(200, {"content-type": "application/json"}, [json.dumps(body).encode()])


def error_answer(
    message: str, code: str | None = None, status: int = 400, **headers: str
) -> HttpAnswer:
    """The answer of an error, as the real server words it."""
    kind = (
        "image_generation_user_error" if code == "moderation_blocked" else "invalid_request_error"
    )
    error = {"message": message, "type": kind, "param": None, "code": code}
    data = json.dumps({"error": error}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, {"content-type": "application/json", **named}, [data])
