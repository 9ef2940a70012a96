"""Clients of both of OpenAI's interfaces for tests, and their recorded streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes.openai import KEY
from vibe_llms.configuration import StreamSettings, load_configuration
from vibe_llms.credentials import Credential, Secret
from vibe_llms.events import Event, EventHandler, ignore_events
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    Provenance,
    ReplyCanister,
)
from vibe_llms.messages.contents import NativePayload
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.exchanges import Assimilator
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.openai.chat_completions.client import ChatCompletionsProvider
from vibe_llms.providers.openai.chat_completions.messages import MODULE as CHAT_MODULE
from vibe_llms.providers.openai.chat_completions.streams import ChatCompletionsAssimilator
from vibe_llms.providers.openai.client import OpenAIClient
from vibe_llms.providers.openai.model import OpenAIModel
from vibe_llms.providers.openai.responses.client import ResponsesProvider
from vibe_llms.providers.openai.responses.messages import MODULE as RESPONSES_MODULE
from vibe_llms.providers.openai.responses.streams import ResponsesAssimilator

#: No retries, and limits that no test reaches by accident.
STREAM = StreamSettings(retries=0)
FOLDER = Path(__file__).parent.parent / "data" / "openai"
INTERFACES = ("chat", "responses")
#: What each recorded stream is called, `chat/text` say.
NAMES = tuple(
    f"{interface}/{path.stem}"
    for interface in INTERFACES
    for path in sorted((FOLDER / interface).glob("*.sse"))
)
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
) -> OpenAIClient:
    """A client of a row of this interface; `models` is what the user's file says of models."""
    overrides = {"providers": {interface: {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={"base-url": url, **{name.replace("_", "-"): settings[name] for name in settings}},
        stream=stream,
        credential=credential or Credential(interface, given=Secret(KEY)),
    )
    client: OpenAIClient = _PROVIDERS[interface](
        interface, configuration, event_handler
    ).produce_client()
    return client


async def produce_openai_model(
    interface: str, url: str = "http://127.0.0.1:9", **options: Any
) -> OpenAIModel:
    """A model of such a client; `name` may be given."""
    name = options.pop("name", MODELS[interface])
    return await produce_openai_client(interface, url, **options).access_model(name)


def produce_assimilator(interface: str) -> Assimilator:
    """A translator that leaves names as they are."""
    if interface == "chat":
        return ChatCompletionsAssimilator(interface, lambda name: name)
    return ResponsesAssimilator(interface, lambda name: name)


@cache
def load(name: str) -> bytes:
    """The bytes of a recorded stream."""
    return (FOLDER / f"{name}.sse").read_bytes()


@cache
def read_events(name: str) -> Sequence[dict[str, Any]]:
    """The events of a recorded stream, by a reader of our own that wants all of it at once."""
    text = load(name).decode().replace("\r\n", "\n")
    found = [
        line[6:]
        for block in text.split("\n\n")
        for line in block.split("\n")
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    return [json.loads(line) for line in found]


def provenance(interface: str) -> Provenance:
    return Provenance(MODULES[interface], interface, MODELS[interface])


def assimilate(
    interface: str, chunks: Iterable[bytes], *, whole: bool = False
) -> tuple[tuple[ReplyCanister, ...], list[Event]]:
    """The canisters and the events of a stream in chunks, or of a whole body."""
    events: list[Event] = []
    assimilator = produce_assimilator(interface)
    accumulator = Accumulator(provenance(interface), events.append)
    with accumulator:
        for chunk in chunks:
            for delta in assimilator.assimilate(chunk) if whole else assimilator.feed(chunk):
                accumulator.accept(delta)
        if not whole:
            for delta in assimilator.conclude():
                accumulator.accept(delta)
    return accumulator.canisters, events


def decode(native: NativePayload | None) -> Any:
    return json.loads(bytes(native.data)) if native else None


def strip(canisters: Iterable[ReplyCanister]) -> list[Any]:
    """Canisters without what may differ between two of the same reply: identities and times."""
    stripped: list[Any] = []
    for canister in canisters:
        where = (canister.provenance, canister.ending)
        if isinstance(canister, AssistantCanister):
            contents = [
                (msgspec.structs.replace(content, native=None), decode(content.native))
                for content in canister.contents
            ]
            stripped.append((contents, *where))
        else:
            assert isinstance(canister, InvocationCanister)
            native = decode(canister.native)
            stripped.append((canister.name, canister.call, canister.arguments, native, *where))
    return stripped
