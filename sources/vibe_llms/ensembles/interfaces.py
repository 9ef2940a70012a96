"""The protocol of ensembles, built-in and third-party.

A session opens an ensemble once, when a conversation first names it or calls a tool of it, and
closes it with the session. Its tools are `Invoker`s whose names begin with its own:
`ensemble/tool`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct

from vibe_llms.configuration import LOCAL, Budget, Configuration, Positive, Seconds
from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler, Notice
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.invokers import Approval, Invoker
from vibe_llms.invocation.questions import Elicitor
from vibe_llms.messages.canisters import Canister, InvocationCanister, Turn
from vibe_llms.providers.interfaces import Model
from vibe_llms.storage.backends import Backend

if TYPE_CHECKING:
    from vibe_llms.documents.core import Documents

AskModel: TypeAlias = Callable[[str, Sequence[Canister], str, Controls], Awaitable[Turn]]


class AgentRequest(Struct, frozen=True, kw_only=True):
    """What an agent is asked.

    `model` answers if the agent names none. `depth` counts the agents between the user and the
    answer, from 1. `payers` are the budgets of the agents that ask, by their names.
    """

    agent: str
    text: str
    model: Model
    depth: int
    payers: Mapping[str, Budget] = {}


AskAgent: TypeAlias = Callable[[AgentRequest, EventHandler], Awaitable[Turn]]


class Vault(Protocol):
    """Stores an ensemble's secrets like keys; both functions block."""

    def read(self, name: str) -> str:
        """The value under a name; empty if there is none."""
        ...

    def keep(self, name: str, text: str) -> None:
        """Store a value; an empty one deletes it."""
        ...


class EnsembleHost(Struct, frozen=True, kw_only=True):
    """What the session offers an ensemble; `None` means unavailable.

    `elicitor` asks the user. `ask_model(address, canisters, supervisor, controls)` runs one turn
    with a model; callers must call `admit` first, which returns why a call is not allowed.
    `ask_agent(request, event_handler)` runs one turn with an agent, whose events go to the handler.
    `notify` shows the user a message; any thread may call it. `access_documents` gives the
    documents of the session. `backend` keeps what belongs to the `user`.
    """

    elicitor: Elicitor | None = None
    ask_model: AskModel | None = None
    ask_agent: AskAgent | None = None
    admit: Callable[[InvocationCanister, Invoker], Awaitable[str]] = Gatekeeper().admit
    vault: Vault | None = None
    notify: Callable[[Notice], None] = lambda _: None
    access_documents: Callable[[], Documents] | None = None
    backend: Backend | None = None
    user: str = LOCAL


class EnsembleConfiguration(Struct, frozen=True):
    """What an ensemble's factory receives besides its name.

    `settings` are the row's own keys, unchecked:
    `configuration.read(Settings, settings, "ensembles", name)` makes them typed and names the file
    and key of an error. `host` is what the session offers it.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    host: EnsembleHost = EnsembleHost()


class Ensemble(Protocol):
    """Tools that open and close together."""

    @property
    def name(self) -> str:
        """The name of its row, the first part of its tools' names."""
        ...

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The tools that it offers now; none before it is open."""
        ...

    async def open(self) -> None:
        """Make the tools available; `EnsembleFailed` says why not."""
        ...

    async def close(self) -> None:
        """Close everything, from any task, in any order; safe to call twice."""
        ...


@runtime_checkable
class OutsideEnsemble(Ensemble, Protocol):
    """An ensemble whose tools are described by others, such as a server.

    The description of a tool is stored when a call of it is first approved.
    """

    @property
    def origin(self) -> str:
        """What it starts, or its address; an ensemble with another origin is a different one."""
        ...

    @property
    def details(self) -> Mapping[str, str]:
        """What is known about the other side once it is open, by short names, for display."""
        ...


@runtime_checkable
class RecallingEnsemble(Ensemble, Protocol):
    """An ensemble that may know its tools before it is open; the first call opens it then."""

    def recall(self) -> bool:
        """Offer the tools that are known; false if it has to be opened for that."""
        ...


@runtime_checkable
class InstructingEnsemble(Ensemble, Protocol):
    """An ensemble that instructs models how to use its tools, beyond their descriptions.

    The instructions are supervisor text while any of its tools is offered. Therefore they never
    contain text from others, such as a server.
    """

    @property
    def instructions(self) -> str:
        """The instructions; empty if there are none."""
        ...


EnsembleFactory: TypeAlias = Callable[[str, EnsembleConfiguration], Ensemble]


class ToolLimits(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Limits of a tool: the time of a call, and how much of its result is shown and stored.

    Limits that are not set default to those of `[tools]`.
    """

    timeout_seconds: Seconds | None = None
    shown_bytes: Positive | None = None
    kept_bytes: Positive | None = None


class EnsembleRules(ToolLimits, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that all rows of `[ensembles]` have, whatever their module.

    `approval` applies to all tools of the ensemble, `approvals` to single tools, without the
    ensemble's name. Without either, read-only tools are allowed and all others ask. `limits` apply
    to single tools and override the row's own. If `required`, an ensemble that cannot be opened is
    an error instead of a notice. Without `pin-tools`, a server's description of its tools may
    change unnoticed.
    """

    approval: Approval | None = None
    approvals: Mapping[str, Approval] = {}
    limits: Mapping[str, ToolLimits] = {}
    required: bool = False
    pin_tools: bool = True

    def settle(self, invoker: Invoker, *, reads_only: bool) -> Invoker:
        """The tool with its approval and limits in this ensemble."""
        tool = invoker.name.partition("/")[2]
        approval = self.approvals.get(tool, self.approval or ("allow" if reads_only else "ask"))
        own = self.limits.get(tool, ToolLimits())
        return msgspec.structs.replace(
            invoker,
            approval=approval,
            timeout_seconds=own.timeout_seconds or self.timeout_seconds,
            shown_bytes=own.shown_bytes or self.shown_bytes,
            kept_bytes=own.kept_bytes or self.kept_bytes,
        )
