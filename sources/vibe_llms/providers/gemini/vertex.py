"""Gemini's models on Vertex AI, which has the methods and bodies of the Gemini API.

It keeps no files, and its calls have no ids; media can be in a bucket of Cloud Storage.

Source: the functions `…_to_vertex` in `models.py` of google-genai 3.6.1. That calls have no ids:
vercel/ai#15664 (2026-05) and pydantic/pydantic-ai#5081 (2026-04).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import vertex, vertex_errors
from vibe_llms.providers.embeddings import check_vectors
from vibe_llms.providers.gemini.catalogue import EMBEDDED
from vibe_llms.providers.gemini.errors import BY_REASON, REMEDIES, GeminiErrors
from vibe_llms.providers.gemini.files import FileStore
from vibe_llms.providers.gemini.messages import WEB
from vibe_llms.providers.gemini.model import GeminiModel, GeminiRequest, GoogleSettings
from vibe_llms.providers.interfaces import Embeddings, TurnContext
from vibe_llms.providers.limits import access_slot
from vibe_llms.providers.models import HttpProvider
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.registry import register
from vibe_llms.providers.requests import Request
from vibe_llms.providers.round_trip import JSON_HEADERS
from vibe_llms.providers.transport import Outgoing

#: Members that count as input.
_COUNTED = ("generationConfig",)


class GeminiVertexSettings(GoogleSettings, frozen=True):
    """Settings of a provider row; see `VertexSettings`."""

    base_url: str = f"${{GOOGLE_VERTEX_BASE_URL:-https://{vertex.HOST}}}"
    api_version: str = "v1"
    project: str = "${GOOGLE_CLOUD_PROJECT:-}"
    location: str = "${GOOGLE_CLOUD_LOCATION:-${CLOUD_ML_REGION:-global}}"


class GeminiVertexErrors(vertex_errors.VertexErrors, GeminiErrors, frozen=True):
    """The errors of Gemini's interface on Vertex AI."""


ERRORS = GeminiVertexErrors(codes=BY_REASON, remedies=(*vertex_errors.REMEDIES, *REMEDIES))


class GeminiVertexModel(GeminiModel):
    """One of Gemini's models on Vertex AI, or an endpoint with a tuned one."""

    errors = ERRORS
    schemes = (*WEB, "gs://")
    identifies_calls = False

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Log in, so that an expired login is reported before anything is stored."""
        self.check(canisters, controls)
        assert isinstance(self.client, GeminiVertexClient)
        await self.client.log_in()

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> GeminiRequest:
        """Assemble the request of a round trip; say where media that are too large can be."""
        try:
            return await super().assemble(canisters, invokers, controls, context)
        except RequestTooLarge as error:
            words = str(error).removeprefix(f"{self.provider}: ")
            raise RequestTooLarge(
                f"{words}; or upload them to a bucket, and attach them by their gs:// address",
                provider=self.provider,
            ) from error

    async def frame_count(self, request: Request) -> Sequence[bytes]:
        """Return the body that asks for the number of tokens of a request."""
        return await request.produce_body(_COUNTED)


class _Statistics(Struct, frozen=True):
    token_count: float | None = None


class _Vector(Struct):
    values: list[float]
    statistics: _Statistics = _Statistics()


class _Prediction(Struct):
    embeddings: _Vector


class _Predicted(Struct):
    predictions: list[_Prediction]


_PREDICTED = msgspec.json.Decoder(_Predicted)


class GeminiVertexClient(vertex.VertexClient[GeminiVertexModel]):
    """A connection to Gemini's models on Vertex AI."""

    publisher = "google"
    family = re.compile(r"gemini-(?!embedding|live)")
    express = True
    files: FileStore | None = None

    def find_place(self, address: str) -> tuple[str, str]:
        """Return the address, and the path of the version."""
        return address, f"/{self.settings.api_version.strip('/')}"

    async def access_model(self, name: str) -> GeminiVertexModel:
        """Return the model of this name, perhaps written as in Google's list."""
        short = name.removeprefix(f"publishers/{self.publisher}/").removeprefix("models/")
        return await super().access_model(short)

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """Return a vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`."""
        if not texts:
            return Embeddings((), Usage())
        size = {} if dimensions is None else {"outputDimensionality": dimensions}
        said = [repair_text(text) for text in texts]
        body: dict[str, Any]
        if "gemini" in model:
            more = {"embedContentConfig": size} if size else {}
            asked = [
                {"content": {"role": "user", "parts": [{"text": one}]}, **more} for one in said
            ]
            body, method = {"requests": asked}, "batchEmbedContents"
        else:
            more = {"parameters": size} if size else {}
            body, method = {"instances": [{"content": one} for one in said], **more}, "predict"
        path = f"{self.locate(model)}:{method}"
        outgoing = Outgoing("POST", path, (encode_json(body),), JSON_HEADERS)
        data = await self.fetch(outgoing, ERRORS, model=model, slot=access_slot())
        what, tokens = "the list of vectors", 0.0
        if method == "predict":
            found = [one.embeddings for one in self.read(_PREDICTED.decode, data, what).predictions]
            tokens = sum(one.statistics.token_count or 0 for one in found)
            vectors = [one.values for one in found]
        else:
            vectors = [one.values for one in self.read(EMBEDDED.decode, data, what).embeddings]
        check_vectors(vectors, len(texts), provider=self.provider, dimensions=dimensions)
        return Embeddings(vectors, Usage(uncached_input_tokens=int(tokens)))


register("vertex", HttpProvider.of(GeminiVertexModel, GeminiVertexSettings, GeminiVertexClient))
