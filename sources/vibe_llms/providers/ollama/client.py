"""A connection to an Ollama server, with descriptions of its models and embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from vibe_llms.base.configuration import merge
from vibe_llms.base.exceptions import ProviderError, ProviderUnreachable
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.embeddings import check_vectors
from vibe_llms.providers.http_transport import reveal_key
from vibe_llms.providers.interfaces import Embeddings
from vibe_llms.providers.limits import access_slot
from vibe_llms.providers.models import HttpClient, HttpProvider
from vibe_llms.providers.ollama.catalogue import EMBEDDED, SHOWN
from vibe_llms.providers.ollama.errors import ERRORS, advise_unreachable
from vibe_llms.providers.ollama.model import OllamaModel, OllamaSettings
from vibe_llms.providers.ollama.package import OllamaLibrary
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.round_trip import JSON_HEADERS
from vibe_llms.providers.transport import Incoming, Outgoing, Transport

#: Seconds to wait for the description of a model before the model is used without it.
DESCRIBE_SECONDS = 10.0
#: Statuses of a server that lacks the model, or does not describe models.
_NOT_THERE = (404, 405, 501)


class OllamaClient(HttpClient[OllamaModel, OllamaSettings]):
    """A connection to a server, with one object for each model."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._models: dict[str, OllamaModel] = {}
        self._reported: dict[str, Mapping[str, Any]] = {}
        self._described: set[str] = set()
        self._unknown: set[str] = set()
        self._asking = asyncio.Lock()

    def produce_transport(self) -> Transport:
        """Return the transport for the requests of this row."""
        return OllamaTransport(self.address, super().produce_transport())

    def produce_model(self, name: str, reported: Mapping[str, Any] | None = None) -> OllamaModel:
        """Return the model of this name, and add the reported properties to earlier ones."""
        if reported:
            self._reported[name] = merge(self._reported.get(name, {}), reported)
        if name in self._models and not reported:
            return self._models[name]
        model = super().produce_model(name, self._reported.get(name))
        attributes = model.attributes
        if fixed := self.settings.num_ctx:
            # The row sets the context of all requests.
            context_tokens = min(attributes.context_tokens or fixed, fixed)
            attributes = msgspec.structs.replace(attributes, context_tokens=context_tokens)
        model = self._models.setdefault(name, model)
        model.attributes = attributes
        return model

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """Return a vector for each text; see `vibe_llms.providers.interfaces.EmbeddingClient`."""
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
        outgoing = Outgoing("POST", "/api/embed", (encode_json(request),), JSON_HEADERS)
        body = await self.fetch(outgoing, ERRORS, model=model, slot=access_slot())
        embedded = self.read(EMBEDDED.decode, body, "the list of vectors")
        check_vectors(
            embedded.embeddings, len(texts), provider=self.provider, dimensions=dimensions
        )
        usage = Usage(uncached_input_tokens=embedded.prompt_eval_count or 0)
        return Embeddings(embedded.embeddings, usage)

    def produce_library(self) -> OllamaLibrary:
        """Return the library that lists, shows and pulls models; it needs the package ollama."""
        return OllamaLibrary(
            self.provider,
            self.address,
            lambda: reveal_key(self.credential),
            connect_seconds=self.stream.connect_seconds,
            idle_seconds=self.stream.idle_seconds,
            offline=self.offline,
        )

    def is_described(self, name: str) -> bool:
        """Return True if the server has described the model."""
        return name in self._described

    async def describe(self, name: str) -> None:
        """Ask the server once to describe a model, which is usable without an answer."""
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
                asked = (encode_json({"model": name}),)
                outgoing = Outgoing("POST", "/api/show", asked, JSON_HEADERS)
                body = await self.fetch(outgoing, ERRORS, settings=quick)
                shown = self.read(SHOWN.decode, body, "the model details")
            except ProviderError as error:
                # The request itself will fail with the reason. The next one asks again, unless the
                # server has no description.
                if error.status in _NOT_THERE:
                    self._unknown.add(name)
                return
            self.produce_model(name, shown.attributes)
            self._described.add(name)

    def forget(self, name: str) -> None:
        """Describe the model again at its next use, since the server may get it later."""
        self._described.discard(name)
        self._unknown.discard(name)


class OllamaTransport:
    """A transport whose connection errors say how to start the server."""

    def __init__(self, address: str, transport: Transport) -> None:
        self._address = address
        self._transport = transport

    def prepare(self) -> None:
        """Find the key and check the address; see `vibe_llms.providers.transport.Transport`."""
        self._transport.prepare()

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and yield the reply; see `vibe_llms.providers.transport.Transport`."""
        try:
            async with self._transport.open(outgoing, body) as incoming:
                yield incoming
        except ProviderUnreachable as error:
            if error.connected or self._address.startswith("https:"):
                raise
            raise advise_unreachable(error, self._address) from error.__cause__

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._transport.close()


OllamaProvider = HttpProvider.of(OllamaModel, OllamaSettings, OllamaClient)
