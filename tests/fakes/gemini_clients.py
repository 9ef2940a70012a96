"""Clients and models of the Gemini provider for tests: for a fake server, or without any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.gemini import KEY, Issued, check_request
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice, ignore_events
from vibe_llms.providers.gemini.client import GeminiClient, GeminiProvider
from vibe_llms.providers.gemini.model import GeminiModel
from vibe_llms.providers.interfaces import ProviderConfiguration, TurnContext
from vibe_llms.providers.transport import Transport
from vibe_llms.testing.wires.gemini_replies import MODEL

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
) -> GeminiClient:
    """A client of the row `gemini`; `models` is what the user's file says of models."""
    overrides = {"providers": {"gemini": {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={"base-url": url, **{name.replace("_", "-"): settings[name] for name in settings}},
        stream=stream,
        credential=credential or Credential("gemini", given=Secret(KEY)),
    )
    client = GeminiProvider("gemini", configuration, event_handler).produce_client()
    if transport is not None:
        client.transport = transport
    return client


async def produce_model(url: str = "http://127.0.0.1:9", **options: Any) -> GeminiModel:
    """A model of such a client; `name` is `gemini-3.8-flash` unless given."""
    name = options.pop("name", MODEL)
    return await produce_client(url, **options).access_model(name)


async def assemble(
    model: GeminiModel,
    canisters: Sequence[Canister],
    *invokers: Invoker,
    controls: Controls = Controls(),
    issued: Issued | None = None,
    **context: Any,
) -> tuple[dict[str, Any], list[str]]:
    """The body of a request, which the strict fake accepts, and what notices say of it."""
    notices: list[Notice] = []
    body = await model.preview(
        canisters, invokers, controls, TurnContext(notify=notices.append, **context)
    )
    check_request(body, issued or Issued(), model.name)
    members: dict[str, Any] = json.loads(body)
    return members, [notice.text for notice in notices]
