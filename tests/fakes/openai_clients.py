"""Clients of both of OpenAI's interfaces for tests, and their recorded streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fakes.openai import KEY
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.openai.chat_completions.messages import MODULE as CHAT_MODULE
from vibe_llms.providers.openai.chat_completions.model import ChatCompletionsProvider
from vibe_llms.providers.openai.client import OpenAIClient
from vibe_llms.providers.openai.model import OpenAIModel
from vibe_llms.providers.openai.responses.messages import MODULE as RESPONSES_MODULE
from vibe_llms.providers.openai.responses.model import ResponsesProvider

#: No retries, and limits that no test reaches by accident.
STREAM = StreamSettings(retries=0)
INTERFACES = ("chat", "responses")
MODELS = {"chat": "gpt-5.5", "responses": "gpt-6.1-sol"}
MODULES = {"chat": CHAT_MODULE, "responses": RESPONSES_MODULE}
_PROVIDERS: dict[str, Any] = {"chat": ChatCompletionsProvider, "responses": ResponsesProvider}


def produce_openai_client(
    interface: str,
    url: str = "http://127.0.0.1:9",
    *,
    stream: StreamSettings = STREAM,
    event_handler: EventHandler = ignore_events,
    credential: Credential | None = None,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> OpenAIClient[Any, Any]:
    """A client of a row of this interface; `models` is what the user's file says of models."""
    overrides = {"providers": {interface: {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={"base-url": url, **{name.replace("_", "-"): settings[name] for name in settings}},
        stream=stream,
        credential=credential or Credential(interface, given=Secret(KEY)),
    )
    client: OpenAIClient[Any, Any] = _PROVIDERS[interface](
        interface, configuration, event_handler
    ).produce_client()
    return client


async def produce_openai_model(
    interface: str, url: str = "http://127.0.0.1:9", **options: Any
) -> OpenAIModel[Any]:
    """A model of such a client; `name` may be given."""
    name = options.pop("name", MODELS[interface])
    client = produce_openai_client(interface, url, **options)
    model: OpenAIModel[Any] = await client.access_model(name)
    return model
