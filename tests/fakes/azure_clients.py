"""Clients of rows of Azure for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.azure import KEY
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.azure import AzureClient
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.registry import access_provider

STREAM = StreamSettings(retries=0)
MODELS = {"azure": "gpt-6.1-sol", "azure-chat": "gpt-5.5", "azure-anthropic": "claude-opus-5"}


def produce_azure_client(
    row: str,
    url: str = "http://127.0.0.1:9",
    *,
    stream: StreamSettings = STREAM,
    event_handler: EventHandler = ignore_events,
    credential: Credential | None = None,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AzureClient[Any]:
    """A client of a shipped row, at the endpoint `url`."""
    loaded = load_configuration(overrides={"providers": {row: {"models": dict(models or {})}}})
    given = {name.replace("_", "-"): settings[name] for name in settings}
    configuration = ProviderConfiguration(
        configuration=loaded,
        settings={"base-url": url, **given},
        stream=stream,
        credential=credential or Credential(row, given=Secret(KEY)),
    )
    found = loaded.row("providers", row)
    client: Any = access_provider(found, configuration, event_handler).produce_client()
    return client  # type: ignore[no-any-return]


def azure_model(row: str) -> Callable[..., Any]:
    """Return a function that makes models of a row; `name` may be given."""

    async def produce(url: str = "http://127.0.0.1:9", **options: Any) -> Any:
        name = options.pop("name", MODELS[row])
        return await produce_azure_client(row, url, **options).access_model(name)

    return produce
