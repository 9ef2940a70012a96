"""Clients and models of the Anthropic provider for tests: for a fake server, or without any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.anthropic import KEY, Issued, check_request
from tests.fakes.server import ReceivedRequest
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice, ignore_events
from vibe_llms.providers.anthropic.client import AnthropicClient, AnthropicProvider
from vibe_llms.providers.anthropic.controls import read_native
from vibe_llms.providers.anthropic.model import AnthropicModel
from vibe_llms.providers.interfaces import ProviderConfiguration, TurnContext
from vibe_llms.providers.transport import Transport

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
) -> AnthropicClient:
    """A client of the row `anthropic`; `models` is what the user's file says of models."""
    overrides = {"providers": {"anthropic": {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={"base-url": url, **{name.replace("_", "-"): settings[name] for name in settings}},
        stream=stream,
        credential=credential or Credential("anthropic", given=Secret(KEY)),
    )
    client = AnthropicProvider("anthropic", configuration, event_handler).produce_client()
    if transport is not None:
        client.transport = transport
    return client


async def produce_model(url: str = "http://127.0.0.1:9", **options: Any) -> AnthropicModel:
    """A model of such a client; `name` is `claude-opus-5` unless given."""
    name = options.pop("name", "claude-opus-5")
    return await produce_client(url, **options).access_model(name)


async def assemble(
    model: AnthropicModel,
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
    check_body(model, body, issued)
    members: dict[str, Any] = json.loads(body)
    return members, [notice.text for notice in notices]


def check_body(model: AnthropicModel, body: bytes, issued: Issued | None = None) -> None:
    """Raise `Refused` where the strict fake would not accept a body that is sent to a model."""
    request = ReceivedRequest("POST", "/v1/messages", {}, body)
    system_messages = read_native(model).system_messages
    check_request(request, issued or Issued(), system_messages=system_messages)
