"""Provider and client of Ollama: its address, what it says of its models, and embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from vibe_llms.configuration import Number, merge
from vibe_llms.events import EventHandler
from vibe_llms.exceptions import (
    ModelNotFound,
    ProviderError,
    ProviderUnreachable,
    ReplyMalformed,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.attributes import ModelAttributes, load_attributes
from vibe_llms.providers.embeddings import check_vectors
from vibe_llms.providers.exchanges import JSON_HEADERS, fetch
from vibe_llms.providers.interfaces import Embeddings, Loader, ProviderConfiguration
from vibe_llms.providers.limits import access_passage
from vibe_llms.providers.measures import Measure
from vibe_llms.providers.ollama.address import BASE_URL, find_address
from vibe_llms.providers.ollama.catalogue import EMBEDDED, SHOWN, TAGS
from vibe_llms.providers.ollama.controls import OllamaControlsProcessor, read_native
from vibe_llms.providers.ollama.errors import advise_unreachable, read_error
from vibe_llms.providers.ollama.invocations import OllamaInvocationsProcessor
from vibe_llms.providers.ollama.messages import OllamaMessagesProcessor
from vibe_llms.providers.ollama.model import OllamaModel
from vibe_llms.providers.ollama.package import OllamaLibrary
from vibe_llms.providers.ollama.tokenizer import OllamaConversationTokenizer
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.transport import (
    Incoming,
    Outgoing,
    Transport,
    authorize,
    produce_http_transport,
)

T = TypeVar("T")

#: How long the server may take to say what a model can do, before it is used without that.
DESCRIBE_SECONDS = 10.0
#: What a server answers that does not have the model, or nothing that describes models.
_NOT_THERE = (404, 405, 501)


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module.

    `num_ctx` is the context in tokens that the server shall provide; 0 leaves it to the server, and
    without it as much is asked for as the conversation needs. `keep_alive` is how long the model
    stays loaded after a reply, in seconds or with a unit; a negative one keeps it for ever.
    """

    base_url: str = BASE_URL
    num_ctx: Number | None = None
    keep_alive: (
        float | Annotated[str, Meta(pattern=r"^-?(\d+(\.\d+)?(ns|us|ms|s|m|h))+$")] | None
    ) = None


class OllamaProvider:
    """A row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self._configuration = configuration
        self._settings = configuration.configuration.read(
            Settings, configuration.settings, "providers", name
        )

    def produce_client(self) -> OllamaClient:
        """A new client; whoever asks for it closes it."""
        return OllamaClient(self, self._configuration, self._settings)


class OllamaClient:
    """A connection, and the four processors."""

    def __init__(
        self, provider: OllamaProvider, configuration: ProviderConfiguration, settings: Settings
    ) -> None:
        self.provider = provider.name
        self.event_handler = provider.event_handler
        self.stream = configuration.stream
        self.settings = settings
        self.address = find_address(settings.base_url)
        self.credential = configuration.credential
        self.offline = configuration.configuration.offline
        self.transport: Transport = OllamaTransport(
            self.address,
            produce_http_transport(
                provider.name,
                self.address,
                configuration.stream,
                configuration.credential,
                offline=configuration.configuration.offline,
            ),
        )
        self.controls = OllamaControlsProcessor()
        self.invocations = OllamaInvocationsProcessor()
        self.messages = OllamaMessagesProcessor(self.invocations)
        self.tokenizer = OllamaConversationTokenizer(self._measure)
        self._attributes = load_attributes(
            configuration.configuration, provider.name, "families", "ollama"
        )
        self._told: dict[str, Mapping[str, Any]] = {}
        self._known: dict[str, ModelAttributes] = {}
        self._described: set[str] = set()
        self._unknown: set[str] = set()
        self._asking = asyncio.Lock()

    async def access_model(self, name: str) -> OllamaModel:
        """The model of this name; whether the server has it shows when it is spoken with."""
        if not name:
            raise ModelNotFound(f"which model of {self.provider!r}? See: vibe-llms models")
        model = OllamaModel(self, name)
        read_native(model)
        return model

    async def survey_models(self) -> Sequence[OllamaModel]:
        """The models that the server has; asks it once, without retries."""
        quick = msgspec.structs.replace(self.stream, retries=0)
        body = await fetch(
            self.transport,
            Outgoing("GET", "/api/tags"),
            provider=self.provider,
            settings=quick,
            read_error=self.read_error,
        )
        models: list[OllamaModel] = []
        for entry in self._decode(TAGS, body, "the list of models").models or ():
            if name := repair_text(entry.model or entry.name):
                self._learn(name, entry.attributes)
                models.append(OllamaModel(self, name))
        return models

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """A vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`."""
        if not texts:
            return Embeddings((), Usage())
        request: dict[str, Any] = {
            "model": model,
            "input": [repair_text(text) for text in texts],
            "truncate": False,
        }
        if dimensions is not None:
            request["dimensions"] = dimensions
        if self.settings.keep_alive is not None:
            request["keep_alive"] = self.settings.keep_alive
        body = await fetch(
            self.transport,
            Outgoing("POST", "/api/embed", (encode_json(request),), JSON_HEADERS),
            provider=self.provider,
            settings=self.stream,
            read_error=lambda status, headers, data: self.read_error(
                status, headers, data, model=model
            ),
            passage=access_passage(),
        )
        embedded = self._decode(EMBEDDED, body, "the vectors")
        check_vectors(
            embedded.embeddings, len(texts), provider=self.provider, dimensions=dimensions
        )
        usage = Usage(uncached_input_tokens=max(embedded.prompt_eval_count or 0, 0))
        return Embeddings(embedded.embeddings, usage)

    def produce_library(self) -> OllamaLibrary:
        """The models of the server, to be listed, shown and pulled; needs the package ollama."""
        return OllamaLibrary(
            self.provider,
            self.address,
            lambda: authorize(self.credential),
            connect_seconds=self.stream.connect_seconds,
            idle_seconds=self.stream.idle_seconds,
            offline=self.offline,
        )

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self.transport.close()

    def access_attributes(self, name: str) -> ModelAttributes:
        """What is known of a model by now."""
        if name not in self._known:
            self._known[name] = self._attributes.integrate(name, further=self._told.get(name, {}))
        return self._known[name]

    def knows(self, name: str) -> bool:
        """Whether the server has said what the model can do."""
        return name in self._described

    async def describe(self, name: str) -> None:
        """Ask the server once what a model can do; without an answer it is used all the same."""
        if name in self._described | self._unknown:
            return
        async with self._asking:
            if name in self._described | self._unknown:
                return
            quick = msgspec.structs.replace(
                self.stream,
                retries=0,
                reply_seconds=min(self.stream.reply_seconds, DESCRIBE_SECONDS),
            )
            try:
                body = await fetch(
                    self.transport,
                    Outgoing("POST", "/api/show", (encode_json({"model": name}),), JSON_HEADERS),
                    provider=self.provider,
                    settings=quick,
                    read_error=self.read_error,
                )
                shown = self._decode(SHOWN, body, "what is known of the model")
            except ProviderError as error:
                # The request itself will fail with the reason; the next one asks again, unless
                # there is nothing to be asked.
                if error.status in _NOT_THERE:
                    self._unknown.add(name)
                return
            self._learn(name, shown.attributes)
            self._described.add(name)

    def forget(self, name: str) -> None:
        """Ask again what a model can do: the server does not have it, and may get it later."""
        self._described.discard(name)
        self._unknown.discard(name)

    def read_error(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        model: str = "",
        size: int = 0,
    ) -> ProviderError:
        """The error of an answer whose status is not success; `size` is the request's."""
        return read_error(self.provider, status, headers, body, model=model, size=size)

    def _learn(self, name: str, told: Mapping[str, Any]) -> None:
        self._told[name] = merge(self._told.get(name, {}), told)
        self._known.pop(name, None)

    def _decode(self, decoder: msgspec.json.Decoder[T], body: bytes, what: str) -> T:
        try:
            return decoder.decode(body)
        except (ValueError, RecursionError) as error:
            raise ReplyMalformed(
                f"{what} cannot be read from {body[:80]!r}", provider=self.provider
            ) from error

    async def _measure(
        self, canisters: Sequence[Canister], invokers: Sequence[Invoker], model: Any, load: Loader
    ) -> Measure:
        measure: Measure = await model.measure(canisters, invokers, load)
        return measure


class OllamaTransport:
    """A transport whose failure to connect says how to start the server."""

    def __init__(self, address: str, transport: Transport) -> None:
        self._address = address
        self._transport = transport

    def prepare(self) -> None:
        """Find the key and check the address; see `vibe_llms.providers.transport.Transport`."""
        self._transport.prepare()

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and give the reply; see `vibe_llms.providers.transport.Transport`."""
        import httpx2

        try:
            async with self._transport.open(outgoing, body) as incoming:
                yield incoming
        except ProviderUnreachable as error:
            refused = isinstance(error.__cause__, httpx2.ConnectError)
            if not refused or self._address.startswith("https:"):
                raise
            raise advise_unreachable(error, self._address) from error.__cause__

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._transport.close()
