"""A connection to a server of either interface: its models and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.interfaces import Embeddings
from vibe_llms.providers.limits import access_slot
from vibe_llms.providers.models import HttpClient
from vibe_llms.providers.openai.embeddings import read_embeddings
from vibe_llms.providers.openai.errors import ERRORS
from vibe_llms.providers.openai.model import OpenAIModel, OpenaiSettings
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.round_trip import JSON_HEADERS
from vibe_llms.providers.transport import Outgoing

M = TypeVar("M", bound=OpenAIModel[Any])
S = TypeVar("S", bound=OpenaiSettings)


class OpenAIClient(HttpClient[M, S]):
    """Client of either interface."""

    def embeddings_path(self, model: str) -> str:
        """Return the path of the vectors of a model."""
        del model
        return "/embeddings"

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """Return a vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`."""
        if not texts:
            return Embeddings((), Usage())
        request: dict[str, Any] = {"model": model, "input": [repair_text(text) for text in texts]}
        if dimensions is not None:
            request["dimensions"] = dimensions
        path = self.embeddings_path(model)
        outgoing = Outgoing("POST", path, (encode_json(request),), JSON_HEADERS)
        body = await self.fetch(outgoing, ERRORS, slot=access_slot())
        return read_embeddings(body, len(texts), provider=self.provider, dimensions=dimensions)
