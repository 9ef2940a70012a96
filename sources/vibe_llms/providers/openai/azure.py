"""OpenAI's two interfaces on Azure: the v1 API, and the older one with dated versions.

Registered are `azure` for Responses and `azure-chat` for Chat Completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from vibe_llms.providers.azure import REMEDIES, AzureClient, AzureErrors, find_endpoint, is_dated
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.models import HttpProvider
from vibe_llms.providers.openai.chat_completions.model import (
    ChatCompletionsModel,
    ChatCompletionsSettings,
)
from vibe_llms.providers.openai.client import OpenAIClient
from vibe_llms.providers.openai.errors import BY_CODE, BY_TYPE, OpenAIErrors
from vibe_llms.providers.openai.model import OpenAIModel, PreparedRequest
from vibe_llms.providers.openai.responses.model import ResponsesModel, ResponsesSettings
from vibe_llms.providers.registry import register
from vibe_llms.providers.requests import Request

BASE_URL = "${AZURE_OPENAI_ENDPOINT:-https://RESOURCE.openai.azure.com}"
SCOPE = "https://cognitiveservices.azure.com/.default"

M = TypeVar("M", bound=OpenAIModel[Any])


class AzureResponsesSettings(ResponsesSettings, frozen=True):
    """Settings of a provider row.

    `api-version` is a date, such as `2025-04-01-preview`, for the older API; without it, the v1 API
    is used. For the others, see `AzureSettings`.
    """

    base_url: str = BASE_URL
    resource: str = ""
    api_version: str = ""
    scope: str = SCOPE
    deployments: Mapping[str, str] = {}

    def takes_cache_key(self, *, by_model: bool) -> bool:
        """Return True if requests name their conversation; dated versions may not know it."""
        return super().takes_cache_key(by_model=by_model and self.api_version[:1] != "2")


class AzureChatSettings(ChatCompletionsSettings, frozen=True):
    """Settings of a provider row; see `AzureResponsesSettings`."""

    base_url: str = BASE_URL
    resource: str = ""
    api_version: str = ""
    scope: str = SCOPE
    deployments: Mapping[str, str] = {}

    def takes_cache_key(self, *, by_model: bool) -> bool:
        """Return True if requests name their conversation; dated versions may not know it."""
        return super().takes_cache_key(by_model=by_model and self.api_version[:1] != "2")


class AzureOpenAIErrors(AzureErrors, OpenAIErrors, frozen=True):
    """The errors of both interfaces on Azure."""


ERRORS = AzureOpenAIErrors(types=BY_TYPE, codes=BY_CODE, remedies=REMEDIES)


class AzureOpenAIClient(AzureClient[M], OpenAIClient[M, Any]):
    """Connection to a resource with OpenAI's interfaces."""

    variable = "AZURE_OPENAI_ENDPOINT"

    def find_place(self, endpoint: str) -> tuple[str, str]:
        """Return the base address of the v1 API or of the older one, and the query."""
        version = self.settings.api_version
        dated = is_dated(version, self.provider)
        query = f"?api-version={version}" if version else ""
        return f"{find_endpoint(endpoint, 'openai')}/openai{'' if dated else '/v1'}", query

    def embeddings_path(self, model: str) -> str:
        """Return the path of the vectors of a deployment."""
        return place(self.settings.api_version, model, "/embeddings")


class AzureResponsesModel(ResponsesModel):
    """A deployment that speaks Responses."""

    errors = ERRORS

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Return the header with the key."""
        return {"api-key": key}


class AzureChatModel(ChatCompletionsModel):
    """A deployment that speaks Chat Completions."""

    errors = ERRORS

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Return the header with the key."""
        return {"api-key": key}

    def build(
        self, prepared: PreparedRequest, context: TurnContext, *, later: bool = False
    ) -> Request:
        """Return the request, to the path of the deployment in the older API."""
        request = super().build(prepared, context, later=later)
        version: str = self.settings.api_version  # type: ignore[attr-defined]
        return replace(request, path=place(version, self.name, self.path))


def place(version: str, deployment: str, path: str) -> str:
    """Return the path of an operation of a deployment, which only the older API has in it."""
    dated = version[:2] == "20"
    return f"/deployments/{quote(deployment, safe=':@')}{path}" if dated else path


register(
    "azure",
    HttpProvider.of(
        AzureResponsesModel, AzureResponsesSettings, AzureOpenAIClient[AzureResponsesModel]
    ),
)
register(
    "azure-chat",
    HttpProvider.of(AzureChatModel, AzureChatSettings, AzureOpenAIClient[AzureChatModel]),
)
