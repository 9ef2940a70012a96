"""What the turns of a conversation use: one value, made by the session and copied by forks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from vibe_llms.configuration import Budget, ToolMode, ToolSettings
from vibe_llms.controls import Controls
from vibe_llms.conversations.context_window import SizeMeter
from vibe_llms.conversations.documents import ConversationDocuments, DocumentService
from vibe_llms.conversations.tools import Tool, Toolbox
from vibe_llms.ensembles.interfaces import Ensemble
from vibe_llms.events import EventHandler
from vibe_llms.hooks import HookRunner, TurnHook
from vibe_llms.invocation.approval import ApprovalRequest, Decision, Gatekeeper
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest, Elicitor
from vibe_llms.messages.canisters import Canister, Cost, InvocationCanister, SupervisorCanister
from vibe_llms.providers.contract.selection import settle_tools
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiter
from vibe_llms.providers.spending import Spending
from vibe_llms.tracing import Tracer

if TYPE_CHECKING:
    from vibe_llms.conversations.outputs import OutputForm


async def _open_none(_: Iterable[str], __: EventHandler) -> Sequence[Ensemble]:
    return ()


class Services(Struct, frozen=True, kw_only=True):
    """What all conversations of a session share.

    `access_controls` returns the configured controls of a model, and `open_ensembles` opens rows by
    their names and sends notices to a handler. Without `access_documents`, files that a model
    cannot take are refused. `access_spending` is given the budgets of agents. `elicitor` answers
    what tools ask the user. `estimate_cost` knows the price lists of the rows.
    """

    event_handler: EventHandler
    access_model: Callable[[str], Awaitable[Model]]
    access_controls: Callable[[Model], Controls]
    tools: ToolSettings = ToolSettings()
    access_limiter: Callable[[Model], Limiter | None] = lambda _: None
    access_spending: Callable[[Mapping[str, Budget]], Spending | None] = lambda _: None
    gatekeeper: Gatekeeper = Gatekeeper()
    open_ensembles: Callable[[Iterable[str], EventHandler], Awaitable[Sequence[Ensemble]]] = (
        _open_none
    )
    hook_runner: HookRunner = msgspec.field(default_factory=HookRunner)
    access_documents: Callable[[], DocumentService] | None = None
    elicitor: Elicitor | None = None
    estimate_cost: Callable[[Iterable[Canister]], Cost] | None = None


class ConversationSettings(Struct, frozen=True, kw_only=True):
    """The settings of a conversation's turns; a change makes a new value.

    `controls` and `handler` are its own; the session supplies the rest. `collections` are names of
    collections of documents that the model may search. `template` writes each message of the user.
    `supervisor` are instructions that are said with the next message unless the history has them,
    and `agent` is the name of the agent whose they and other settings are.
    `budgets` are those of agents that its requests count against, by the agents' names. With
    `claims`, replies in the history that no model has made are untrusted text. With `revive`, what
    is said in a conversation that has been deleted is kept in a new one. `vouched` are messages
    whose text the user vouches for, by identity.
    """

    model: Model
    services: Services
    toolbox: Toolbox = Toolbox()
    controls: Controls = Controls()
    handler: EventHandler | None = None
    tool_mode: ToolMode | None = None
    hooks: tuple[TurnHook, ...] = ()
    collections: tuple[str, ...] = ()
    template: Callable[[str], str] | None = None
    supervisor: str = ""
    agent: str = ""
    tracer: Tracer = Tracer()
    budgets: Mapping[str, Budget] = {}
    claims: bool = False
    revive: bool = True
    vouched: frozenset[str] = frozenset()

    @property
    def event_handler(self) -> EventHandler:
        """Receives the events of turns without a handler of their own."""
        return self.handler or self.services.event_handler

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by their names."""
        return self.services.gatekeeper.settle(self.toolbox.offered)

    @property
    def mode(self) -> ToolMode:
        """How tools are offered: as asked for here, or as the configuration says."""
        return self.tool_mode or self.services.tools.mode

    @property
    def default_controls(self) -> Controls:
        """The controls of the conversation, completed by those of the configuration."""
        return self.controls.over(self.services.access_controls(self.model))

    def settle(self, tools: Mapping[str, Invoker]) -> tuple[Model, Sequence[Invoker]]:
        """The model to ask and the tools to offer it, by what is known of it now."""
        asked = self.tool_mode is not None
        return settle_tools(self.model, tuple(tools.values()), self.mode, asked=asked)


class TurnState(Struct, frozen=True, omit_defaults=True):
    """What is known of a turn beyond its messages, and cannot be found out from them again.

    `vouched` are the messages that the user vouches for. `tainted` says that untrusted text was in
    what was sent.
    """

    vouched: frozenset[str] = frozenset()
    tainted: bool = False


class TurnRecord(Protocol):
    """What a turn asks of the run that records it, so that another process can go on with it.

    `resumed` says that the history has the prompt already, `lost` that this process stops before
    the turn has ended. A method raises `LeaseLost` if another process has taken the run over.
    """

    @property
    def resumed(self) -> bool: ...  # noqa: D102

    @property
    def lost(self) -> bool: ...  # noqa: D102

    @property
    def state(self) -> TurnState:
        """What was recorded last."""
        ...

    async def record_state(self, state: TurnState) -> None:
        """Record the state, before the messages that changed it are kept."""
        ...

    async def begin_call(self, invocation: InvocationCanister, invoker: Invoker) -> str:
        """Record that a call runs now; returns why it cannot, if it may have run before."""
        ...

    async def decide(self, request: ApprovalRequest) -> Decision:
        """The decision on a call; raises `CallSuspended` if there is none yet."""
        ...

    async def ask(
        self, invocation: InvocationCanister, request: ElicitationRequest, *, holds: bool
    ) -> ElicitationAnswer:
        """The answer of the user.

        If the call `holds` the run, it is waited for, for some time. Otherwise raises
        `CallSuspended` if there is none yet.
        """
        ...

    async def confirm(self) -> None:
        """Ask whether the run is still this process's."""
        ...

    async def flush(self) -> None:
        """Record what was shown of messages, before they are kept."""
        ...

    def report_kept(self, canisters: Sequence[Canister]) -> None:
        """Report that messages are durable."""
        ...


class TurnRequest(Struct, frozen=True, kw_only=True):
    """The arguments of one turn; the conversation supplies the rest.

    The model reads `instructions` after the system prompt; they are not kept. Prompt and controls
    ask for the `form` that the reply must have.
    """

    said: Sequence[Canister] = ()
    instructions: Sequence[SupervisorCanister] = ()
    invokers: Iterable[Tool] | None = None
    controls: Controls | None = None
    event_handler: EventHandler | None = None
    form: OutputForm | None = None
    streaming: bool = True
    throttle: Callable[[], Awaitable[object]] | None = None
    record: TurnRecord | None = None


class TurnMemo:
    """What a conversation keeps from turn to turn: what was encoded, and notices already shown."""

    def __init__(self) -> None:
        self.shown: set[tuple[str, str]] = set()
        self.meter = SizeMeter()
        self.documents = ConversationDocuments()
        self._instructions: Sequence[SupervisorCanister] = ()
        self._caches: dict[tuple[str, str, type], object] = {}

    def instruct(self, texts: Sequence[str]) -> Sequence[SupervisorCanister]:
        """Instructions as canisters: the same ones until the texts change."""
        if texts != [canister.text for canister in self._instructions]:
            self._instructions = tuple(SupervisorCanister.from_text(text) for text in texts)
            # What was encoded begins with other words now.
            self._caches.clear()
        return self._instructions

    def access_cache(self, model: Model) -> object:
        """The cache of a model; under the contract, a model has a separate one."""
        address = (model.provider, model.name, type(model))
        if address not in self._caches:
            self._caches[address] = model.produce_cache()
        return self._caches[address]
