"""Protocols that built-in and third-party providers implement.

A `Provider` makes clients. A `Client` owns the connections. A `Model` is an address, its
attributes, and `converse`, one round trip. Encoding a request is pure; providers that speak HTTP
derive their models from `vibe_llms.providers.models`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import Struct

from vibe_llms.base.configuration import Configuration, StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import ContentNotLoaded
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister, Usage
from vibe_llms.messages.contents import Reference
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.attributes import ModelAttributes

#: Loader of the bytes of references, by their hashes.
Loader: TypeAlias = Callable[[Sequence[Reference]], Awaitable[Mapping[str, bytes]]]
Notifier: TypeAlias = Callable[[Notice], None]


class ProviderConfiguration(Struct, frozen=True):
    """Configuration that a provider's factory receives besides the name.

    `settings` holds the keys of its row, not yet checked: `configuration.read(Settings, settings,
    "providers", name)` makes them typed, and names the file and key of an error. `credential` looks
    up the key when it is needed, `stream` has the limits of this row, and `interactive` is True if
    a person watches the replies arrive.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    stream: StreamSettings
    credential: Credential
    interactive: bool = False


async def refuse_loading(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """Raise `ContentNotLoaded` for any reference; a loader for conversations without archive."""
    if not references:
        return {}
    raise ContentNotLoaded(
        f"content {references[0].hash[:12]}… not found: the conversation has no archive"
    )


def ignore_notices(_: Notice) -> None:
    """Drop a notice."""


class TurnContext(Struct, frozen=True, kw_only=True):
    """Context of one round trip; a model alone works with the defaults.

    `root` is the conversation that this one and its other forks began with, as they share a prefix.
    `fresh` are the identities of the canisters that this call adds: unsupported content in them is
    an error, while in older history it is described or left out with a notice. `cache` is the
    result of the model's `produce_cache` for this conversation. `throttle` is awaited between
    pieces of a stream, so that a slow reader holds it back. `kept` is given to models with
    `awaits_kept`, which may send their request while the prompt is being stored: they await it
    before the first event of the reply, and it returns the conversation's identity. `tracer`
    records attempts. With `compacts`, a model whose attribute of this name is True lets its
    provider summarize the messages: the reply is one block `compaction` that replaces them, and
    its text if the provider shows it. `summary_prompt` replaces the provider's own prompt for that
    summary, if it takes one.
    """

    conversation: str = ""
    root: str = ""
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
    compacts: bool = False
    summary_prompt: str = ""


class TokenCount(Struct, frozen=True):
    """Number of tokens; `estimated` is True if neither the server nor a tokenizer counted.

    `at_least` is a lower bound of an estimate.
    """

    tokens: int
    estimated: bool
    at_least: int = 0


class Model(Protocol):
    """Model of a provider."""

    @property
    def provider(self) -> str:
        """Name of the provider's row."""
        ...

    @property
    def name(self) -> str:
        """Name of the model at its provider."""
        ...

    @property
    def attributes(self) -> ModelAttributes:
        """Limits and abilities of the model."""
        ...

    def produce_cache(self) -> object:
        """Return a new cache of encoded history, which the conversation passes to each call."""
        ...

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise an error if the call cannot be made, before anything is stored or sent.

        Raise `ContentUnsupported` or `ControlInvalid` for input that this model does not accept,
        and `ConfigurationError` for a missing key or package.
        """
        ...

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """Make one round trip; return the canisters of the reply, the last with its ending.

        Raise a `ProviderError` if it fails; what arrived is in the events.
        """
        ...

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Count the tokens that the model would read; `load` returns the bytes of references."""
        ...

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """Return the body of the request that `converse` would send, as JSON; send nothing."""
        ...


@runtime_checkable
class InquiringModel(Protocol):
    """Model that must ask its provider to know what it accepts.

    A conversation awaits `inquire` before it stores or sends anything of a call. Models without
    this method know enough for `check`.
    """

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Ask the provider; then raise what `check` raises."""
        ...


def as_inquiring(model: Model) -> InquiringModel | None:
    """Return a model if it is an `InquiringModel`, or None; `isinstance` takes 25 times as long."""
    return cast("InquiringModel", model) if hasattr(model, "inquire") else None


def compacts_natively(model: Model) -> bool:
    """Return True if the provider of a model summarizes its conversations, as its row says."""
    return bool(getattr(model, "compacts", False))


class Client(Protocol):
    """Connection to a provider."""

    async def access_model(self, name: str) -> Model:
        """Return the model of this name without asking the provider, or raise `ModelNotFound`."""
        ...

    async def survey_models(self) -> Sequence[Model]:
        """Return the models that the provider lists, if any."""
        ...

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        ...


class Embeddings(Struct, frozen=True):
    """Vectors, one per text, in order, and the tokens that were read."""

    vectors: Sequence[Sequence[float]]
    usage: Usage


@runtime_checkable
class EmbeddingClient(Protocol):
    """Client whose provider makes vectors of texts."""

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """Return one vector per text, in one request, of the length `dimensions` if it is given.

        Texts are not cut. Raise `ContextOverflow` if a text is too long for the model or the
        request is too large, and `ReplyMalformed` if the answer is not one vector per text.
        """
        ...


class Provider(Protocol):
    """Row of the configuration."""

    @property
    def name(self) -> str:
        """Name of the row."""
        ...

    def produce_client(self) -> Client:
        """Return a new client, which the caller must close."""
        ...


ProviderFactory: TypeAlias = Callable[[str, ProviderConfiguration, EventHandler], Provider]
