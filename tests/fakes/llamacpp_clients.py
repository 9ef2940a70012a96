"""Clients of the llama.cpp provider for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.llamacpp.client import LlamacppClient, LlamacppProvider
from vibe_llms.providers.llamacpp.model import LlamacppModel

#: No retries, and limits that no test reaches by accident.
STREAM = StreamSettings(retries=0)


def produce_client(
    *,
    stream: StreamSettings = STREAM,
    event_handler: EventHandler = ignore_events,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> LlamacppClient:
    """A client of the row `llamacpp`; `models` is what the user's file says of models."""
    overrides = {"providers": {"llamacpp": {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={name.replace("_", "-"): settings[name] for name in settings},
        stream=stream,
        credential=Credential("llamacpp", "none"),
    )
    return LlamacppProvider("llamacpp", configuration, event_handler).produce_client()


async def produce_model(path: Path, **options: Any) -> LlamacppModel:
    """The model of a file, with a client of its own."""
    return await produce_client(**options).access_model(str(path))
