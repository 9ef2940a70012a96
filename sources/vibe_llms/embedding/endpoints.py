"""`EndpointEmbedder`: vectors from a server, through the client of a row of `[providers]`."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from vibe_llms.base.configuration import Positive
from vibe_llms.base.exceptions import ContextOverflow, ProviderError
from vibe_llms.embedding.core import EMBEDDERS, EmbedderConfiguration, register
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import EmbeddingClient
from vibe_llms.providers.limits import access_slot, limited
from vibe_llms.providers.provider_pool import PROVIDERS
from vibe_llms.providers.round_trip import is_free
from vibe_llms.providers.spending import access_spending
from vibe_llms.providers.usages import check_usage

#: Characters per request: far below OpenAI's 300,000 tokens in any language.
_BATCH_CHARACTERS = 100_000
#: Overlong texts are halved down to this many characters.
_SHORTEST = 128
#: Maximum number of tokens added to begin and end a text.
_TEXT_TOKENS = 4


class EndpointSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of this module, besides those of every row.

    `provider` is the row of `[providers]` with the address, key, and limits. `dimensions` is the
    size of a vector, if the model has several sizes. A request has at most `batch-texts` texts.
    """

    provider: str
    dimensions: Positive | None = None
    batch_texts: Positive = 64


class EndpointEmbedder:
    """Embedding model of a server."""

    #: `None`: requests have their provider's limits, and may have to wait for their turn first.
    timeout_seconds: float | None = None

    def __init__(self, name: str, configuration: EmbedderConfiguration) -> None:
        whole = configuration.configuration
        self._settings = whole.read(EndpointSettings, configuration.settings, EMBEDDERS, name)
        rows = {row.name: row for row in whole.rows(PROVIDERS)}
        if self._settings.provider not in rows:
            raise whole.error(
                f"provider {self._settings.provider!r} not found; available: {', '.join(rows)}",
                EMBEDDERS,
                name,
                "provider",
            )
        if not configuration.model:
            raise whole.error(
                f"no model is set; use {name}/MODEL, or set default-model",
                EMBEDDERS,
                name,
                "default-model",
            )
        named = name in whole.tree.get(EMBEDDERS, {})
        self._place = (EMBEDDERS, name, "provider") if named else ("memory", "embedder")
        self._configuration = whole
        self._row = rows[self._settings.provider]
        self._model = configuration.model
        self._providers = configuration.providers
        self._notify = configuration.notify
        self._reported = False
        self._warned = False

    @property
    def model(self) -> str:
        """Row, model, and requested dimensions."""
        size = self._settings.dimensions
        return f"{self._row.name}/{self._model}" + (f" dimensions={size}" if size else "")

    async def inquire(self) -> None:
        """Raise if the provider cannot embed or its key is missing, without sending anything."""
        self._access_client()
        model = await self._providers.access_client(self._row).access_model(self._model)
        model.check((), Controls())

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text, in as many requests as needed.

        Only the beginning of an overlong text is embedded, and one notice reports it.
        """
        client = self._access_client()
        vectors: list[array[float]] = []
        for batch in _split(texts, self._settings.batch_texts):
            vectors += await self._embed(client, batch)
        return vectors

    async def close(self) -> None:
        """Do nothing: the connections belong to the providers."""

    def _access_client(self) -> EmbeddingClient:
        client = self._providers.access_client(self._row)
        if isinstance(client, EmbeddingClient):
            return client
        raise self._configuration.error(
            f"provider {self._row.name!r} does not embed texts; use openai or ollama, for example",
            *self._place,
        )

    async def _embed(self, client: EmbeddingClient, texts: Sequence[str]) -> Sequence[array[float]]:
        try:
            found = await self._ask(client, texts)
        except ContextOverflow:
            half = len(texts) // 2
            if half:
                first = await self._embed(client, texts[:half])
                return [*first, *await self._embed(client, texts[half:])]
            (text,) = texts
            if len(text) <= _SHORTEST:
                raise
            self._notify_once()
            return await self._embed(client, [text[: len(text) // 2]])
        return [array("f", vector) for vector in found]

    async def _ask(
        self, client: EmbeddingClient, texts: Sequence[str]
    ) -> Sequence[Sequence[float]]:
        """Send one request, within the limits of the row."""
        limiter = self._providers.access_row_limiter(self._row.name)
        with limited(limiter, sum(map(len, texts)) // 3):
            slot = access_slot()
            usage: Usage | None = Usage()
            try:
                async with self._budgeted(texts) as charge:
                    found = await client.embed(
                        self._model, texts, dimensions=self._settings.dimensions
                    )
                    usage, wrong = check_usage(found.usage)
                    if usage is not None:
                        charge(usage)
                if wrong and not self._warned:
                    self._warned = True
                    self._notify(f"{self.model}: {wrong}")
            finally:
                if slot is not None:
                    slot.record_usage(usage)
        return found.vectors

    @asynccontextmanager
    async def _budgeted(self, texts: Sequence[str]) -> AsyncIterator[Callable[[Usage], None]]:
        """Count a request against the budgets of this context, if any.

        If the usage is unknown, the full reservation is charged.
        """
        spending, used = access_spending(), list[Usage]()
        if spending is None:
            yield used.append
            return
        usage: Usage | None = None
        model = await self._providers.access_client(self._row).access_model(self._model)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        await spending.reserve(model, size + _TEXT_TOKENS * len(texts), 0, least=0)
        await spending.send()
        try:
            yield used.append
            usage = next((one for one in used if one != Usage()), None)
        except ProviderError as error:
            usage = Usage() if is_free(error) else None
            raise
        finally:
            await spending.record_usage(usage)

    def _notify_once(self) -> None:
        if not self._reported:
            self._reported = True
            self._notify(
                f"{self.model}: a text is too long for the model; only its beginning is used"
            )


def _split(texts: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Yield batches of texts within the limits of number and length, without splitting texts."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) >= most or size + len(text) > _BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


register("endpoints", EndpointEmbedder)
