"""Embedders by address: rows of `[embedders]`, and of `[providers]` that can embed."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from vibe_llms.base.configuration import Configuration, Seconds
from vibe_llms.base.registries import Row
from vibe_llms.embedding.core import (
    EMBEDDERS,
    EmbedderConfiguration,
    access_embedder,
    ignore,
)
from vibe_llms.embedding.endpoints import EndpointEmbedder
from vibe_llms.embedding.interfaces import LoadingEmbedder
from vibe_llms.embedding.serving import ServedEmbedder
from vibe_llms.embedding.strict import StrictEmbedder
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.provider_pool import PROVIDERS, Providers
from vibe_llms.providers.registry import guard_row


class EmbedderRowSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys that every row of `[embedders]` may have.

    One batch of at most 256 texts may take `timeout-seconds`. The default depends on the embedder:
    1800 for a model in this process, which may have to be fetched; the provider's limits for an
    endpoint; 300 for any other.
    """

    default_model: str = ""
    query_prefix: str = ""
    entry_prefix: str = ""
    timeout_seconds: Seconds | None = None


def produce_embedder(
    configuration: Configuration,
    address: str,
    *,
    providers: Providers | None = None,
    notify: Callable[[str], None] = ignore,
    keep_minutes: float = 0.0,
    served: bool = True,
) -> StrictEmbedder:
    """Produce the embedder of `ROW`, `ROW/MODEL` of `[embedders]`, or `PROVIDER/MODEL`.

    Nothing is loaded or asked before first use; callers close it. `providers` belong to a session;
    without them it creates its own and closes them. If another process has a local model loaded
    (`vibe-llms memory serve-embedder`), that process is asked instead, unless `served` is off; with
    `keep_minutes` such a process is started. `notify` gets messages for the user. A
    `ConfigurationError` describes an invalid address or row.
    """
    own = None if providers is not None else Providers(configuration, ignore_events)
    used = providers or own
    assert used is not None
    rows = {row.name: row for row in configuration.rows(EMBEDDERS)}
    name, _, model = address.partition("/")
    if name in rows:
        embedder = _produce_from_row(configuration, rows[name], model, used, own, notify)
        if served and isinstance(embedder.bare, LoadingEmbedder):
            embedder.bare = ServedEmbedder(
                embedder.bare, name, address, configuration.places, keep_minutes
            )
        return embedder
    servers = {row.name: row for row in configuration.rows(PROVIDERS)}
    if name not in servers:
        raise configuration.error(
            f"embedder {address!r} not found; available: {', '.join(rows)}, and the providers "
            f"{', '.join(servers)}",
            "memory",
            "embedder",
        )
    if not model:
        raise configuration.error(
            f"{address!r} has no model; use {name}/MODEL with an embedding model",
            "memory",
            "embedder",
        )
    row = servers[name]
    settings = EmbedderConfiguration(configuration, model, {"provider": name}, used, notify)
    return StrictEmbedder(EndpointEmbedder(name, settings), row, owned=own)


def _produce_from_row(
    configuration: Configuration,
    row: Row,
    model: str,
    providers: Providers,
    own: Providers | None,
    notify: Callable[[str], None],
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
        notify,
    )
    with guard_row(row, EMBEDDERS):
        embedder = access_embedder(row, chosen)
    return StrictEmbedder(
        embedder,
        row,
        query_prefix=settings.query_prefix,
        entry_prefix=settings.entry_prefix,
        timeout_seconds=settings.timeout_seconds,
        table=EMBEDDERS,
        owned=own,
    )
