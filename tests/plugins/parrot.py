"""A third party's provider: one module, the public protocols, one row of TOML.

Its models repeat what was said last, in capitals if the row says `loud = true`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from vibe_llms.base.exceptions import ContentUnsupported, ModelNotFound
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    Provenance,
    ReplyCanister,
    StopReason,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, settle_controls
from vibe_llms.providers.deltas import (
    ContentClosed,
    ContentOpened,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.interfaces import (
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.registry import register


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    loud: bool = False
    repeat_count: int = 1


class ParrotProvider:
    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self.settings = configuration.configuration.read(
            Settings, configuration.settings, "providers", name
        )
        self.key = "" if configuration.credential.kind == "none" else configuration.credential

    def produce_client(self) -> ParrotClient:
        return ParrotClient(self)


class ParrotClient:
    def __init__(self, provider: ParrotProvider) -> None:
        self.provider = provider
        self.closed = 0

    async def access_model(self, name: str) -> ParrotModel:
        if name not in ("grey", "green"):
            raise ModelNotFound(f"there is no parrot {name!r}")
        return ParrotModel(self.provider, name)

    async def survey_models(self) -> Sequence[ParrotModel]:
        return [await self.access_model(name) for name in ("grey", "green")]

    async def close(self) -> None:
        self.closed += 1


class ParrotModel:
    def __init__(self, provider: ParrotProvider, name: str) -> None:
        self._provider = provider
        self.name = name
        self.attributes = ModelAttributes(controls={})

    @property
    def provider(self) -> str:
        return self._provider.name

    def produce_cache(self) -> None:
        return None

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        settle_controls(controls, Controls(), self.attributes, self.name)
        for canister in canisters:
            if any(not isinstance(content, TextualContent) for content in canister.contents):
                raise ContentUnsupported(f"{self.name} repeats words only")

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        self.check([one for one in canisters if one.identity in context.fresh], controls)
        handler = context.event_handler or self._provider.event_handler
        accumulator = Accumulator(
            Provenance("parrot", self.provider, self.name), handler, context.conversation
        )
        heard = [canister.text for canister in canisters if isinstance(canister, UserCanister)]
        said = " ".join(heard[-1:] * self._provider.settings.repeat_count)
        with accumulator:
            accumulator.accept(ReplyOpened("squawk"))
            accumulator.accept(ContentOpened("text"))
            accumulator.accept(TextDelta(said.upper() if self._provider.settings.loud else said))
            accumulator.accept(ContentClosed())
            accumulator.accept(UsageDelta(Usage(len(heard), output_tokens=1)))
            accumulator.accept(ReplyClosed(StopReason.FINISHED))
        return accumulator.canisters

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        return TokenCount(len(canisters), estimated=True)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        self.check((), controls)
        heard = [canister.text for canister in canisters if isinstance(canister, UserCanister)]
        return encode_json({"heard": heard})


register("parrot", ParrotProvider)
