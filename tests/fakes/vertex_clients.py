"""Clients of rows of Vertex AI for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.vertex import KEY, PROJECT
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.registry import access_provider
from vibe_llms.providers.transport import Transport
from vibe_llms.providers.vertex import VertexClient

STREAM = StreamSettings(retries=0)
MODELS = {"vertex": "gemini-3.8-flash", "vertex-anthropic": "claude-opus-5"}


def produce_vertex_client(
    row: str,
    url: str = "http://127.0.0.1:9",
    *,
    transport: Transport | None = None,
    stream: StreamSettings = STREAM,
    event_handler: EventHandler = ignore_events,
    credential: Credential | None = None,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> VertexClient[Any]:
    """A client of a shipped row, at the address `url`; it has a key if no credential is given."""
    loaded = load_configuration(overrides={"providers": {row: {"models": dict(models or {})}}})
    keys = {"base_url": url, "project": PROJECT, "location": "global", **settings}
    configuration = ProviderConfiguration(
        configuration=loaded,
        settings={name.replace("_", "-"): value for name, value in keys.items()},
        stream=stream,
        credential=credential or Credential(row, "package", given=Secret(KEY)),
    )
    found = loaded.row("providers", row)
    client: Any = access_provider(found, configuration, event_handler).produce_client()
    if transport is not None:
        client.transport = transport
    return client  # type: ignore[no-any-return]


def vertex_model(row: str) -> Callable[..., Any]:
    """Return a function that makes models of a row; `name` may be given."""

    async def produce(url: str = "http://127.0.0.1:9", **options: Any) -> Any:
        name = options.pop("name", MODELS[row])
        return await produce_vertex_client(row, url, **options).access_model(name)

    return produce
