"""Provider rows and clients for Anthropic; the list of models is read page by page."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from vibe_llms.providers.anthropic.catalogue import PAGE
from vibe_llms.providers.anthropic.model import AnthropicModel, AnthropicSettings
from vibe_llms.providers.models import HttpClient, HttpProvider
from vibe_llms.providers.transport import Outgoing


class AnthropicClient(HttpClient[AnthropicModel, AnthropicSettings]):
    """A connection to Anthropic."""

    async def survey_models(self) -> Sequence[AnthropicModel]:
        """Return all models that the key may use, with their reported attributes."""
        models: list[AnthropicModel] = []
        after = ""
        while True:
            path = f"/v1/models?limit=1000{after and f'&after_id={quote(after)}'}"
            body = await self.fetch(Outgoing("GET", path), self.model.errors)
            page = self.read(PAGE.decode, body, "the list of models")
            models += [self.produce_model(entry.id, entry.attributes()) for entry in page.data]
            if not page.has_more or not page.last_id or page.last_id == after:
                return models
            after = page.last_id


AnthropicProvider = HttpProvider.of(AnthropicModel, AnthropicSettings, AnthropicClient)
