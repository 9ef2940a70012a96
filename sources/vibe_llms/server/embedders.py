"""`Embedders`: conversion of texts to vectors, for all users."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.credentials import read_keys
from vibe_llms.base.exceptions import ModelNotFound, ReplyMalformed
from vibe_llms.embedding.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.embedding.endpoints import EndpointEmbedder
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.strict import StrictEmbedder
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.interfaces import EmbeddingClient
from vibe_llms.providers.limits import Limiters
from vibe_llms.providers.provider_pool import PROVIDERS, Providers
from vibe_llms.server.failures import Rejected


class Embedders:
    """The embedders that requests can name; rows of `[embedders]` are opened once for all users."""

    def __init__(self, configuration: Configuration, limiters: Limiters) -> None:
        self._configuration = configuration
        keys = read_keys(configuration.places.keys_file)
        self._providers = Providers(configuration, ignore_events, keys=keys, limiters=limiters)
        self._opened: dict[str, StrictEmbedder] = {}

    def names(self, name: str) -> bool:
        """Return True if the configuration has this name, as an alias or a row of `[embedders]`."""
        rows = {row.name for row in self._configuration.rows(EMBEDDERS)}
        return name in rows or name in self._configuration.aliases

    async def embed(
        self, name: str, texts: Sequence[str], dimensions: int | None
    ) -> Sequence[array[float]]:
        """Embed texts with an alias, a row of `[embedders]`, or `PROVIDER/MODEL`.

        Other models of a row are accepted only through an alias, because they may be paths of
        files.
        """
        address = self._configuration.aliases.get(name, name)
        rows = {row.name for row in self._configuration.rows(EMBEDDERS)}
        if address in rows or (address != name and address.partition("/")[0] in rows):
            if dimensions is not None:
                raise _refuse_dimensions(f"the vectors of {name!r} have a fixed size")
            return await self._access(address).embed(texts)
        notices: list[str] = []
        embedder = self._produce(name, address, dimensions, notices.append)
        try:
            vectors = await embedder.embed(texts)
        except ReplyMalformed as error:
            if dimensions is None:
                raise
            raise _refuse_dimensions(str(error)) from error
        if notices:
            raise Rejected(
                "a text is longer than the model allows",
                param="input",
                code="context_length_exceeded",
            )
        return vectors

    async def close(self) -> None:
        """Close connections and release models."""
        opened, self._opened = self._opened, {}
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._providers.close)
            for embedder in opened.values():
                stack.push_async_callback(embedder.close)

    def _access(self, address: str) -> StrictEmbedder:
        if address not in self._opened:
            self._opened[address] = produce_embedder(
                self._configuration, address, providers=self._providers
            )
        return self._opened[address]

    def _produce(
        self, name: str, address: str, dimensions: int | None, notify: Callable[[str], None]
    ) -> StrictEmbedder:
        provider, _, model = address.partition("/")
        rows = {row.name: row for row in self._configuration.rows(PROVIDERS)}
        present = {one.name for one in self._providers.survey() if one.present and not one.problem}
        if not model or provider not in present:
            raise _no_model(name)
        row = rows[provider]
        if not isinstance(self._providers.access_client(row), EmbeddingClient):
            raise _no_model(name)
        settings = {"provider": provider, "dimensions": dimensions}
        configuration = EmbedderConfiguration(
            self._configuration, model, settings, self._providers, notify
        )
        return StrictEmbedder(EndpointEmbedder(provider, configuration), row)


def _no_model(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"embedding model {name!r} not found; use a row of [embedders], PROVIDER/MODEL or an alias"
    )


def _refuse_dimensions(why: str) -> Rejected:
    return Rejected(why, param="dimensions", code="unsupported_parameter")
