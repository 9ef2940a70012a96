"""What an ensemble is: the protocol that built-in and third-party ensembles fulfil alike.

An ensemble is opened once, by its session, when a conversation first names it, and closed with the
session. Its tools are `Invoker`s whose names begin with its own: `ensemble/tool`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct

from vibe_llms.configuration import Configuration, Positive, Seconds
from vibe_llms.controls import Controls
from vibe_llms.ensembles.questions import Elicitor
from vibe_llms.events import Notice
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.invokers import Approval, Invoker
from vibe_llms.messages.canisters import Canister, InvocationCanister, Turn

AskModel: TypeAlias = Callable[[str, Sequence[Canister], str, Controls], Awaitable[Turn]]


class Vault(Protocol):
    """Where secrets that an ensemble has been given are kept, like keys; both functions block."""

    def read(self, name: str) -> str:
        """What is kept under a name; empty if nothing is."""
        ...

    def keep(self, name: str, text: str) -> None:
        """Keep it from now on; an empty text removes it."""
        ...


class EnsembleHost(Struct, frozen=True, kw_only=True):
    """What an ensemble may ask of the session that opens it; `None` is what it cannot have.

    `elicitor` asks a person. `ask_model(address, canisters, supervisor, controls)` holds one turn
    with a model; whoever uses it has asked `admit` before, which gives why a call may not be.
    `tell` is told, by any thread, what a person should know.
    """

    elicitor: Elicitor | None = None
    ask_model: AskModel | None = None
    admit: Callable[[InvocationCanister, Invoker], Awaitable[str]] = Gatekeeper().admit
    vault: Vault | None = None
    tell: Callable[[Notice], None] = lambda _: None


class EnsembleConfiguration(Struct, frozen=True):
    """What an ensemble's factory is given besides its name.

    `settings` are the keys of its row that are its own, not yet checked: `configuration.read(
    Settings, settings, "ensembles", name)` makes them typed and names the file and key of what is
    wrong. `host` is what its session lets it have.
    """

    configuration: Configuration
    settings: Mapping[str, Any]
    host: EnsembleHost = EnsembleHost()


class Ensemble(Protocol):
    """Tools that live and die together."""

    @property
    def name(self) -> str:
        """The name of its row, which its tools begin with."""
        ...

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The tools that it offers now; none before it is open."""
        ...

    async def open(self) -> None:
        """Make the tools available; `EnsembleFailed` says why not."""
        ...

    async def close(self) -> None:
        """Give everything up, from whatever task, in whatever order; safe to call twice."""
        ...


@runtime_checkable
class OutsideEnsemble(Ensemble, Protocol):
    """An ensemble whose tools somebody else describes, a server say.

    What it says of a tool is pinned when a call of it is first approved.
    """

    @property
    def origin(self) -> str:
        """What it starts, or where it lies: with another origin it is another ensemble."""
        ...

    @property
    def details(self) -> Mapping[str, str]:
        """What is known of the other side once it is open, for people; by short names."""
        ...


@runtime_checkable
class InstructingEnsemble(Ensemble, Protocol):
    """An ensemble that tells models how its tools are meant, beyond what each says of itself.

    The words stand above the history, as the supervisor's, while any of its tools is offered. So
    they are never somebody else's: what a server says of itself has no such place.
    """

    @property
    def instructions(self) -> str:
        """The words; empty if there are none."""
        ...


EnsembleFactory: TypeAlias = Callable[[str, EnsembleConfiguration], Ensemble]


class ToolLimits(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How long a call of a tool may take, how much of its result is shown to the model and kept.

    Where nothing is said, those of `[tools]` hold.
    """

    timeout_seconds: Seconds | None = None
    shown_bytes: Positive | None = None
    kept_bytes: Positive | None = None


class EnsembleRules(ToolLimits, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that all rows of `[ensembles]` have, whatever their module.

    `approval` is for all tools of the ensemble, `approvals` for those that it names, without the
    ensemble's name; without either, tools that only read are allowed and all others ask. `limits`
    are those of the tools that it names, over the row's own. With `required`, an ensemble that
    cannot be opened is an error and no mere notice. Without `pin-tools`, what a server says of its
    tools may change unseen.
    """

    approval: Approval | None = None
    approvals: Mapping[str, Approval] = {}
    limits: Mapping[str, ToolLimits] = {}
    required: bool = False
    pin_tools: bool = True

    def settle(self, invoker: Invoker, *, reads_only: bool) -> Invoker:
        """The tool with the approval that it needs here, and its limits."""
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
