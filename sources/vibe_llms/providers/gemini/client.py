"""Provider rows and clients for Gemini, with its models, files and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.embeddings import check_vectors
from vibe_llms.providers.gemini.catalogue import EMBEDDED, PAGE
from vibe_llms.providers.gemini.errors import ERRORS
from vibe_llms.providers.gemini.files import FileStore
from vibe_llms.providers.gemini.model import GeminiModel, GeminiSettings, find_resource
from vibe_llms.providers.interfaces import Embeddings
from vibe_llms.providers.limits import access_slot
from vibe_llms.providers.models import HttpClient, HttpProvider
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.round_trip import JSON_HEADERS
from vibe_llms.providers.transport import Outgoing


class GeminiClient(HttpClient[GeminiModel, GeminiSettings]):
    """A connection to the Gemini API; `vertex.py` has the one to Vertex AI."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if urlsplit(self.address).path.rstrip("/").endswith("/openai"):
            raise ConfigurationError(
                "it is the address of Gemini's OpenAI-compatible API, and this row speaks Gemini's "
                "own: remove it, or add module = "
                '"vibe_llms.providers.openai.chat_completions" to the row',
                table=f"providers.{self.provider}",
                key="base-url",
            )
        self.root = f"/{quote(self.settings.api_version.strip('/'))}"
        self.files: FileStore | None = FileStore(
            self, self.root, self.settings.file_seconds, self.settings.upload_bytes
        )

    def locate(self, name: str) -> str:
        """Return the path of a model."""
        return f"{self.root}/{quote(find_resource(name), safe='/')}"

    async def access_model(self, name: str) -> GeminiModel:
        """Return the model of this name, perhaps written as in Google's list."""
        return await super().access_model(name.removeprefix("models/"))

    async def survey_models(self) -> Sequence[GeminiModel]:
        """Return all models that the key may use in conversations, with reported attributes."""
        models: list[GeminiModel] = []
        token = ""
        while True:
            path = f"{self.root}/models?pageSize=1000{token and f'&pageToken={quote(token)}'}"
            body = await self.fetch(Outgoing("GET", path), ERRORS)
            page = self.read(PAGE.decode, body, "the list of models")
            models += [
                self.produce_model(entry.title, entry.attributes())
                for entry in page.models
                if entry.answers and entry.title
            ]
            if not page.next_page_token or page.next_page_token == token:
                return models
            token = page.next_page_token

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """Return a vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`.

        The API does not report the tokens.
        """
        if not texts:
            return Embeddings((), Usage())
        name = f"models/{model.removeprefix('models/')}"
        size = {} if dimensions is None else {"outputDimensionality": dimensions}
        asked = [
            {"model": name, "content": {"parts": [{"text": repair_text(text)}]}, **size}
            for text in texts
        ]
        path = f"{self.root}/{quote(name)}:batchEmbedContents"
        outgoing = Outgoing("POST", path, (encode_json({"requests": asked}),), JSON_HEADERS)
        body = await self.fetch(outgoing, ERRORS, model=model, slot=access_slot())
        vectors = [
            one.values for one in self.read(EMBEDDED.decode, body, "the list of vectors").embeddings
        ]
        check_vectors(vectors, len(texts), provider=self.provider, dimensions=dimensions)
        return Embeddings(vectors, Usage())


GeminiProvider = HttpProvider.of(GeminiModel, GeminiSettings, GeminiClient)
