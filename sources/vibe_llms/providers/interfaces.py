"""What a provider is: the protocols that built-in and third-party providers fulfil alike.

A `Provider` makes clients and has the default event handler. A `Client` owns connections and its
four processors, which are pure, keep no state and take the model as an argument. A `Model` is an
address, its attributes and `converse`, one round trip.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from vibe_llms.configuration import Configuration, StreamSettings
from vibe_llms.controls import Controls
from vibe_llms.credentials import Credential
from vibe_llms.events import EventHandler, Notice
from vibe_llms.exceptions import ContentNotLoaded
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister, Usage
from vibe_llms.messages.contents import Reference
from vibe_llms.providers.attributes import ModelAttributes

#: The bytes of references, by their hashes.
Loader: TypeAlias = Callable[[Sequence[Reference]], Awaitable[Mapping[str, bytes]]]
Notifier: TypeAlias = Callable[[Notice], None]


class ProviderConfiguration(Struct, frozen=True):
    """What a provider's factory is given besides its name.

    `settings` are the keys of its row, not yet checked: `configuration.read(Settings, settings,
    "providers", name)` makes them typed and names the file and key of what is wrong. `credential`
    looks the key up when it is needed, `stream` holds the limits of this row, `interactive` tells
    that a person watches the replies as they come.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    stream: StreamSettings
    credential: Credential
    interactive: bool = False


async def refuse_loading(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """The loader of conversations without an archive: there is nowhere to load from."""
    if not references:
        return {}
    raise ContentNotLoaded(f"there is no archive that holds {references[0].hash[:12]}…")


def ignore_notices(_: Notice) -> None:
    """The notifier of those who do not want notices."""


class TurnContext(Struct, frozen=True, kw_only=True):
    """What surrounds one round trip; a model alone works with the defaults.

    `fresh` are the identities of the canisters that this very call adds: what the model cannot take
    of them is an error, while older history is described or left out with a notice. `cache` is what
    the model's `produce_cache` made for this conversation. `throttle` is awaited between pieces of
    a stream, so that a slow reader holds it back.
    """

    conversation: str = ""
    event_handler: EventHandler | None = None
    notify: Notifier = ignore_notices
    load: Loader = refuse_loading
    streaming: bool = True
    fresh: frozenset[str] = frozenset()
    default_controls: Controls = Controls()
    cache: object = None
    throttle: Callable[[], Awaitable[object]] | None = None


class TokenCount(Struct, frozen=True):
    """A number of tokens; `estimated` where nobody who knows was asked.

    An estimate may know that there are surely `at_least` so many.
    """

    tokens: int
    estimated: bool
    at_least: int = 0


class Model(Protocol):
    """One model of one provider, ready to be spoken with."""

    @property
    def provider(self) -> str:
        """The name of the provider's row."""
        ...

    @property
    def name(self) -> str:
        """The model's name, as its provider calls it."""
        ...

    @property
    def attributes(self) -> ModelAttributes:
        """What is known of the model."""
        ...

    def produce_cache(self) -> object:
        """A fresh cache of encoded history; the conversation holds it and hands it down."""
        ...

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what stands in the way of a call, before anything of it is kept or sent.

        `ContentUnsupported` and `ControlInvalid` for what this model cannot take; a
        `ConfigurationError` for a key or a package that is missing.
        """
        ...

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One round trip: the canisters of the reply, the last of which says how it ended.

        Raises a `ProviderError` where it fails; what had arrived is in the events.
        """
        ...

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read; `load` gives the bytes of references."""
        ...

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """The body of the request that `converse` would send, as JSON; nothing is sent."""
        ...


@runtime_checkable
class InquiringModel(Protocol):
    """A model that knows what it can take only when its provider was asked.

    A conversation awaits `inquire` before it keeps or sends anything of a call; a model without it
    knows enough for its `check`.
    """

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Ask what has to be known; then raise what `check` raises."""
        ...


class Client(Protocol):
    """A connection to a provider."""

    async def access_model(self, name: str) -> Model:
        """The model of this name, without asking the provider; or `ModelNotFound`."""
        ...

    async def survey_models(self) -> Sequence[Model]:
        """The models that the provider offers; perhaps none."""
        ...

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        ...


class Embeddings(Struct, frozen=True):
    """A vector for each text, in their order, and the tokens that were read."""

    vectors: Sequence[Sequence[float]]
    usage: Usage


@runtime_checkable
class EmbeddingClient(Protocol):
    """A client whose provider makes vectors of texts; one without it makes none."""

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """A vector for each text, in one request; `dimensions` asks for so many numbers in each.

        No text is cut: one that is too long for the model is a `ContextOverflow`, as is a request
        that is too large. `ReplyMalformed` where what came is not a vector for each.
        """
        ...


class Provider(Protocol):
    """One row of the configuration."""

    @property
    def name(self) -> str:
        """The name of the row."""
        ...

    def produce_client(self) -> Client:
        """A new client; whoever asks for it closes it."""
        ...


ProviderFactory: TypeAlias = Callable[[str, ProviderConfiguration, EventHandler], Provider]


class ControlsProcessor(Protocol):
    """Controls to the members of a request."""

    def nativize(self, controls: Controls, model: Model) -> Mapping[str, Any]:
        """The members of the request's body that these controls become."""
        ...


class InvocationsProcessor(Protocol):
    """Tools to their native declarations, and names of tools to the wire and back."""

    def nativize(self, invokers: Sequence[Invoker], model: Model) -> Sequence[Any]:
        """The declarations of these tools."""
        ...

    def nativize_name(self, name: str) -> str:
        """The name on the wire of a tool's canonical name."""
        ...


class MessagesProcessor(Protocol):
    """Canisters to pieces of a request, each encoded once."""

    def nativize(
        self, canister: Canister, model: Model, texts: Mapping[str, bytes]
    ) -> tuple[Any, Sequence[Notice]]:
        """The piece of a canister, and what of it cannot be carried to this model.

        `texts` holds the bytes of every text that the canister has by reference.
        """
        ...


class ConversationTokenizer(Protocol):
    """Counts tokens, asking the provider where it offers to count."""

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read."""
        ...
