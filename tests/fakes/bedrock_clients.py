"""Clients of the Bedrock provider for tests: for a fake server, or without any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fakes.bedrock import KEY, REGION
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.bedrock.client import BedrockClient, BedrockProvider
from vibe_llms.providers.bedrock.model import BedrockModel
from vibe_llms.providers.interfaces import ProviderConfiguration

#: No retries, and limits that no test reaches by accident.
STREAM = StreamSettings(retries=0)
MODEL = "global.anthropic.claude-opus-5"


def produce_client(
    url: str = "http://127.0.0.1:9",
    *,
    stream: StreamSettings = STREAM,
    event_handler: EventHandler = ignore_events,
    credential: Credential | None = None,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> BedrockClient:
    """A client of the row `bedrock`; `models` is what the user's file says of models."""
    overrides = {"providers": {"bedrock": {"models": dict(models or {})}}}
    keys = {"base_url": url, "region": REGION, **settings}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={name.replace("_", "-"): value for name, value in keys.items()},
        stream=stream,
        credential=credential or Credential("bedrock", given=Secret(KEY)),
    )
    client = BedrockProvider("bedrock", configuration, event_handler).produce_client()
    assert isinstance(client, BedrockClient)
    return client


async def produce_model(url: str = "http://127.0.0.1:9", **options: Any) -> BedrockModel:
    """A model of such a client; `name` is that of an inference profile unless given."""
    name = options.pop("name", MODEL)
    return await produce_client(url, **options).access_model(name)
