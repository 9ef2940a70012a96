"""From an address to an embedder: rows of `[embedders]`, and rows of `[providers]` that can embed.

Whoever wrote it, an embedder is made strict here: it is given texts that can be embedded, and what
it gives is checked before anybody compares it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from vibe_llms.configuration import Configuration
from vibe_llms.events import ignore_events
from vibe_llms.exceptions import (
    MemoryInvalid,
    ReplyMalformed,
)
from vibe_llms.memory.embedders.core import (
    EMBEDDERS,
    EmbedderConfiguration,
    access_embedder,
    ignore,
)
from vibe_llms.memory.embedders.endpoints import EndpointEmbedder
from vibe_llms.memory.embedders.interfaces import Embedder, InquiringEmbedder
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.core import guard_row
from vibe_llms.providers.rows import PROVIDERS, Providers
from vibe_llms.registries import Row

#: How far the length of a vector may be from 1 before it is made so.
_TOLERANCE = 1e-5


class EmbedderRowSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that every row of `[embedders]` may have, whatever its module."""

    default_model: str = ""
    query_prefix: str = ""
    entry_prefix: str = ""


def produce_embedder(
    configuration: Configuration,
    address: str,
    *,
    providers: Providers | None = None,
    tell: Callable[[str], None] = ignore,
) -> StrictEmbedder:
    """The embedder of an address: `ROW`, `ROW/MODEL` of `[embedders]`, or `PROVIDER/MODEL`.

    Nothing is loaded and nobody is asked before it is used; close it. Without `providers`, those of
    a session, it has its own and closes them. `tell` is told what a person should know. A
    `ConfigurationError` says what is wrong with the address or the row.
    """
    own = None if providers is not None else Providers(configuration, ignore_events)
    used = providers or own
    assert used is not None
    rows = {row.name: row for row in configuration.rows(EMBEDDERS)}
    name, _, model = address.partition("/")
    if name in rows:
        return _produce_from_row(configuration, rows[name], model, used, own, tell)
    servers = {row.name: row for row in configuration.rows(PROVIDERS)}
    if name not in servers:
        raise configuration.error(
            f"{address!r} names no embedder; there are {', '.join(rows)}, and the providers: "
            f"{', '.join(servers)}",
            *("memory", "embedder"),
        )
    if not model:
        raise configuration.error(
            f"{address!r} says no model; write {name}/MODEL with one that makes vectors",
            *("memory", "embedder"),
        )
    row = servers[name]
    settings = EmbedderConfiguration(configuration, model, {"provider": name}, used, tell)
    return StrictEmbedder(EndpointEmbedder(name, settings), row, owned=own)


def _produce_from_row(
    configuration: Configuration,
    row: Row,
    model: str,
    providers: Providers,
    own: Providers | None,
    tell: Callable[[str], None],
) -> StrictEmbedder:
    common = {
        key: row.settings[key]
        for key in EmbedderRowSettings.__struct_encode_fields__
        if key in row.settings
    }
    settings = configuration.read(EmbedderRowSettings, common, EMBEDDERS, row.name)
    chosen = EmbedderConfiguration(
        configuration,
        model or settings.default_model,
        {key: value for key, value in row.settings.items() if key not in common},
        providers,
        tell,
    )
    with guard_row(row, EMBEDDERS):
        embedder = access_embedder(row, chosen)
        for method in ("embed", "close"):
            if not callable(getattr(embedder, method, None)):
                raise TypeError(f"its factory made {embedder!r}, which is no embedder: no {method}")
        if not isinstance(embedder.model, str) or not embedder.model:
            # Vectors without a name could not be told from those of another model.
            raise TypeError(f"its factory made {embedder!r}, whose model has no name")
    return StrictEmbedder(
        embedder,
        row,
        query_prefix=settings.query_prefix,
        entry_prefix=settings.entry_prefix,
        table=EMBEDDERS,
        owned=own,
    )


class StrictEmbedder:
    """An embedder whose texts and vectors are checked, with the prefixes of its row."""

    def __init__(
        self,
        embedder: Embedder,
        row: Row,
        *,
        query_prefix: str = "",
        entry_prefix: str = "",
        table: str = PROVIDERS,
        owned: Providers | None = None,
    ) -> None:
        self._embedder = embedder
        self._row = row
        self._table = table
        self._prefixes = (repair_text(entry_prefix), repair_text(query_prefix))
        self._owned = owned
        self._dimensions: int | None = None

    @property
    def model(self) -> str:
        """What its vectors are stored under; the prefix of entries is part of it."""
        prefix = self._prefixes[0]
        return f"{self._embedder.model} {prefix!r}" if prefix else self._embedder.model

    async def inquire(self) -> None:
        """Raise for what stands in its way, a package, a key or weights; no model is loaded."""
        if isinstance(self._embedder, InquiringEmbedder):
            with guard_row(self._row, self._table):
                await self._embedder.inquire()

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text; see `vibe_llms.memory.embedders.interfaces.Embedder`.

        `MemoryInvalid` where a text is empty: there is nothing that it could be like.
        """
        if not all(text.strip() for text in texts):
            raise MemoryInvalid("an empty text has no vector")
        if not texts:
            return ()
        prefix = self._prefixes[question]
        wanted = [prefix + repair_text(text) for text in texts]
        with guard_row(self._row, self._table):
            found = await self._embedder.embed(wanted, question=question)
            return self._check([*found], len(texts))

    async def close(self) -> None:
        """Give up connections and models; safe to call twice."""
        try:
            with guard_row(self._row, self._table):
                await self._embedder.close()
        finally:
            owned, self._owned = self._owned, None
            if owned is not None:
                await owned.close()

    def _check(self, vectors: Sequence[Any], count: int) -> Sequence[array[float]]:
        if len(vectors) != count:
            self._refuse(f"{len(vectors)} vectors for {count} texts")
        checked: list[array[float]] = []
        for one in vectors:
            vector = one if isinstance(one, array) and one.typecode == "f" else array("f", one)
            length = math.hypot(*vector)
            if not math.isfinite(length) or not length:
                self._refuse("a vector that has no direction: it holds what is no number, or zeros")
            if abs(length - 1) > _TOLERANCE:
                vector = array("f", (number / length for number in vector))
            if self._dimensions is None:
                self._dimensions = len(vector)
            if len(vector) != self._dimensions:
                self._refuse(f"a vector of {len(vector)} numbers after those of {self._dimensions}")
            checked.append(vector)
        return checked

    def _refuse(self, what: str) -> None:
        raise ReplyMalformed(
            f"the embedder {self.model} gave {what}; nothing of it is used",
            provider=self._row.name,
        )
