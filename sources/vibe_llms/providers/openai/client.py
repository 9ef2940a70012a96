"""What the providers and clients of both interfaces have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.configuration import StreamSettings
from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler
from vibe_llms.exceptions import ModelNotFound, ProviderError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.attributes import ModelAttributes, load_attributes
from vibe_llms.providers.exchanges import Assimilator, fetch
from vibe_llms.providers.interfaces import (
    ConversationTokenizer,
    Embeddings,
    Loader,
    ProviderConfiguration,
    TurnContext,
)
from vibe_llms.providers.limits import Passage
from vibe_llms.providers.openai.catalogue import decode_models
from vibe_llms.providers.openai.embeddings import embed
from vibe_llms.providers.openai.errors import read_error
from vibe_llms.providers.openai.framing import History
from vibe_llms.providers.openai.invocations import OpenAIInvocationsProcessor
from vibe_llms.providers.openai.model import OpenAIModel
from vibe_llms.providers.openai.package import PackageTransport
from vibe_llms.providers.requests import Request
from vibe_llms.providers.transport import Outgoing, Transport, produce_http_transport

BASE_URL = "https://api.openai.com/v1"
_MODELS = "/models"


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that the rows of both modules have.

    `organization` and `project` are sent with each request, where a key serves several.
    """

    base_url: str = BASE_URL
    organization: str = ""
    project: str = ""


class OpenAIClient(ABC):
    """A connection, and the processors; one subclass for each interface."""

    module: str
    path: str
    #: Members of a request that `extras` must not hold, since canisters or controls say them.
    reserved: tuple[str, ...] = ("stream",)
    tokenizer: ConversationTokenizer

    def __init__(
        self,
        provider: str,
        configuration: ProviderConfiguration,
        event_handler: EventHandler,
        settings: Settings,
    ) -> None:
        self.provider = provider
        self.event_handler = event_handler
        self.stream = configuration.stream
        self.transport = _produce_transport(provider, configuration, settings)
        self._keyless = configuration.credential.kind == "none"
        self._attributes = load_attributes(
            configuration.configuration, provider, "families", "openai"
        )

    @property
    @abstractmethod
    def invocations(self) -> OpenAIInvocationsProcessor:
        """The processor of tools."""

    @abstractmethod
    def produce_model(self, name: str, attributes: ModelAttributes) -> OpenAIModel:
        """A model of this client."""

    @abstractmethod
    def produce_history(self, model: OpenAIModel) -> History[Any]:
        """An empty history for a model."""

    @abstractmethod
    def produce_assimilator(self, names: Mapping[str, str]) -> Assimilator:
        """The translator of one reply; `names` are canonical names by those on the wire."""

    @abstractmethod
    def check(self, canister: Canister, model: OpenAIModel) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""

    @abstractmethod
    def nativize_controls(
        self, controls: Controls, model: OpenAIModel, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """The members that controls become; `names` are the names on the wire of the tools."""

    @abstractmethod
    def nativize_tools(self, invokers: Sequence[Invoker], model: OpenAIModel) -> Sequence[Any]:
        """The declarations of tools."""

    @abstractmethod
    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """The members that every request of this interface has."""

    async def access_model(self, name: str) -> OpenAIModel:
        """The model of this name; whether the server has it shows when it is spoken with."""
        if not name:
            raise ModelNotFound(f"which model of {self.provider!r}? See: vibe-llms models")
        return self.produce_model(name, self._attributes.integrate(name))

    async def survey_models(self) -> Sequence[OpenAIModel]:
        """The models that the server offers, with what it says of them."""
        settings = self.stream
        if self._keyless:
            # A server of one's own that does not run is not worth waiting for.
            settings = msgspec.structs.replace(settings, retries=0)
        body = await self.fetch(Outgoing("GET", _MODELS), settings)
        models = [
            self.produce_model(entry.id, self._attributes.integrate(entry.id, further=further))
            for entry in decode_models(body, self.provider)
            for further in (entry.attributes(),)
        ]
        return sorted(models, key=lambda model: model.name)

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """A vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`."""
        return await embed(self, model, texts, dimensions)

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self.transport.close()

    async def fetch(
        self,
        outgoing: Outgoing,
        settings: StreamSettings | None = None,
        *,
        passage: Passage | None = None,
    ) -> bytes:
        """The whole body of an answer that is no reply."""
        return await fetch(
            self.transport,
            outgoing,
            provider=self.provider,
            settings=settings or self.stream,
            read_error=partial(self.read_error, size=outgoing.size),
            passage=passage,
        )

    async def encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Any,
        load: Loader,
    ) -> Request:
        """The request of a conversation, for those who count it."""
        request: Request = await model.encode(
            canisters, invokers, Controls(), TurnContext(load=load)
        )
        return request

    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, *, size: int = 0
    ) -> ProviderError:
        """The error of an answer whose status is not success; `size` is the request's."""
        return read_error(self.provider, status, headers, body, size=size)


def _produce_transport(
    provider: str, configuration: ProviderConfiguration, settings: Settings
) -> Transport:
    credential = configuration.credential
    headers: dict[str, str] = {}
    if settings.organization:
        headers["openai-organization"] = settings.organization
    if settings.project:
        headers["openai-project"] = settings.project
    if credential.kind == "package":
        return PackageTransport(
            provider,
            # What the row does not say is left to the package, which knows its environment.
            settings.base_url if settings.base_url != BASE_URL else None,
            configuration.stream,
            headers,
            offline=configuration.configuration.offline,
        )
    return produce_http_transport(
        provider,
        settings.base_url,
        configuration.stream,
        credential,
        headers,
        offline=configuration.configuration.offline,
    )
