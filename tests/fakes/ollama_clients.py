"""Clients of the Ollama provider for tests: for a fake server, or without any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.ollama.client import OllamaClient, OllamaProvider
from vibe_llms.providers.ollama.model import OllamaModel
from vibe_llms.providers.transport import Transport
from vibe_llms.testing.wires.ollama_replies import MODEL

#: No retries, and limits that no test reaches by accident.
STREAM = StreamSettings(retries=0)


def produce_client(
    url: str = "http://127.0.0.1:9",
    *,
    transport: Transport | None = None,
    stream: StreamSettings = STREAM,
    event_handler: EventHandler = ignore_events,
    credential: Credential | None = None,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> OllamaClient:
    """A client of the row `ollama`; `models` is what the user's file says of models."""
    overrides = {"providers": {"ollama": {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={"base-url": url, **{name.replace("_", "-"): settings[name] for name in settings}},
        stream=stream,
        credential=credential or Credential("ollama", "none"),
    )
    client = OllamaProvider("ollama", configuration, event_handler).produce_client()
    if transport is not None:
        client.transport = transport
    return client


async def produce_model(url: str = "http://127.0.0.1:9", **options: Any) -> OllamaModel:
    """A model of such a client; `name` is `qwen3:8b` unless given."""
    name = options.pop("name", MODEL)
    return await produce_client(url, **options).access_model(name)
