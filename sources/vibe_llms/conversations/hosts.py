"""The session's services for ensembles and hooks, and the registries of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from vibe_llms.base.configuration import LOCAL, Budget, Configuration
from vibe_llms.base.registries import Registry, Row
from vibe_llms.conversations.documents import DocumentService
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import Elicitor
from vibe_llms.messages.canisters import Canister, InvocationCanister, Turn, Usage
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.interfaces import Loader, Model
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.storage.backends import Backend

T = TypeVar("T")
AskModel: TypeAlias = Callable[[str, Sequence[Canister], str, Controls], Awaitable[Turn]]


class AgentRequest(Struct, frozen=True, kw_only=True):
    """A question to an agent.

    `model` answers if the agent has none of its own. `depth` counts the agents between the user and
    the answer, from 1. `payers` are the budgets of the asking agents, by name.
    """

    agent: str
    text: str
    model: Model
    depth: int
    payers: Mapping[str, Budget] = {}


AskAgent: TypeAlias = Callable[[AgentRequest, EventHandler], Awaitable[Turn]]


class Vault(Protocol):
    """Storage for an ensemble's secrets, protected like keys; both methods block."""

    def read(self, name: str) -> str:
        """Return the value of a name; empty if missing."""
        ...

    def keep(self, name: str, text: str) -> None:
        """Store a value; an empty one deletes the name."""
        ...


class EnsembleHost(Struct, frozen=True, kw_only=True):
    """A session's services for an ensemble; None means unavailable.

    `elicitor` asks the user. `ask_model(address, canisters, supervisor, controls)` runs one turn
    with a model; callers must first call `admit`, which returns why a call is not allowed.
    `ask_agent(request, event_handler)` runs one turn with an agent and sends its events to the
    handler. `notify` shows a message to the user; any thread may call it. `access_documents`
    returns the session's document service. `open_tools(name)` opens the ensemble of a row and
    returns its tools; those changed since their approval are blocked. `backend` stores the data of
    the `user`.
    """

    elicitor: Elicitor | None = None
    ask_model: AskModel | None = None
    ask_agent: AskAgent | None = None
    admit: Callable[[InvocationCanister, Invoker], Awaitable[str]] = Gatekeeper().admit
    vault: Vault | None = None
    notify: Callable[[Notice], None] = lambda _: None
    access_documents: Callable[[], DocumentService] | None = None
    open_tools: Callable[[str], Awaitable[Sequence[Invoker]]] | None = None
    backend: Backend | None = None
    user: str = LOCAL


class EnsembleConfiguration(Struct, frozen=True):
    """Arguments of an ensemble's factory besides its name.

    `settings` are the row's own keys, unchecked. To convert them to a type, with the file and key
    in errors, use `configuration.read(Settings, settings, "ensembles", name)`.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    host: EnsembleHost = EnsembleHost()


EnsembleFactory: TypeAlias = Callable[[str, EnsembleConfiguration], Ensemble]


ENSEMBLES = "ensembles"
_ENSEMBLES: Registry[EnsembleFactory] = Registry(ENSEMBLES)


def register_ensemble(name: str, factory: EnsembleFactory) -> None:
    """Register an ensemble's factory for rows that name the calling module."""
    _ENSEMBLES.register(name, factory)


def access_ensemble(row: Row, configuration: EnsembleConfiguration) -> Ensemble:
    """Import a row's module and return its ensemble, not yet open.

    Raises `RegistrationError` if the row's module or factory cannot be found, `ConfigurationError`
    if the ensemble does not accept the other keys of the row.
    """
    return _ENSEMBLES.access(row)(row.name, configuration)


class Asker(Protocol):
    """A client that asks a model one question at a time."""

    @property
    def usage(self) -> Usage:
        """Tokens of all questions so far, including failed ones."""
        ...

    async def ask(self, supervisor: str, text: str, output: type[T]) -> T:
        """Return the model's answer as a value of `output`; raises `VibeLlmsError` without one."""
        ...


class HookHost(Struct, frozen=True, kw_only=True):
    """A session's services for a hook.

    `providers` return models by address, with their controls and limits;
    `produce_asker(model, output_tokens)` returns a client for one of them. `restore` returns the
    messages of a stored conversation, `load` the bytes of references. `notify` shows a notice
    outside of turns, from any thread. `tracer` records the hook's work. `backend` stores the data
    of the `user`.
    """

    backend: Backend
    user: str
    providers: Providers
    produce_asker: Callable[[Model, int], Asker]
    restore: Callable[[str], Awaitable[Sequence[Canister]]]
    load: Loader
    notify: Callable[[Notice], object]
    tracer: Tracer = Tracer()


HookFactory: TypeAlias = Callable[[Configuration, HookHost], TurnHook]

_HOOKS: Registry[HookFactory] = Registry("hooks")


def register_hook(name: str, factory: HookFactory) -> None:
    """Register a hook's factory for rows that name the calling module."""
    _HOOKS.register(name, factory)


def access_hook(row: Row, configuration: Configuration, host: HookHost) -> TurnHook:
    """Import a row's module and return its hook."""
    return _HOOKS.access(row)(configuration, host)
