"""A provider of one's own: its model shouts back what it was told."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from vibe_llms import (
    Canister,
    Controls,
    EventHandler,
    Invoker,
    Notice,
    Provenance,
    Reference,
    TextualContent,
    Usage,
    UserCanister,
)
from vibe_llms.exceptions import ContentUnsupported, ModelNotFound
from vibe_llms.messages.canisters import ReplyCanister
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, load_attributes, settle_controls
from vibe_llms.providers.core import register
from vibe_llms.providers.deltas import Delta, ReplyClosed, ReplyOpened, TextDelta, UsageDelta
from vibe_llms.providers.exchanges import attempt_reply
from vibe_llms.providers.interfaces import (
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.pieces import encode_json, load_texts
from vibe_llms.providers.transport import Watch


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module, besides those that every row has."""

    ending: str = "!"


class ShoutProvider:
    """A row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self.stream = configuration.stream
        whole = configuration.configuration
        # What does not fit becomes an error that names the file and the key.
        self.settings = whole.read(Settings, configuration.settings, "providers", name)
        self.attributes = load_attributes(whole, name)

    def produce_client(self) -> "ShoutClient":
        return ShoutClient(self)


class ShoutClient:
    """What owns the connection, if there is one."""

    def __init__(self, provider: ShoutProvider) -> None:
        self.provider = provider

    async def access_model(self, name: str) -> "ShoutModel":
        if name != "loud":
            raise ModelNotFound(f"{self.provider.name!r} has no model {name!r}; there is loud")
        return ShoutModel(self.provider, name)

    async def survey_models(self) -> Sequence["ShoutModel"]:
        return [await self.access_model("loud")]

    async def close(self) -> None:
        pass


class ShoutModel:
    """One model."""

    def __init__(self, provider: ShoutProvider, name: str) -> None:
        self._row = provider
        self.provider = provider.name
        self.name = name
        self.attributes: ModelAttributes = provider.attributes.integrate(name)

    def produce_cache(self) -> None:
        return None

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise ContentUnsupported or ControlInvalid for what this model cannot take."""
        for canister in canisters:
            if any(not isinstance(content, TextualContent) for content in canister.contents):
                raise ContentUnsupported(f"{self.provider}/{self.name} takes nothing but text")
        settle_controls(controls, Controls(), self.attributes, self.name)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        self.check([one for one in canisters if one.identity in context.fresh], controls)
        request = await self._encode(canisters, context)
        accumulator = Accumulator(
            Provenance(__name__, self.provider, self.name),
            context.event_handler or self._row.event_handler,
            context.conversation,
        )

        async def attempt(watch: Watch) -> None:
            # Where one waits for bytes: watch.expect("idle-seconds", ...), then watch.rest().
            watch.rest()
            for delta in self._answer(request):
                accumulator.accept(delta)

        return await attempt_reply(
            attempt,
            accumulator,
            provider=self.provider,
            settings=self._row.stream,
            notify=context.notify,
        )

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
        return encode_json(await self._encode(canisters, context))

    async def _encode(
        self, canisters: Sequence[Canister], context: TurnContext
    ) -> Mapping[str, str]:
        """Canisters to what goes over the wire; here only the last words do."""
        said: list[str] = []
        texts = await load_texts(canisters, context.load)
        for canister in canisters:
            if not isinstance(canister, UserCanister):
                continue
            for content in canister.contents:
                match content:
                    case TextualContent(data=Reference(hash=digest)):
                        said.append(texts[digest].decode())
                    case TextualContent(data=str() as text):
                        said.append(text)
                    case _:
                        left_out = "what is no text is left out: nobody can shout it"
                        context.notify(Notice("conversion", left_out, canister.identity))
        return {"say": said[-1]}

    def _answer(self, request: Mapping[str, str]) -> Iterator[Delta]:
        """What came over the wire, as deltas."""
        yield ReplyOpened()
        for word in request["say"].split():
            yield TextDelta(word.upper() + " ")
        yield TextDelta(self._row.settings.ending)
        yield UsageDelta(Usage(output_tokens=len(request["say"].split())))
        yield ReplyClosed("finished")


register("shout", ShoutProvider)
