"""Checks that a provider refuses unsupported input before it sends, and reports errors."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct

from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.base.exceptions import (
    ContentUnsupported,
    ControlInvalid,
    CredentialRefused,
    ProviderError,
    ProviderUnreachable,
    RequestError,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, EventHandler, MessageFailedEvent, ignore_events
from vibe_llms.providers.interfaces import (
    Client,
    Model,
    Provider,
    ProviderConfiguration,
    ProviderFactory,
    TurnContext,
)
from vibe_llms.testing.events import check_events

WAIT_SECONDS = 60.0
#: A picture of one pixel.
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)
#: Attributes of a model that accepts no media and no controls.
_NARROW = {
    "accepts": [],
    "controls": dict.fromkeys(
        (name for name in Controls.__struct_encode_fields__ if name != "extras"), False
    ),
}


def require(condition: bool, complaint: str) -> None:
    """Raise `AssertionError` with this complaint if a condition is false."""
    if not condition:
        raise AssertionError(complaint)


class Bench(Struct, frozen=True):
    """A provider under test: its factory, and the settings of its row."""

    factory: ProviderFactory
    name: str
    settings: Mapping[str, Any]
    key: str

    @asynccontextmanager
    async def open(
        self,
        event_handler: EventHandler = ignore_events,
        *,
        overrides: Mapping[str, Any] | None = None,
        key: str | None = None,
        **settings: Any,
    ) -> AsyncIterator[tuple[Provider, Client]]:
        """Open a provider and its client, with the given settings or key if any."""
        key = self.key if key is None else key
        # Ignore the configuration of the user of this machine.
        with tempfile.TemporaryDirectory() as home:
            shipped = load_configuration(environment={"VIBE_LLMS_HOME": home}, overrides=overrides)
        configuration = ProviderConfiguration(
            configuration=shipped,
            settings={**self.settings, **settings},
            stream=StreamSettings(retries=0),
            credential=Credential(
                self.name, kind="key" if key else "none", given=Secret(key) if key else None
            ),
        )
        provider = self.factory(self.name, configuration, event_handler)
        client = provider.produce_client()
        try:
            yield provider, client
        finally:
            await client.close()


async def check_limits(bench: Bench, model: str) -> None:
    """Check that unsupported contents and controls are refused before anything is sent."""
    narrow = {"providers": {bench.name: {"models": {".*": _NARROW}}}}
    async with bench.open(overrides=narrow) as (_, client):
        chosen = await client.access_model(model)
        said = UserCanister((TextualContent("What is it?"), ImageContent(PIXEL, "image/png")))
        if not chosen.attributes.accept("image", "image/png"):
            await _check_refusal(chosen, [said], Controls(), ContentUnsupported)
        taken = chosen.attributes.controls
        if taken is not None and "seed" not in taken:
            hello = UserCanister.from_text("Hello!")
            _check_early(chosen, [hello], Controls(seed=1), ControlInvalid)
            await _check_refusal(chosen, [hello], Controls(seed=1), ControlInvalid)


def _check_early(
    model: Model, said: Sequence[Canister], controls: Controls, kind: type[RequestError]
) -> None:
    reported: VibeLlmsError | None = None
    try:
        model.check(said, controls)
    except kind as error:
        reported = error
    require(reported is not None, f"`check` did not raise {kind.__name__}")


async def _check_refusal(
    model: Model, said: Sequence[Canister], controls: Controls, kind: type[RequestError]
) -> None:
    events: list[Event] = []
    fresh = frozenset(canister.identity for canister in said)
    context = TurnContext(event_handler=events.append, fresh=fresh)
    reported: VibeLlmsError | None = None
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await model.converse(said, (), controls, context)
    except kind as error:
        reported = error
    require(reported is not None, f"unsupported input did not raise {kind.__name__}")
    require(not events, f"a request that was refused before sending had events: {events!r}")


async def check_errors(bench: Bench, model: str) -> None:
    """Check that a failure raises its error, is reported by one event, and shows no key."""
    if bench.key:
        wrong = f"{bench.key}-but-wrong"
        await _check_error(bench, model, CredentialRefused, key=wrong)
    if "base-url" in bench.settings:
        with _closed_port() as address:
            await _check_error(bench, model, ProviderUnreachable, **{"base-url": address})


async def _check_error(bench: Bench, model: str, kind: type[ProviderError], **changes: Any) -> None:
    events: list[Event] = []
    reported: ProviderError | None = None
    async with bench.open(events.append, **changes) as (_, client):
        chosen = await client.access_model(model)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await chosen.converse([UserCanister.from_text("Hello!")])
        except ProviderError as error:
            reported = error
    require(isinstance(reported, kind), f"expected {kind.__name__}, got {reported!r}")
    require(
        reported is not None and reported.provider == bench.name, "an error does not name its row"
    )
    require(not bench.key or bench.key not in str(reported), "an error shows the key")
    check_events(events, turn=False)
    last = events[-1] if events else None
    require(
        isinstance(last, MessageFailedEvent) and last.error is reported,
        f"the events report a failure as {last!r}",
    )


@contextmanager
def _closed_port() -> Iterator[str]:
    """Yield the address of a port on this machine that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
