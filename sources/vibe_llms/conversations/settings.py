"""Settings of a conversation's turns: a value that the session creates and forks copy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import (
    Budget,
    ContextMode,
    ContextSettings,
    ToolMode,
    ToolSettings,
)
from vibe_llms.conversations.context_requests import SummaryFailures
from vibe_llms.conversations.context_view import ContextView, show_natively
from vibe_llms.conversations.context_window import SizeMeter, TokenMeter
from vibe_llms.conversations.documents import ConversationDocuments, DocumentService
from vibe_llms.conversations.fallbacks import Fallback
from vibe_llms.conversations.history import History
from vibe_llms.conversations.hook_runner import HookRunner
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.conversations.steering import SteeringQueue, SteeringSource
from vibe_llms.conversations.tools import Tool, Toolbox
from vibe_llms.invocation.approval import ApprovalRequest, Decision, Gatekeeper
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest, Elicitor
from vibe_llms.messages.caching import CacheMeter, RequestCaching, RequestHead
from vibe_llms.messages.canisters import (
    Canister,
    Cost,
    InvocationCanister,
    ReplyCanister,
    SupervisorCanister,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.breakers import Breakers
from vibe_llms.providers.contract.selection import settle_tools
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiter
from vibe_llms.providers.spending import Spending

if TYPE_CHECKING:
    from vibe_llms.conversations.outputs import OutputForm
    from vibe_llms.providers.windows import Windows


#: Name of the ensemble that offers the skills of a conversation.
SKILLS = "skills"
#: Entry of a list of skills that means all skills.
ALL_SKILLS = "*"
#: Messages among which the last request of a resumed conversation is looked for.
_LOOKED_BACK = 100


async def _open_none(_: Iterable[str], __: EventHandler) -> Sequence[Ensemble]:
    return ()


def _remember_windows() -> Callable[[], Windows]:
    """Return a function that produces one store in memory when it is first called."""

    @cache
    def produce() -> Windows:
        from vibe_llms.providers.windows import Windows

        return Windows()

    return produce


class Services(Struct, frozen=True, kw_only=True):
    """Resources that all conversations of a session share.

    `access_controls` returns the configured controls of a model. `open_ensembles` opens rows by
    name and sends notices to a handler. Without `access_documents`, files that a model does not
    accept are refused. `access_spending` takes the budgets of agents. `elicitor` answers questions
    of tools to the user. `estimate_cost` uses the price lists of the rows. `access_fallback`
    returns the addresses of the models that the row of a model names as its fallback.
    `access_windows` returns the context windows of models, declared or learned.
    """

    event_handler: EventHandler
    access_model: Callable[[str], Awaitable[Model]]
    access_controls: Callable[[Model], Controls]
    tools: ToolSettings = ToolSettings()
    context: ContextSettings = ContextSettings()
    access_limiter: Callable[[Model], Limiter | None] = lambda _: None
    access_fallback: Callable[[Model], Sequence[str]] = lambda _: ()
    access_windows: Callable[[], Windows] = msgspec.field(default_factory=_remember_windows)
    breakers: Breakers = msgspec.field(default_factory=Breakers)
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
    """Settings of a conversation's turns; a change creates a new value.

    `controls` and `handler` are its own; the session supplies the rest. `collections` are names of
    document collections that the model may search, `skills` those of skills that it may use; `*`
    means all. `template` formats each message of the user.
    `supervisor` are instructions that are added with the next message unless the history has them,
    and `agent` is the name of the agent that they and other settings come from. `budgets` are
    agents' budgets that its requests count against, by the agents' names. With `claims`, replies in
    the history that no model has made are untrusted. With `revive`, new messages of a deleted
    conversation are stored in a new one. `vouched` are the identities of messages with text that
    the user vouches for. `fallback` are addresses of models that answer if the model fails; None
    for those of its row. `context_mode` is the mode of `[context]` for this conversation; None for
    the configured one.
    """

    model: Model
    services: Services
    toolbox: Toolbox = Toolbox()
    controls: Controls = Controls()
    handler: EventHandler | None = None
    tool_mode: ToolMode | None = None
    hooks: tuple[TurnHook, ...] = ()
    collections: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    template: Callable[[str], str] | None = None
    supervisor: str = ""
    agent: str = ""
    tracer: Tracer = Tracer()
    budgets: Mapping[str, Budget] = {}
    claims: bool = False
    revive: bool = True
    vouched: frozenset[str] = frozenset()
    fallback: tuple[str, ...] | None = None
    context_mode: ContextMode | None = None

    @property
    def event_handler(self) -> EventHandler:
        """Handler for the events of turns without their own handler."""
        return self.handler or self.services.event_handler

    @property
    def invokers(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers, by name."""
        return self.services.gatekeeper.apply_rules(self.toolbox.offered)

    @property
    def mode(self) -> ToolMode:
        """Method of offering tools: the conversation's own, or the configured one."""
        return self.tool_mode or self.services.tools.mode

    @property
    def context(self) -> ContextSettings:
        """When the conversation is compacted."""
        settings = self.services.context
        if self.context_mode is None:
            return settings
        return msgspec.structs.replace(settings, mode=self.context_mode)

    @property
    def default_controls(self) -> Controls:
        """Controls of the conversation, completed by those of the configuration."""
        return self.controls.over(self.services.access_controls(self.model))

    def produce_fallback(self) -> Fallback:
        """Return the models that may answer one turn if the model fails."""
        row = self.services.access_fallback
        addresses = row(self.model) if self.fallback is None else self.fallback
        return Fallback(addresses, self.services.breakers)

    def choose_tools(self, tools: Mapping[str, Invoker]) -> tuple[Model, Sequence[Invoker]]:
        """Return the model to ask and the tools to offer, based on its known abilities."""
        asked = self.tool_mode is not None
        return settle_tools(self.model, tuple(tools.values()), self.mode, asked=asked)


class TurnState(Struct, frozen=True, omit_defaults=True):
    """The state of a turn that cannot be derived from its messages.

    `vouched` are messages that the user vouches for. `tainted` is True if a request had untrusted
    text. `fallback` is the address of the model that answers in place of one that failed.
    """

    vouched: frozenset[str] = frozenset()
    tainted: bool = False
    fallback: str = ""


class TurnRecord(Protocol):
    """The interface of a turn to the run that records it, so that another process can continue.

    `resumed` is True if the history already has the prompt, `lost` if this process stops before the
    end of the turn. A method raises `LeaseLost` if another process has taken over the run.
    """

    @property
    def resumed(self) -> bool: ...  # noqa: D102

    @property
    def lost(self) -> bool: ...  # noqa: D102

    @property
    def state(self) -> TurnState:
        """The state that was last recorded."""
        ...

    async def record_state(self, state: TurnState) -> None:
        """Record the state, before the messages that changed it are stored."""
        ...

    async def begin_call(self, invocation: InvocationCanister, invoker: Invoker) -> str:
        """Record that a call runs now; return why it cannot, if it may have run before."""
        ...

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Return the decision on a call; raises `CallSuspended` if there is none yet."""
        ...

    async def ask(
        self, invocation: InvocationCanister, request: ElicitationRequest, *, holds: bool
    ) -> ElicitationAnswer:
        """Return the user's answer.

        If the call `holds` the run, waits for the answer for a limited time. Otherwise raises
        `CallSuspended` if there is none yet.
        """
        ...

    async def confirm(self) -> None:
        """Raise `LeaseLost` unless this process still owns the run."""
        ...

    async def flush(self) -> None:
        """Record the shown parts of messages, before the messages are stored."""
        ...

    def report_kept(self, canisters: Sequence[Canister]) -> None:
        """Report that messages are durable."""
        ...


class TurnRequest(Struct, frozen=True, kw_only=True):
    """The arguments of one turn; the conversation supplies the rest.

    The model reads `instructions` after the system prompt; they are not stored. Prompt and controls
    already request the `form` of the reply. If `compacts` is given, the turn only compacts the
    conversation; it is the user's wish for the summary. `steering` is
    the queue of messages that the user adds.
    """

    said: Sequence[Canister] = ()
    instructions: Sequence[SupervisorCanister] = ()
    invokers: Iterable[Tool] | None = None
    controls: Controls | None = None
    event_handler: EventHandler | None = None
    form: OutputForm | None = None
    compacts: str | None = None
    streaming: bool = True
    throttle: Callable[[], Awaitable[object]] | None = None
    record: TurnRecord | None = None
    steering: SteeringSource = msgspec.field(default_factory=SteeringQueue)


class TurnMemo:
    """The memory of a conversation between turns: encoded messages, and shown notices."""

    def __init__(self) -> None:
        self.caching = CacheMeter()
        self.shown: set[tuple[str, str]] = set()
        self.meter = SizeMeter()
        self.tokens = TokenMeter()
        self.documents = ConversationDocuments()
        self.view = ContextView()
        self.failures = SummaryFailures()
        #: Identities of digests whose native summary its provider refused.
        self.refused: set[str] = set()
        self._reread: Invoker | None = None
        self._instructions: Sequence[SupervisorCanister] = ()
        self._caches: dict[tuple[str, str, type], object] = {}

    def instruct(self, texts: Sequence[str]) -> Sequence[SupervisorCanister]:
        """Return instructions as canisters, the same ones until the texts change."""
        if texts != [canister.text for canister in self._instructions]:
            self._instructions = tuple(SupervisorCanister.from_text(text) for text in texts)
            # The encoded requests begin with the old instructions.
            self._caches.clear()
        return self._instructions

    def show(self, history: History) -> Sequence[Canister]:
        """Return the messages of a history as its last digest presents them."""
        digest = self.view.digest
        messages = self.view.apply(history.canisters)
        if self.view.digest is not digest:
            # The encoded requests begin with other messages.
            self._caches.clear()
            self.meter, self.tokens = SizeMeter(), TokenMeter()
        return messages

    def show_to(self, model: Model, history: History) -> Sequence[Canister]:
        """Return the messages for a model, with its provider's own summary if there is one."""
        messages, digest = self.show(history), self.view.digest
        if digest is None or digest.identity in self.refused:
            return messages
        return show_natively(messages, digest, model)

    def apply_documents(self, model: Model, canisters: Sequence[Canister]) -> Sequence[Canister]:
        """Return messages that `show` has returned, with the texts of documents for a model."""
        if not self.documents.replaces:
            return canisters
        digest = self.view.digest
        shortened = () if digest is None else digest.shortened
        return self.documents.apply(model, canisters, shortened)

    def refuse_native(self, model: Model) -> bool:
        """Send the text of a digest from now on; return False if a model gets only text."""
        digest = self.view.digest
        if digest is None or digest.identity in self.refused:
            return False
        if show_natively((), digest, model) == ():
            return False
        self.refused.add(digest.identity)
        self._caches.clear()
        return True

    def access_reread(self, history: History) -> Invoker | None:
        """Return the tool that reads the original messages; None if a digest leaves none out."""
        if not self.view.omits:
            return None
        if self._reread is None:
            # Imported only here, because most conversations do not need it.
            from vibe_llms.conversations.rereading import produce_reread

            self._reread = produce_reread(lambda: history.canisters, history.load)
        return self._reread

    def measure_caching(
        self, messages: Sequence[Canister], reply: Sequence[ReplyCanister], head: RequestHead
    ) -> RequestCaching | None:
        """Return the cache's share in a request, or None if its usage is not known."""
        if not self.caching.begun:
            # The conversation was resumed, or forked: its last request may still be cached.
            for canister in islice(reversed(messages), _LOOKED_BACK):
                if isinstance(canister, ReplyCanister) and self.caching.measure(
                    canister, canister.created
                ):
                    break
        return self.caching.measure(reply[-1], messages[-1].created, head)

    def access_cache(self, model: Model) -> object:
        """Return the cache of a model; under the contract, a model has a separate one."""
        address = (model.provider, model.name, type(model))
        if address not in self._caches:
            self._caches[address] = model.produce_cache()
        return self._caches[address]
