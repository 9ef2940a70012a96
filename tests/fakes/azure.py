"""Strict fakes of resources of Azure: OpenAI's interfaces on both of its APIs, and Foundry.

Paths, versions, keys and deployments are checked as Azure does; all else by the fakes of the
makers. `deployments` are the names that exist; if empty, every name does. `token` is accepted in
place of the key. What is refused is remembered in `refusals`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec.structs import replace

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.anthropic import failure as fail_anthropic
from tests.fakes.openai import FakeOpenAI, answer_json
from tests.fakes.server import HttpAnswer, ReceivedRequest

KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
#: Versions of the older API; Responses is in those from this one on.
VERSIONS = ("2024-10-21", "2025-03-01-preview", "2025-04-01-preview")
RESPONSES_SINCE = "2025-03-01"
_DEPLOYED = re.compile(r"/deployments/([^/]+)(/(?:chat/completions|embeddings))")


def fail(status: int, code: str, message: str, **members: Any) -> HttpAnswer:
    """An error as Azure sends it."""
    return answer_json({"error": {"code": code, "message": message, **members}}, status=status)


LOST = fail(
    404,
    "DeploymentNotFound",
    "The API deployment for this resource does not exist. If you created the deployment within "
    "the last 5 minutes, please wait a moment and try again.",
)
DENIED = fail(
    401,
    "401",
    "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a "
    "valid key for an active subscription and use a correct regional API endpoint for your "
    "resource.",
)
NOT_FOUND = fail(404, "404", "Resource not found")


def read_secrets(request: ReceivedRequest, header: str) -> list[str]:
    """The key and the token of a request, as far as it has them."""
    found = [request.headers.get(header, "")]
    if (bearer := request.headers.get("authorization")) is not None:
        found.append(bearer.removeprefix("Bearer "))
    return [one for one in found if one]


def read_model(request: ReceivedRequest) -> str:
    """The model in the body; empty if there is none, or the body is for the maker to refuse."""
    try:
        return str(request.json.get("model", "")) if request.method == "POST" else ""
    except ValueError:
        return ""


class FakeAzure(FakeOpenAI):
    """A resource with OpenAI's interfaces; `key_disabled` is whether only a login is accepted."""

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key=key)
        self.token = ""
        self.deployments: Collection[str] = ()
        self.key_disabled = False

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        address = urlsplit(request.path)
        secrets = read_secrets(request, "api-key")
        if len(secrets) != 1 or secrets[0] not in (self.key, self.token):
            self.refusals.append(f"{len(secrets)} secrets" if len(secrets) != 1 else "wrong key")
            return DENIED
        if self.key_disabled and "api-key" in request.headers:
            message = "Key based authentication is disabled for this resource."
            return fail(403, "AuthenticationTypeDisabled", message)
        version = parse_qs(address.query).get("api-version", [""])[0]
        path, deployment = self._route(address.path, version)
        if isinstance(path, HttpAnswer):
            self.refusals.append(f"{request.path} is not found")
            return path
        model = read_model(request)
        name = deployment or model
        if self.deployments and name and name not in self.deployments:
            return LOST
        if deployment and model != deployment:
            self.refusals.append("the model is not the deployment")
        headers = {**request.headers, "authorization": f"Bearer {self.key}"}
        return super().respond(replace(request, path=path, headers=headers))

    def _route(self, path: str, version: str) -> tuple[str | HttpAnswer, str]:
        """The path at OpenAI, and the deployment that is in the older one."""
        if path.startswith("/openai/v1/"):
            known = version in ("", "v1", "preview", "latest")
            refused = fail(400, "BadRequest", "API version not supported")
            return (path.removeprefix("/openai/v1") if known else refused), ""
        rest = path.removeprefix("/openai")
        if rest == path or version not in VERSIONS:
            return NOT_FOUND, ""
        if found := _DEPLOYED.fullmatch(rest):
            return found[2], unquote(found[1])
        if rest.startswith("/responses"):
            if version < RESPONSES_SINCE:
                words = f"is enabled only for api-version {RESPONSES_SINCE}-preview and later"
                return fail(400, "BadRequest", f"Azure OpenAI Responses API {words}"), ""
            return rest, ""
        return NOT_FOUND, ""


class FakeFoundry(FakeAnthropic):
    """A resource with Anthropic's interface, without lists of models."""

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key=key)
        self.token = ""
        self.deployments: Collection[str] = ()

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        secrets = read_secrets(request, "x-api-key")
        if len(secrets) != 1 or secrets[0] not in (self.key, self.token):
            self.refusals.append(f"{len(secrets)} secrets" if len(secrets) != 1 else "wrong key")
            return DENIED
        path = request.path.removeprefix("/anthropic")
        if path == request.path or not path.startswith("/v1/messages"):
            self.refusals.append(f"{request.path} is not found")
            return NOT_FOUND
        if self.deployments and read_model(request) not in self.deployments:
            return fail_anthropic(404, "not_found_error", "no such deployment")
        headers = {**request.headers, "authorization": f"Bearer {self.key}"}
        return super().respond(replace(request, path=path, headers=headers))
