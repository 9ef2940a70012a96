"""The session: opens providers, ensembles and archive, makes conversations, closes everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload
from weakref import WeakSet

from msgspec.structs import replace

from vibe_llms.agents import (
    AGENTS,
    Agent,
    access_agent,
    access_others,
    read_agents,
    survey_names,
    survey_optional,
)
from vibe_llms.configuration import (
    LOCAL,
    Budget,
    Configuration,
    ToolMode,
)
from vibe_llms.controls import Controls
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.conversations.prompts import Prompt, is_instructed, read_prompt
from vibe_llms.conversations.settings import ConversationSettings, Services
from vibe_llms.conversations.tools import Tool, Toolbox
from vibe_llms.endings import close_at_end, forget
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.ensembles.interfaces import AgentRequest, Ensemble, EnsembleHost
from vibe_llms.events import EventHandler, Notice, NoticeEvent, ignore_events
from vibe_llms.exceptions import ModelNotFound, RequestError, SessionClosed
from vibe_llms.hooks import MEMORY, Asker, Background, HookHost, HookRunner, TurnHook, access_hook
from vibe_llms.invocation.approval import Approver, Gatekeeper
from vibe_llms.invocation.invokers import Invoker, gather_invokers
from vibe_llms.invocation.questions import Elicitor
from vibe_llms.keys import KeyVault
from vibe_llms.messages.canisters import Canister, Cost, SupervisorCanister, Turn
from vibe_llms.messages.contents import Reference
from vibe_llms.offloading import LOOP_MESSAGES, offload
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiters
from vibe_llms.providers.provider_pool import ImportGuard, Providers, ProviderStatus, unguarded
from vibe_llms.providers.spending import Spending
from vibe_llms.registries import Row
from vibe_llms.storage.backends import Backend, open_backend, produce_part
from vibe_llms.storage.interfaces import Archive, Finding, Summary
from vibe_llms.tracing import Tracer, guard

if TYPE_CHECKING:
    from vibe_llms.conversations.outputs import OutputType
    from vibe_llms.documents.core import Documents
    from vibe_llms.documents.store import DocumentStore
    from vibe_llms.ensembles.agents import AgentsEnsemble
    from vibe_llms.runs.accounts import BudgetStore
    from vibe_llms.runs.budgets import Budgets
    from vibe_llms.runs.core import RunHost, Runs
    from vibe_llms.runs.interfaces import RunRecord, RunStatus
    from vibe_llms.runs.run import Run

T = TypeVar("T")


_NO_TRACER = Tracer()


class Session:
    """Opened by `open_session`; makes conversations and closes what they need.

    `async with` closes it with the block. After `await session` it stays open until its event loop
    or the program ends, as in a notebook.
    """

    def __init__(
        self,
        configuration: Configuration,
        archive: Archive,
        *,
        event_handler: EventHandler = ignore_events,
        keys: Mapping[str, str] | None = None,
        interactive: bool = False,
        import_guard: ImportGuard = unguarded,
        approver: Approver | None = None,
        elicitor: Elicitor | None = None,
        tracer: Tracer | None = None,
        invokers: Iterable[Tool] = (),
        produce_runs: Callable[[RunHost], Runs] | None = None,
        budget_store: BudgetStore | None = None,
        backend: Backend | None = None,
        user: str = LOCAL,
        vault: KeyVault | None = None,
        claims: bool = False,
        revive: bool = True,
        own_rows: bool = True,
        limiters: Limiters | None = None,
        access_library: Callable[[], DocumentStore] | None = None,
        owns_backend: bool = False,
    ) -> None:
        """`backend` keeps its runs and budgets; without one, it is that of the configuration.

        With `claims`, others may have made up the replies in the histories that are given. Without
        `revive`, a turn fails if its conversation has been deleted.

        With `owns_backend`, `close` closes the backend too.

        Without `own_rows`, `*` among an agent's optional ensembles stands for none. `limiters` are
        those that other sessions share. `access_library` gives the store with the collections of
        documents, if that is not the user's own.
        """
        self.configuration = configuration
        self.archive = archive
        self.event_handler = event_handler
        self.gatekeeper = Gatekeeper(approver)
        self._own_rows = own_rows
        self._access_library = access_library
        self._tracer = None if tracer is None else guard(tracer)
        self._owns_tracer = tracer is None
        self._backend = backend or open_backend(configuration)
        self._owns_backend = owns_backend
        self._limiters = limiters or Limiters(produce_part(self._backend, "limits", required=False))
        self._providers = Providers(
            configuration,
            event_handler,
            keys=keys,
            interactive=interactive,
            import_guard=import_guard,
            limiters=self._limiters,
        )
        self.vault = vault or KeyVault(configuration.places.keys_file)
        self._user = user
        self._host = EnsembleHost(
            elicitor=elicitor,
            ask_model=self._ask_model,
            ask_agent=self._ask_agent,
            admit=self.gatekeeper.admit,
            vault=self.vault,
            notify=self._notify,
            access_documents=self.access_documents,
            backend=self._backend,
            user=user,
        )
        self._ensembles = Ensembles(configuration, self._host)
        self._hook_runner = HookRunner(self._notify)
        self._services = Services(
            event_handler=event_handler,
            access_model=self.access_model,
            access_controls=self._providers.access_controls,
            access_limiter=self._providers.access_limiter,
            access_spending=self.access_spending,
            tools=configuration.tools,
            gatekeeper=self.gatekeeper,
            open_ensembles=self._open_ensembles,
            hook_runner=self._hook_runner,
            access_documents=self.access_documents,
            elicitor=elicitor,
            estimate_cost=self.estimate_cost,
        )
        self._documents: Documents | None = None
        self._registered = gather_invokers(invokers)
        self._produce_runs = produce_runs
        self._budget_store = budget_store
        self._budgets: Budgets | None = None
        self._claims = claims
        self._revive = revive
        self._runs: Runs | None = None
        self._conversations: WeakSet[Conversation] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False
        #: Closes this session when it is closed itself.
        self._kept: AsyncGenerator[None, None] | None = None
        self._end: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._keep_open().__await__()

    async def _keep_open(self) -> Self:
        if self._kept is None:
            self._kept = self._keep()
            await anext(self._kept)
            # Event loops close such generators at their end; that of a notebook is only stopped.
            self._end = partial(_end, self, asyncio.get_running_loop())
            close_at_end(self._end)
        return self

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.close()

    async def begin(
        self,
        model: str | Model | None = None,
        *,
        supervisor: str | None = None,
        name: str = "",
        tags: Sequence[str] = (),
        history: Prompt | None = None,
        invokers: Iterable[Tool] = (),
        ensembles: Iterable[str | Ensemble] = (),
        collections: Iterable[str] = (),
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        tool_mode: ToolMode | None = None,
        memory: bool | None = None,
        hooks: Iterable[TurnHook] = (),
        save: bool = True,
        agent: str | Agent | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Conversation:
        """A new conversation. Without a model it uses the one that `choose_model` returns.

        `supervisor` is the system prompt, `history` earlier messages. `ensembles` are names of rows
        in `[ensembles]`, or ensembles. `collections` are names of collections of documents that the
        model may search. `tool_mode` says how tools are offered: `native` with the
        model's own calls, `contract` with a text protocol, `auto` as the model can, `off` not at
        all; the default is that of `[tools]`. With `memory` it recalls and remembers, in the mode
        of `[memory]`. `hooks` are called before and after each turn. It is stored with its first
        turn, or never if `save` is off; then nothing is remembered either.

        `agent` is a row of `[agents]`, or an agent. Your own arguments win over its settings, and
        your ensembles and collections are added to its own. `variables` are those of its prompt.
        """
        self._require_open()
        given = self._settle_agent(agent, variables)
        chosen = await self._choose_for(given, model, event_handler)
        large = isinstance(history, Sequence) and len(history) > LOOP_MESSAGES
        canisters = [*await offload(large, read_prompt, history)]
        if supervisor is None and not is_instructed(canisters, given.supervisor):
            supervisor = given.supervisor
        if supervisor:
            canisters = [*read_prompt(SupervisorCanister.from_text(supervisor)), *canisters]
        begun = History.begin(
            self.archive if save else None,
            name=name,
            model=f"{chosen.provider}/{chosen.name}",
            agent=given.name,
            tags=tags,
            canisters=canisters,
        )
        settings = await self._produce_settings(
            *(chosen, invokers, ensembles, controls, event_handler, tool_mode, hooks),
            collections=collections,
            memory=memory,
            agent=given,
            variables=variables or {},
        )
        return Conversation(begun, settings, self._enter)

    async def resume(
        self,
        conversation: str,
        *,
        model: str | Model | None = None,
        invokers: Iterable[Tool] = (),
        ensembles: Iterable[str | Ensemble] = (),
        collections: Iterable[str] = (),
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        tool_mode: ToolMode | None = None,
        memory: bool | None = None,
        hooks: Iterable[TurnHook] = (),
        agent: str | Agent | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Conversation:
        """A stored conversation, by its identity, a prefix of at least 4 characters, or its name.

        It continues with its own model unless you give another. The instructions of an `agent` are
        said with the next message if they are not in the history. The rest is as in `begin`.
        Nothing is stored before the next message is.
        """
        self._require_open()
        given = self._settle_agent(agent, variables)
        identity = await self.archive.resolve(conversation)
        history, notices = await History.restore(self.archive, identity)
        handler = event_handler or self.event_handler
        for notice in notices:
            handler(NoticeEvent(notice=notice, conversation=identity))
        chosen = await self._choose(model or history.details.model or None, event_handler)
        address = f"{chosen.provider}/{chosen.name}"
        if model is not None and address != history.details.model:
            history.choose(address)
        settings = await self._produce_settings(
            *(chosen, invokers, ensembles, controls, event_handler, tool_mode, hooks),
            collections=collections,
            memory=memory,
            agent=given,
            variables=variables or {},
            conversation=identity,
        )
        settings = replace(settings, supervisor=given.supervisor)
        return Conversation(history, settings, self._enter)

    @overload
    async def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: None = None,
    ) -> Run[None]: ...
    @overload
    async def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: type[T],
    ) -> Run[T]: ...
    @overload
    async def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: OutputType,
    ) -> Run[Any]: ...
    async def start(
        self,
        conversation: Conversation,
        prompt: Prompt,
        *,
        controls: Controls | None = None,
        output: OutputType = None,
    ) -> Run[Any]:
        """Begin a turn that does not depend on this process, and return at once.

        The turn is recorded: any process follows, cancels or approves it by its identity, and if
        this process dies, another one that works on runs continues it. `ConversationBusy` if the
        conversation has such a turn already; `RequestError` if no other process could rebuild it,
        for example because a tool was not given to `open_session(invokers=...)`. `controls` are
        merged over those of the conversation. `output` is as in `converse`, but any process checks
        the reply, so it is checked against the schema of the type; the type itself reads it where
        this run's `result` is called.
        """
        return await self.access_runs().start(
            conversation, conversation.read_prompt(prompt), controls=controls, output=output
        )

    async def detach(self, conversation: Conversation) -> Run:
        """Let the turn of a conversation that is running go on as a run, which any process follows.

        Its `converse` returns with the stop reason `suspended`. Calls that are running are waited
        for; a reply that has not arrived whole is asked for again. `RequestError` if no other
        process could continue it; then it goes on here.
        """
        return await self.access_runs().detach(conversation)

    async def access_run(self, run: str) -> Run:
        """A run, by its identity or at least the first 4 characters of it."""
        return await self.access_runs().access(run)

    async def survey_runs(
        self, *, status: RunStatus | None = None, after: str = "", limit: int | None = None
    ) -> Sequence[RunRecord]:
        """The runs, the newest first; those that are older than the run `after`."""
        return await self.access_runs().survey(status=status, after=after, limit=limit)

    @property
    def registered_invokers(self) -> Mapping[str, Invoker]:
        """The tools that were given to `open_session(invokers=...)`, by their names."""
        return self._registered

    def access_runs(self) -> Runs:
        """What starts, finds and works on runs."""
        self._require_open()
        if self._runs is None:
            # A process that has no run imports none of it.
            from vibe_llms.runs import core

            host = core.RunHost(
                registered=self._registered.keys(),
                hooks=(MEMORY.name,),
                is_of_callers=self.is_of_callers,
                is_row=self._ensembles.is_row,
                rebuild=self._rebuild,
                restore=self._restore_anew,
                load=self.archive.load_all,
                estimate_cost=self.estimate_cost,
            )
            produce = self._produce_runs or partial(core.produce_runs, self._backend)
            self._runs = produce(host)
        return self._runs

    def survey_agents(self) -> Sequence[Agent]:
        """The agents of `[agents]`, in the order of the configuration.

        `ConfigurationError` if one of their rows is wrong.
        """
        return tuple(read_agents(self.configuration).values())

    def access_agent(self, name: str) -> Agent:
        """The agent of this name. Raises `AgentNotFound`."""
        return access_agent(self.configuration, name)

    async def access_model(self, name: str) -> Model:
        """The model of an address `provider/model` or `provider:model`, or of an alias.

        The name of a known model works too, or a part of it that is unique. Raises `ModelNotFound`.
        """
        self._require_open()
        return await self._providers.access_model(name)

    def locate_model(self, name: str) -> tuple[Row, str]:
        """The row of an address, and the model's own name."""
        return self._providers.locate(name)

    def is_of_callers(self, provider: str) -> bool:
        """Whether a row is used with the keys that callers of a server bring."""
        return self._providers.is_of_callers(provider)

    def choose_model(self) -> tuple[str, str]:
        """The address of the default model, and a note for the user.

        It is the configured default, else the default of the first row whose key is set, else the
        scripted demo.
        """
        return self._providers.choose()

    async def survey_models(self, provider: str | None = None) -> Sequence[Model]:
        """The models that one provider offers, or all that can be used; asks their servers.

        Without a provider, servers on this machine that do not answer are skipped.
        """
        self._require_open()
        return await self._providers.survey_models(provider)

    def survey_addresses(self) -> Sequence[str]:
        """The names of models that are known without loading a provider, aliases first."""
        return self._providers.survey_addresses()

    def survey_providers(self) -> Sequence[ProviderStatus]:
        """The rows of the configuration, whether they load and whether a key is there."""
        return self._providers.survey()

    def estimate_cost(self, canisters: Iterable[Canister]) -> Cost:
        """The cost of the replies among some canisters, by the price list that each row names."""
        from vibe_llms.costs import estimate_cost

        return estimate_cost(canisters, self._providers.access_prices)

    async def survey_conversations(
        self, *, limit: int | None = None, tag: str = "", superseded: bool = False
    ) -> Sequence[Summary]:
        """The stored conversations, the most recent first.

        `superseded` includes those that an undo or a regenerate has replaced.
        """
        return await self.archive.survey(limit=limit, tag=tag, superseded=superseded)

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Stored messages that contain all words of a text, the best first."""
        return await self.archive.search(text, limit=limit, superseded=superseded)

    async def load(self, reference: Reference) -> bytes:
        """The bytes of a reference that a content holds."""
        return await self.archive.load(reference)

    async def remove(self, conversation: str) -> None:
        """Delete a stored conversation, by its identity, a prefix of it, or its name.

        A turn of this session that is running in it is cancelled.
        """
        identity = await self.archive.resolve(conversation)
        if self._produce_runs is not None or self._runs is not None:
            await self.access_runs().forget(identity)
        else:
            from vibe_llms.runs.core import forget_runs

            await forget_runs(self._backend, [identity])
        # What they store later would bring back what was deleted.
        for one in [one for one in self._conversations if one.identity == identity]:
            await one.cancel()
        await self.archive.remove(identity)

    async def close(self) -> None:
        """Cancel running turns and close all connections; safe to call twice.

        Waits for the work of hooks, each for at most its `close_seconds`.
        """
        self._closed = True
        if self._end is not None:
            forget(self._end)
        async with AsyncExitStack() as stack:
            # If closing one fails or is cancelled, the others are still closed.
            if self._owns_backend:
                stack.push_async_callback(self._backend.close)
            if self._tracer is not None and self._owns_tracer:
                stack.push_async_callback(self._tracer.close)
            stack.push_async_callback(self.archive.close)
            stack.push_async_callback(self._ensembles.close)
            stack.push_async_callback(self._limiters.close)
            stack.push_async_callback(self._providers.close)
            if self._budgets is not None:
                stack.push_async_callback(self._budgets.close)
            if self._documents is not None:
                stack.push_async_callback(self._documents.close)
            if self._runs is not None:
                stack.push_async_callback(self._runs.close)
            # While these work, models and archive are still there.
            stack.push_async_callback(self._hook_runner.close)
            if self._runs is not None:
                # Before their turns are cancelled: they are given back, not ended.
                await self._runs.give_back()
            async with asyncio.TaskGroup() as group:
                for conversation in list(self._conversations):
                    group.create_task(conversation.close())

    async def _produce_settings(
        self,
        model: Model,
        invokers: Iterable[Tool],
        ensembles: Iterable[str | Ensemble],
        controls: Controls | None,
        event_handler: EventHandler | None,
        tool_mode: ToolMode | None,
        hooks: Iterable[TurnHook],
        *,
        collections: Iterable[str],
        memory: bool | None,
        agent: Agent,
        variables: Mapping[str, str],
        conversation: str = "",
    ) -> ConversationSettings:
        """The settings of a conversation, with memory as tools or as a hook where it is wanted."""
        ensembles = (*agent.ensembles, *ensembles)
        memory = agent.memory if memory is None else memory
        if memory and self.configuration.memory_mode == "tools":
            ensembles = (*ensembles, MEMORY.name)
        elif memory:
            hooks = (self.access_memory(), *hooks)
        handler = event_handler or self.event_handler
        opened = [
            *await self._open_ensembles(ensembles, handler, conversation),
            *await self._open_optional(agent, handler, conversation),
        ]
        if agent.agents:
            opened.append(self._produce_agents(agent, model, depth=1))
        return ConversationSettings(
            model=model,
            services=self._services,
            toolbox=Toolbox(
                self._ensembles.survey_invokers,
                tuple(gather_invokers(invokers).values()),
                tuple(dict.fromkeys(opened)),
            ),
            controls=(controls or Controls()).over(agent.controls),
            handler=event_handler,
            tool_mode=tool_mode or agent.tool_mode,
            hooks=tuple(dict.fromkeys(hooks)),
            tracer=self._access_tracer(),
            collections=tuple(dict.fromkeys((*agent.collections, *collections))),
            template=agent.produce_template(variables),
            agent=agent.name,
            budgets=agent.budgets,
            claims=self._claims,
            revive=self._revive,
        )

    @property
    def background(self) -> Background:
        """The work that turns leave to hooks, such as memory: wait for it, or cancel it."""
        return self._hook_runner.background

    def access_memory(self) -> TurnHook:
        """The hook that recalls and remembers what a user says in conversations.

        `begin(memory=True)` adds it to a conversation, and so does `add_hook`.
        """
        self._require_open()
        return self._hook_runner.access(MEMORY.name, self._produce_memory)

    def access_documents(self) -> Documents:
        """What reads and searches the documents of conversations."""
        self._require_open()
        if self._documents is None:
            # A process that reads no document imports none of it.
            from vibe_llms.documents.core import produce_documents

            self._documents = produce_documents(
                self.configuration,
                lambda text: self._notify(Notice("documents", text)),
                self._providers,
                self._access_tracer(),
                None if self._access_library is None else self._access_library(),
            )
        return self._documents

    def access_budgets(self) -> Budgets:
        """What the user may spend and has spent."""
        if self._budgets is None:
            # A process without budgets imports none of it.
            from vibe_llms.runs.budgets import produce_budgets

            self._budgets = produce_budgets(
                self._backend,
                self._providers.access_prices,
                store=self._budget_store,
                user=self._user,
            )
        return self._budgets

    def access_spending(self, budgets: Mapping[str, Budget]) -> Spending | None:
        """What requests of the user count against, with budgets of agents; none without budgets."""
        if not budgets and not self.configuration.budgets.find(self._user):
            return None
        return self.access_budgets().produce_spending(budgets)

    def _access_tracer(self) -> Tracer:
        if self._tracer is None and self.configuration.telemetry.enabled:
            # A process that records nothing imports none of it.
            from vibe_llms.telemetry import produce_tracer

            self._tracer = guard(produce_tracer(self.configuration))
        return self._tracer or _NO_TRACER

    def _produce_memory(self) -> TurnHook:
        host = HookHost(
            backend=self._backend,
            user=self._user,
            providers=self._providers,
            produce_asker=self._produce_asker,
            restore=self._restore,
            load=self.archive.load_all,
            notify=self._notify,
            tracer=self._access_tracer(),
        )
        return access_hook(MEMORY, self.configuration, host)

    def _produce_asker(self, model: Model, output_tokens: int) -> Asker:
        from vibe_llms.asking import ModelAsker

        return ModelAsker(
            model,
            output_tokens=output_tokens,
            access_controls=self._providers.access_controls,
            access_limiter=self._providers.access_limiter,
            access_spending=self.access_spending,
            tracer=self._access_tracer(),
        )

    async def open_ensemble(self, name: str) -> Ensemble:
        """The ensemble of a row of `[ensembles]`, opened, to be used without a conversation.

        It is closed with the session. `EnsembleFailed` says why it cannot be opened.
        """
        self._require_open()
        return await self._ensembles.open_one(name)

    async def _ask_model(
        self, address: str, canisters: Sequence[Canister], supervisor: str, controls: Controls
    ) -> Turn:
        """One turn with a model for an ensemble; nothing of it is kept."""
        conversation = await self.begin(
            address,
            supervisor=supervisor or None,
            history=canisters[:-1] or None,
            controls=controls,
            event_handler=ignore_events,
            save=False,
        )
        return await conversation.converse(canisters[-1])

    async def _ask_agent(self, request: AgentRequest, event_handler: EventHandler) -> Turn:
        """One turn with an agent for another one; nothing of it is kept."""
        agent = self.access_agent(request.agent)
        agent = replace(agent, payers=request.payers)
        others: Sequence[Tool] = ()
        if agent.agents:
            others = self._produce_agents(agent, request.model, depth=request.depth + 1).invokers
        conversation = await self.begin(
            None if agent.model else request.model,
            agent=replace(agent, agents=()),
            invokers=others,
            event_handler=event_handler,
            save=False,
        )
        try:
            return await conversation.converse(request.text)
        finally:
            await conversation.close()

    def _produce_agents(self, agent: Agent, model: Model, *, depth: int) -> AgentsEnsemble:
        from vibe_llms.ensembles.agents import AgentsEnsemble, OfferedAgent

        others = access_others(self.configuration, agent)
        return AgentsEnsemble(
            [OfferedAgent(one.name, one.description, one.equipped) for one in others],
            self._host,
            model=model,
            depth=depth,
            deepest=self.configuration.tools.agent_depth,
            payers=agent.budgets,
        )

    async def _rebuild(self, record: RunRecord) -> Conversation:
        """The conversation of a run, from its recipe."""
        from vibe_llms.runs.core import produce_history

        recipe = record.recipe
        history = await produce_history(self.archive, record)
        if recipe.model != history.details.model:
            history.choose(recipe.model)
        agent = Agent(name="")
        name = history.details.agent if recipe.agent is None else recipe.agent
        if name in survey_names(self.configuration):
            # The rest of what it says is in the recipe, and in the history.
            row = self.access_agent(name)
            agent = Agent(name=name, budget=row.budget, agents=row.agents if recipe.agents else ())
        settings = await self._produce_settings(
            await self.access_model(recipe.model),
            [
                *(self._registered[name] for name in recipe.invokers),
                *(
                    Invoker.from_declaration(one.name, one.schema, description=one.description)
                    for one in recipe.declared
                ),
            ],
            recipe.ensembles,
            recipe.produce_controls(),
            ignore_events,
            recipe.tool_mode,
            [self.access_memory()] if MEMORY.name in recipe.hooks else [],
            collections=recipe.collections,
            memory=False,
            agent=agent,
            variables={},
            conversation=record.conversation,
        )
        withheld = frozenset(recipe.withheld)
        toolbox = replace(settings.toolbox, withheld=withheld)
        settings = replace(settings, toolbox=toolbox, claims=recipe.claims)
        return Conversation(history, settings, self._enter)

    async def _restore_anew(self, conversation: str) -> Sequence[Canister]:
        """The messages of a conversation that another process may have continued."""
        for one in self._conversations:
            if one.identity == conversation and not one.busy:
                await one.refresh()
                return one.canisters
        return await self._restore(conversation)

    async def _restore(self, conversation: str) -> Sequence[Canister]:
        return (await self.archive.restore(conversation)).canisters

    def _notify(self, notice: Notice) -> None:
        """Report a notice outside of any turn, from any thread, in the conversations' thread."""
        event = NoticeEvent(notice=notice)
        if self._loop is None or threading.get_ident() == self._thread:
            self.event_handler(event)
        else:
            # Where the loop has ended, no handler is left.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.event_handler, event)

    async def _open_ensembles(
        self, named: Iterable[str | Ensemble], handler: EventHandler, conversation: str = ""
    ) -> Sequence[Ensemble]:
        return await self._ensembles.open(named, _produce_notifier(handler, conversation))

    async def _open_optional(
        self, agent: Agent, handler: EventHandler, conversation: str
    ) -> Sequence[Ensemble]:
        names = survey_optional(self.configuration, agent, own_rows=self._own_rows)
        notify = _produce_notifier(handler, conversation)
        return await self._ensembles.open_available(names, notify)

    def _enter(self, conversation: Conversation) -> None:
        self._require_open()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._conversations.add(conversation)

    async def _choose(self, model: str | Model | None, event_handler: EventHandler | None) -> Model:
        if model is None:
            model, note = self.choose_model()
            if note:
                handler = event_handler or self.event_handler
                handler(NoticeEvent(notice=Notice("model", note)))
        return await self.access_model(model) if isinstance(model, str) else model

    def _settle_agent(
        self, agent: str | Agent | None, variables: Mapping[str, str] | None
    ) -> Agent:
        """The agent of a conversation; one without settings if none is named."""
        if agent is None and variables:
            raise RequestError("variables are those of an agent's prompt; name the agent too")
        return self.access_agent(agent) if isinstance(agent, str) else agent or Agent(name="")

    async def _choose_for(
        self, agent: Agent, model: str | Model | None, event_handler: EventHandler | None
    ) -> Model:
        if model is not None or not agent.model:
            return await self._choose(model, event_handler)
        try:
            return await self.access_model(agent.model)
        except ModelNotFound as error:
            raise self.configuration.error(str(error), AGENTS, agent.name, "model") from error

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosed("the session is closed; open another one")


def _produce_notifier(handler: EventHandler, conversation: str) -> Callable[[str], None]:
    def notify(text: str) -> None:
        handler(NoticeEvent(notice=Notice("ensemble", text), conversation=conversation))

    return notify


def _end(session: Session, loop: asyncio.AbstractEventLoop) -> None:
    if not (loop.is_closed() or loop.is_running()):
        loop.run_until_complete(session.close())
