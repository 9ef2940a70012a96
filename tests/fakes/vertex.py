"""Strict fakes of Vertex AI: Gemini's and Anthropic's interfaces at its paths, with its tokens.

Paths, projects, locations, keys and tokens are checked as Google does; all else by the fakes of the
makers. `token` is accepted in place of the key, `payer` must be named with it. What is refused is
remembered in `refusals`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.genai import types
from msgspec.structs import replace

from tests.fakes import gemini
from tests.fakes.anthropic import VERSION, FakeAnthropic
from tests.fakes.gemini import FakeGemini, answer_json, failure, reason
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Refused, decode

KEY = "AQ.Ab8RNtest0123456789abcdefghijklmn"
PROJECT = "my-project"
LOCATION = "global"
#: Members of `countTokens`. Source: `_CountTokensParameters_to_vertex` of google-genai.
_COUNTED = {"contents", "systemInstruction", "tools", "generationConfig"}
_LIST = re.compile(r"/v1beta1/publishers/(google|anthropic)/models")
_PATH = re.compile(
    r"/v1(?:beta1)?(?:/projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+))?"
    r"/publishers/(?P<publisher>[^/]+)/models/(?P<model>[^/:]+):(?P<method>\w+)"
)
_TUNED = re.compile(r"/v1/projects/[^/]+/locations/[^/]+/endpoints/(?P<model>\d+):(?P<method>\w+)")
UNAUTHENTICATED = (
    "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie "
    "or other valid authentication credential. See "
    "https://developers.google.com/identity/sign-in/web/devconsole-project."
)


def deny() -> HttpAnswer:
    """The answer to a wrong token."""
    details = [reason("ACCESS_TOKEN_TYPE_UNSUPPORTED")]
    return failure(401, "UNAUTHENTICATED", UNAUTHENTICATED, details=details)


def lose(model: str, project: str = PROJECT, location: str = LOCATION) -> HttpAnswer:
    """The answer for a model that does not exist, or is not enabled."""
    name = f"projects/{project}/locations/{location}/publishers/google/models/{model}"
    return failure(
        404,
        "NOT_FOUND",
        f"Publisher Model `{name}` was not found or your project does not have access to it. "
        "Please ensure you are using a valid model version. For more information, see: "
        "https://cloud.google.com/vertex-ai/generative-ai/docs/learn/model-versions",
    )


class Gate:
    """What both interfaces check before they look at a request."""

    key: str
    refusals: list[str]
    publisher: str
    project = PROJECT
    location = LOCATION
    token = ""
    payer = ""
    names: tuple[str, ...] = ()

    def enter(self, request: ReceivedRequest) -> re.Match[str] | HttpAnswer:
        """The parts of the path of a request, or its refusal."""
        headers = request.headers
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        secrets = [one for one in (headers.get("x-goog-api-key", ""), bearer) if one]
        if len(secrets) != 1 or secrets[0] not in filter(None, (self.key, self.token)):
            self.refusals.append(f"{len(secrets)} secrets" if len(secrets) != 1 else "wrong key")
            return deny()
        if self.payer and headers.get("x-goog-user-project") != self.payer:
            return failure(403, "PERMISSION_DENIED", "The API requires a quota project")
        address = urlsplit(request.path)
        path = unquote(address.path)
        if _LIST.fullmatch(path):
            listed = [{"name": f"publishers/{self.publisher}/models/{one}"} for one in self.names]
            start = int(parse_qs(address.query).get("pageToken", ["0"])[0])
            size = min(2, int(parse_qs(address.query)["pageSize"][0]))
            body: dict[str, Any] = {"publisherModels": listed[start : start + size]}
            if start + size < len(listed):
                body["nextPageToken"] = str(start + size)
            return answer_json(body)
        if found := _TUNED.fullmatch(path):
            return found
        found = _PATH.fullmatch(path)
        express = bool(headers.get("x-goog-api-key"))
        if found is None or found["publisher"] != self.publisher:
            self.refusals.append(f"{request.path} is not found")
            return HttpAnswer(404, {"content-type": "text/html"}, [b"<title>Error 404</title>"])
        if express == bool(found["project"]):
            self.refusals.append(f"{request.path} with a key, or without a project")
            return failure(403, "PERMISSION_DENIED", "Permission denied on resource project")
        if not express and (found["project"], found["location"]) != (self.project, self.location):
            resource = f"//aiplatform.googleapis.com/projects/{found['project']}"
            words = f"'aiplatform.endpoints.predict' denied on resource '{resource}'"
            details = [reason("IAM_PERMISSION_DENIED")]
            words = f"Permission {words} (or it may not exist)."
            return failure(403, "PERMISSION_DENIED", words, details=details)
        return found


class FakeVertex(Gate, FakeGemini):
    """Vertex AI with Gemini's models."""

    publisher = "google"

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key=key)

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        found = self.enter(request)
        if isinstance(found, HttpAnswer):
            return found
        query = parse_qs(urlsplit(request.path).query)
        if len(request.body) > gemini._LONGEST_REQUEST:
            return failure(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit")
        try:
            return self._generate(
                _check(request, found["method"]), found["model"], found["method"], query
            )
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, "INVALID_ARGUMENT", str(error))

    def _generate(
        self, request: ReceivedRequest, model: str, method: str, query: Mapping[str, Any]
    ) -> HttpAnswer:
        if method == "predict":
            return self._predict(request, model)
        return super()._generate(request, model, method, query)

    def _count_tokens(self, request: ReceivedRequest, model: str) -> HttpAnswer:
        body = decode(request.body, free="args")
        if unknown := set(body) - _COUNTED:
            raise Refused(f"Invalid JSON payload received. Unknown name {sorted(unknown)}")
        gemini.check_request(request.body, self.issued, model, self.files)
        if isinstance(self.count, HttpAnswer):
            return self.count
        return answer_json({"totalTokens": self.count})

    def _predict(self, request: ReceivedRequest, model: str) -> HttpAnswer:
        if "gemini" in model:
            raise Refused("Gemini cannot be accessed through Vertex Predict/RawPredict API.")
        body = decode(request.body)
        if set(body) - {"instances", "parameters"}:
            raise Refused(f"predict: unknown {sorted(body)}")
        vector = {"values": list(self.vector), "statistics": {"token_count": 2.0}}
        return answer_json(
            {"predictions": [{"embeddings": vector} for one in body["instances"] if one["content"]]}
        )

    def _embed(self, request: ReceivedRequest, model: str) -> HttpAnswer:
        asked = decode(request.body)["requests"]
        for one in asked:
            types.Content.model_validate(one.pop("content"))
            if set(one) - {"embedContentConfig"}:
                raise Refused(f"embedContent: unknown {set(one)}")
        return answer_json({"embeddings": [{"values": list(self.vector)} for _ in asked]})


def _check(request: ReceivedRequest, method: str) -> ReceivedRequest:
    """The request without what only Vertex AI knows; what it does not know is refused."""
    if method in ("predict", "batchEmbedContents"):
        return request
    body = decode(request.body, free="args")
    labels = body.pop("labels", {})
    if not all(isinstance(one, str) for one in labels.values()):
        raise Refused("labels must be texts")
    for name in ("store", "model"):
        if name in body:
            raise Refused(
                f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            )
    for place, part in _parts(body):
        for kind, name in (
            ("functionCall", "function_call"),
            ("functionResponse", "function_response"),
        ):
            if "id" in part.get(kind, {}):
                words = f"Unknown name \"id\" at '{place}.{name}': Cannot find field."
                raise Refused(f"Invalid JSON payload received. {words}")
        if "partMetadata" in part:
            raise Refused(f"Unknown name \"partMetadata\" at '{place}'")
    return replace(request, body=json.dumps(body).encode())


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, content in enumerate(body.get("contents", ())):
        for index, part in enumerate(content["parts"]):
            yield f"contents[{number}].parts[{index}]", part


class FakeVertexAnthropic(Gate, FakeAnthropic):
    """Vertex AI with Anthropic's models."""

    publisher = "anthropic"

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key=key)

    @property
    def url(self) -> str:
        """The address as the official client takes it: with the version of the API."""
        return f"{super().url}/v1"

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        found = self.enter(request)
        if isinstance(found, HttpAnswer):
            return found
        if "anthropic-version" in request.headers:
            self.refusals.append("the version is in a header")
        try:
            body = decode(request.body, free="input")
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, "INVALID_ARGUMENT", str(error))
        model, path = found["model"], "/v1/messages"
        if body.pop("anthropic_version", None) != VERSION:
            self.refusals.append("anthropic_version: Field required")
            return failure(400, "INVALID_ARGUMENT", "anthropic_version: Field required")
        if model == "count-tokens":
            path = "/v1/messages/count_tokens"
        elif "model" in body:
            self.refusals.append("model: Extra inputs are not permitted")
            return failure(400, "INVALID_ARGUMENT", "model: Extra inputs are not permitted")
        elif (found["method"] == "streamRawPredict") is not bool(body.get("stream")):
            self.refusals.append(f"{found['method']} with stream={body.get('stream')}")
        whole = {**body} if model == "count-tokens" else {"model": model, **body}
        headers = {
            **request.headers,
            "authorization": f"Bearer {self.key}",
            "anthropic-version": VERSION,
        }
        return super().respond(
            replace(request, path=path, headers=headers, body=json.dumps(whole).encode())
        )
