"""Anthropic's models on Vertex AI: the Messages interface at other paths.

Requests name the model in their path, and the version of the interface in their body.

Source: `anthropic.lib.vertex` of anthropic 2.14.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import vertex, vertex_errors
from vibe_llms.providers.anthropic.errors import BY_CODE, BY_TYPE, REMEDIES
from vibe_llms.providers.anthropic.model import VERSION, AnthropicModel, AnthropicSettings
from vibe_llms.providers.http_transport import send_bearer
from vibe_llms.providers.interfaces import Loader, TokenCount, TurnContext, refuse_loading
from vibe_llms.providers.models import HttpProvider
from vibe_llms.providers.registry import register
from vibe_llms.providers.requests import Request
from vibe_llms.providers.tokenizers import read_count

#: Member with the version of the interface.
_VERSION = "anthropic_version"
#: Name in the path of the method that counts tokens.
_COUNTER = "count-tokens"


class AnthropicVertexSettings(AnthropicSettings, frozen=True):
    """Settings of a provider row; see `VertexSettings`."""

    base_url: str = f"${{ANTHROPIC_VERTEX_BASE_URL:-https://{vertex.HOST}/v1}}"
    project: str = "${ANTHROPIC_VERTEX_PROJECT_ID:-${GOOGLE_CLOUD_PROJECT:-}}"
    location: str = "${CLOUD_ML_REGION:-${GOOGLE_CLOUD_LOCATION:-global}}"


class AnthropicVertexModel(AnthropicModel):
    """One of Anthropic's models on Vertex AI."""

    client: AnthropicVertexClient
    errors = vertex_errors.VertexErrors(
        types=BY_TYPE,
        codes=BY_CODE,
        telling=(404, 413, 429),
        request_id="request-id",
        remedies=(*REMEDIES, *vertex_errors.REMEDIES),
    )

    @classmethod
    def headers(cls, settings: AnthropicSettings) -> Mapping[str, str]:
        """Return the header for experimental features; the version is in the body."""
        headers = super().headers(settings)
        return {name: value for name, value in headers.items() if name != "anthropic-version"}

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Return the header with a token, or with the key of a gateway."""
        return send_bearer(key)

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Log in, so that an expired login is reported before anything is stored."""
        self.check(canisters, controls)
        await self.client.log_in()

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """Assemble the request of a round trip, with history from the cache where possible."""
        request = await super().assemble(canisters, invokers, controls, context)
        members = {_VERSION: VERSION, **request.members}
        del members["model"]
        method = "streamRawPredict" if context.streaming else "rawPredict"
        return replace(request, members=members, path=f"{self.client.locate(self.name)}:{method}")

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Return the number of tokens that the server counts."""
        context = TurnContext(load=load)
        request = await self.assemble(canisters, invokers, Controls(), context)
        counted = replace(request, members={**request.members, "model": self.name})
        body = await counted.produce_body((_VERSION, *self.counted))
        outgoing = self._post(f"{self.client.locate(_COUNTER)}:rawPredict", body)
        return read_count(await self.client.fetch(outgoing, self.errors), self.provider)


class AnthropicVertexClient(vertex.VertexClient[AnthropicVertexModel]):
    """A connection to Anthropic's models on Vertex AI."""

    publisher = "anthropic"
    family = re.compile("claude-")

    def find_place(self, address: str) -> tuple[str, str]:
        """Return the address without its version, as the official client has it, and the version.

        A gateway may have none.
        """
        base, _, version = address.rpartition("/")
        known = version[:1] == "v" and version[1:2].isdigit()
        return (base, f"/{version}") if known else (address, "")


register(
    "vertex-anthropic",
    HttpProvider.of(AnthropicVertexModel, AnthropicVertexSettings, AnthropicVertexClient),
)
