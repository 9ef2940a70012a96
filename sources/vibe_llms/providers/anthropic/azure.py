"""Anthropic's models on Azure: Microsoft Foundry speaks the Messages interface."""

from __future__ import annotations

from collections.abc import Mapping

from vibe_llms.providers.anthropic.errors import BY_CODE, BY_TYPE, REMEDIES
from vibe_llms.providers.anthropic.model import AnthropicModel, AnthropicSettings
from vibe_llms.providers.azure import REMEDIES as AZURE_REMEDIES
from vibe_llms.providers.azure import AzureClient, AzureErrors, find_endpoint
from vibe_llms.providers.models import HttpProvider
from vibe_llms.providers.registry import register

BASE_URL = "${ANTHROPIC_FOUNDRY_BASE_URL:-https://RESOURCE.services.ai.azure.com}"
SCOPE = "https://ai.azure.com/.default"


class FoundrySettings(AnthropicSettings, frozen=True):
    """Settings of a provider row; see `AzureSettings`."""

    base_url: str = BASE_URL
    resource: str = ""
    scope: str = SCOPE
    deployments: Mapping[str, str] = {}


class FoundryModel(AnthropicModel):
    """A deployment of one of Anthropic's models."""

    errors = AzureErrors(
        types=BY_TYPE,
        codes=BY_CODE,
        telling=(404, 413, 429),
        request_id="request-id",
        remedies=(*REMEDIES, *AZURE_REMEDIES),
    )

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Return the header with the key."""
        return {"x-api-key": key}


class FoundryClient(AzureClient[FoundryModel]):
    """Connection to a resource of Foundry."""

    variable = "ANTHROPIC_FOUNDRY_BASE_URL"

    def find_place(self, endpoint: str) -> tuple[str, str]:
        """Return the base address of the interface, and no query."""
        return f"{find_endpoint(endpoint, 'anthropic')}/anthropic", ""


register("azure-anthropic", HttpProvider.of(FoundryModel, FoundrySettings, FoundryClient))
