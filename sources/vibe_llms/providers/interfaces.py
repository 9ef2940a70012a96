"""The protocols that built-in and third-party providers implement.

A `Provider` makes clients. A `Client` owns the connections. A `Model` is an address, its attributes
and `converse`, one round trip. What encodes a request is pure; providers that speak HTTP derive
theirs from `vibe_llms.providers.models`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

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
from vibe_llms.tracing import Tracer

#: The bytes of references, by their hashes.
Loader: TypeAlias = Callable[[Sequence[Reference]], Awaitable[Mapping[str, bytes]]]
Notifier: TypeAlias = Callable[[Notice], None]


class ProviderConfiguration(Struct, frozen=True):
    """What a provider's factory receives besides the name.

    `settings` are the keys of its row, not yet checked: `configuration.read(Settings, settings,
    "providers", name)` makes them typed and names the file and key of what is wrong. `credential`
    looks up the key when it is needed, `stream` has the limits of this row, and `interactive` is
    true if a person watches the replies arrive.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    stream: StreamSettings
    credential: Credential
    interactive: bool = False


async def refuse_loading(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """The loader of conversations without an archive: there is nothing to load."""
    if not references:
        return {}
    raise ContentNotLoaded(f"there is no archive that holds {references[0].hash[:12]}…")


def ignore_notices(_: Notice) -> None:
    """A notifier that drops notices."""


class TurnContext(Struct, frozen=True, kw_only=True):
    """What surrounds one round trip; a model alone works with the defaults.

    `fresh` are the identities of the canisters that this call adds: content in them that the model
    cannot take is an error, while such content in older history is described or left out with a
    notice. `cache` is what the model's `produce_cache` made for this conversation. `throttle` is
    awaited between pieces of a stream, so that a slow reader holds it back. `kept` is given to
    models with `awaits_kept`, which may send their request while the prompt is being stored: they
    await it before the first event of the reply; it gives the conversation's identity. `tracer`
    records attempts.
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
    kept: Callable[[], Awaitable[str]] | None = None
    tracer: Tracer = Tracer()


class TokenCount(Struct, frozen=True):
    """A number of tokens; `estimated` if neither the server nor a tokenizer counted.

    `at_least` is a lower bound of an estimate.
    """

    tokens: int
    estimated: bool
    at_least: int = 0


class Model(Protocol):
    """One model of one provider."""

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
        """A new cache of encoded history, which the conversation keeps and passes to each call."""
        ...

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise an error if the call cannot be made, before anything is stored or sent.

        `ContentUnsupported` or `ControlInvalid` for what this model does not accept,
        `ConfigurationError` for a missing key or package.
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

        Raises a `ProviderError` if it fails; what arrived is in the events.
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
    """A model that must ask its provider to know what it accepts.

    A conversation awaits `inquire` before it stores or sends anything of a call. Models without
    this method know enough for `check`.
    """

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Ask the provider; then raise what `check` raises."""
        ...


def as_inquiring(model: Model) -> InquiringModel | None:
    """Return a model if it is an `InquiringModel`; `isinstance` takes 25 times as long."""
    return cast("InquiringModel", model) if hasattr(model, "inquire") else None


class Client(Protocol):
    """A connection to a provider."""

    async def access_model(self, name: str) -> Model:
        """The model of this name, without asking the provider; or `ModelNotFound`."""
        ...

    async def survey_models(self) -> Sequence[Model]:
        """The models that the provider offers, if it lists any."""
        ...

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        ...


class Embeddings(Struct, frozen=True):
    """One vector per text, in order, and the tokens that were read."""

    vectors: Sequence[Sequence[float]]
    usage: Usage


@runtime_checkable
class EmbeddingClient(Protocol):
    """A client whose provider makes vectors of texts."""

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """One vector per text, in one request, of the length `dimensions` if it is given.

        No text is cut: one that is too long for the model raises `ContextOverflow`, as does a
        request that is too large. `ReplyMalformed` if the answer is not one vector per text.
        """
        ...


class Provider(Protocol):
    """One row of the configuration."""

    @property
    def name(self) -> str:
        """The name of the row."""
        ...

    def produce_client(self) -> Client:
        """A new client; the caller closes it."""
        ...


ProviderFactory: TypeAlias = Callable[[str, ProviderConfiguration, EventHandler], Provider]
