"""Sessions: open providers, ensembles, and the archive, create conversations, and close them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from msgspec.structs import replace

from vibe_llms.agents.definitions import (
    AGENTS,
    Agent,
    access_agent,
    access_others,
    read_agents,
    restrict,
    survey_names,
    survey_optional,
)
from vibe_llms.base.configuration import LOCAL, Budget
from vibe_llms.base.endings import close_at_end, forget
from vibe_llms.base.exceptions import ModelNotFound, RequestError, SessionClosed
from vibe_llms.base.keys import KeyVault
from vibe_llms.base.offloading import LOOP_MESSAGES, offload
from vibe_llms.base.registries import Row
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.conversations.hook_runner import Background, HookRunner
from vibe_llms.conversations.hooks import TurnHook
from vibe_llms.conversations.hosts import (
    ENSEMBLES,
    AgentRequest,
    Asker,
    EnsembleHost,
    HookHost,
    access_hook,
)
from vibe_llms.conversations.prompts import Prompt, is_instructed, read_prompt
from vibe_llms.conversations.settings import ALL_SKILLS, ConversationSettings, Services
from vibe_llms.conversations.tools import Tool, Toolbox
from vibe_llms.ensembles.core import Ensembles, EnsembleStatus
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.invokers import Invoker, gather_invokers
from vibe_llms.messages.canisters import Canister, Cost, SupervisorCanister, Turn
from vibe_llms.messages.contents import Reference
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice, NoticeEvent, ignore_events
from vibe_llms.messages.tracing import Tracer, guard
from vibe_llms.providers.breakers import Breakers
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiters
from vibe_llms.providers.provider_pool import Providers, ProviderStatus
from vibe_llms.providers.spending import Spending
from vibe_llms.session.options import ConversationOptions, NewConversationOptions, check_options
from vibe_llms.session.parts import LIMIT_WINDOWS, SessionParts
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.interfaces import Finding, Summary

if TYPE_CHECKING:
    from vibe_llms.agents.ensemble import AgentsEnsemble
    from vibe_llms.agents.imports import AgentImportReport, AgentPaths
    from vibe_llms.conversations.outputs import OutputType
    from vibe_llms.documents.core import Documents
    from vibe_llms.importing.reports import ImportOptions, ImportReport, Paths, ProgressHandler
    from vibe_llms.providers.windows import Windows
    from vibe_llms.runs.budgets import Budgets
    from vibe_llms.runs.core import Runs
    from vibe_llms.runs.interfaces import RunRecord, RunStatus
    from vibe_llms.runs.run import Run
    from vibe_llms.skills.catalog import SkillCatalog, SkillLibrary

T = TypeVar("T")

#: The row of memory; its module is imported at the first use of memory.
MEMORY = Row("memory", "vibe_llms.memory.hook")
_NO_TRACER = Tracer()


class Session:
    """A session, opened by `open_session`: creates conversations and closes their resources.

    `async with` closes it with the block. After `await session`, it stays open until its event loop
    or the program ends, as in a notebook.
    """

    def __init__(self, parts: SessionParts) -> None:
        self.configuration = configuration = parts.configuration
        self.archive = parts.archive
        self.event_handler = parts.event_handler
        rows = configuration.tree.get(ENSEMBLES, {})
        self.gatekeeper = Gatekeeper(parts.approver, rows.__contains__)
        self._own_rows = parts.own_rows
        self._access_library = parts.access_library
        self._offered_collections = parts.offered_collections
        self._tracer = None if parts.tracer is None else guard(parts.tracer)
        self._owns_tracer = parts.tracer is None
        self._backend = parts.backend or open_backend(configuration)
        self._owns_backend = parts.owns_backend
        self._limiters = parts.limiters or Limiters(LIMIT_WINDOWS.find(self._backend))
        self._providers = Providers(
            configuration,
            parts.event_handler,
            keys=parts.keys,
            interactive=parts.interactive,
            import_guard=parts.import_guard,
            limiters=self._limiters,
        )
        self.vault = parts.vault or KeyVault(configuration.places.keys_file)
        self._user = parts.user
        self._host = EnsembleHost(
            elicitor=parts.elicitor,
            ask_model=self._ask_model,
            ask_agent=self._ask_agent,
            admit=self.gatekeeper.admit,
            vault=self.vault,
            notify=self._notify,
            access_documents=self.access_documents,
            backend=self._backend,
            user=parts.user,
        )
        self._ensembles = Ensembles(configuration, self._host)
        self._hook_runner = HookRunner(self._notify)
        self._services = Services(
            event_handler=parts.event_handler,
            access_model=self.access_model,
            access_controls=self._providers.access_controls,
            access_limiter=self._providers.access_limiter,
            access_fallback=self._providers.access_fallback,
            breakers=parts.breakers or Breakers(),
            access_windows=lambda: self.windows,
            access_spending=self.access_spending,
            tools=configuration.tools,
            context=configuration.context,
            gatekeeper=self.gatekeeper,
            open_ensembles=self._open_ensembles,
            hook_runner=self._hook_runner,
            access_documents=self.access_documents,
            elicitor=parts.elicitor,
            estimate_cost=self.estimate_cost,
        )
        self._documents: Documents | None = None
        self._registered = gather_invokers(parts.invokers)
        self._produce_runs = parts.produce_runs
        self._budget_store = parts.budget_store
        self._budgets: Budgets | None = None
        self._claims = parts.claims
        self._revive = parts.revive
        self._runs: Runs | None = None
        self._windows: Windows | None = None
        self._skills: SkillLibrary | None = None
        self._conversations: WeakSet[Conversation] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False
        #: A generator that closes this session when it is closed itself.
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
            # Event loops close such generators at their end, but a notebook's loop is only stopped.
            self._end = partial(_end, self, asyncio.get_running_loop())
            close_at_end(self._end)
        return self

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.close()

    async def begin(
        self, model: str | Model | None = None, **options: Unpack[NewConversationOptions]
    ) -> Conversation:
        """Begin a conversation.

        Without a model it uses the one that `find_model` returns. It is stored with its first
        turn. The options are those of `ConversationOptions` and `NewConversationOptions`.
        """
        self._require_open()
        check_options("begin", options, NewConversationOptions)
        agent = self._find_agent(options)
        chosen = await self._choose_for(agent, model, options.get("event_handler"))
        history, supervisor = options.get("history"), options.get("supervisor")
        large = isinstance(history, Sequence) and len(history) > LOOP_MESSAGES
        canisters = [*await offload(large, read_prompt, history)]
        instructions = agent.instruct(options.get("variables"))
        if supervisor is None and not is_instructed(canisters, instructions):
            supervisor = instructions
        if supervisor:
            canisters = [*read_prompt(SupervisorCanister.from_text(supervisor)), *canisters]
        begun = History.begin(
            self.archive if options.get("save", True) else None,
            name=options.get("name", ""),
            model=f"{chosen.provider}/{chosen.name}",
            agent=agent.name,
            tags=options.get("tags", ()),
            canisters=canisters,
            load=self.archive.load_all,
        )
        settings = await self._produce_settings(chosen, agent, options)
        return Conversation(begun, settings, self._enter)

    async def resume(
        self,
        conversation: str,
        *,
        model: str | Model | None = None,
        **options: Unpack[ConversationOptions],
    ) -> Conversation:
        """Resume a stored conversation, by its identity, 4 or more characters of it, or its name.

        It continues with its own model unless you give another. The instructions of an `agent` are
        sent with the next message if they are not in the history. Nothing is stored before the next
        message. The options are those of `ConversationOptions`.
        """
        self._require_open()
        check_options("resume", options, ConversationOptions)
        agent, handler = self._find_agent(options), options.get("event_handler")
        identity = await self.archive.resolve(conversation)
        history, notices = await History.restore(self.archive, identity)
        for notice in notices:
            (handler or self.event_handler)(NoticeEvent(notice=notice, conversation=identity))
        chosen = await self._choose(model or history.details.model or None, handler)
        address = f"{chosen.provider}/{chosen.name}"
        if model is not None and address != history.details.model:
            history.choose(address)
        settings = await self._produce_settings(chosen, agent, options, conversation=identity)
        settings = replace(settings, supervisor=agent.instruct(options.get("variables")))
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
        """Begin a turn that does not depend on this process, and return immediately.

        The turn is recorded: any process can follow, cancel, or approve it by its identity, and if
        this process dies, another worker continues it. `controls` are merged over those of the
        conversation. `output` is as in `converse`, but any process checks the reply, against the
        schema of the type; the type itself reads it where this run's `result` is called.

        The run is durable when this returns. A new conversation is stored later, by the worker,
        with the first message of the turn; until then, other processes find the run but not the
        conversation. `add` stores a conversation at once.

        Raises `ConversationBusy` if the conversation already has such a turn, `RequestError` if no
        other process could rebuild it, for example because a tool was not given to
        `open_session(invokers=...)`.
        """
        return await self.access_runs().start(
            conversation, conversation.read_prompt(prompt), controls=controls, output=output
        )

    async def detach(self, conversation: Conversation) -> Run:
        """Turn the running turn of a conversation into a run that any process can follow.

        Its `converse` returns with the stop reason `suspended`. Running calls are awaited; an
        incomplete reply is requested again. Raises `RequestError` if no other process could
        continue it; then it continues here.
        """
        return await self.access_runs().detach(conversation)

    async def access_run(self, run: str) -> Run:
        """Return a run by its identity or at least the first 4 characters of it."""
        return await self.access_runs().access(run)

    async def survey_runs(
        self,
        *,
        statuses: Collection[RunStatus] = (),
        conversation: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """Return the runs, newest first; with `after`, those older than that run.

        Without `statuses` or `conversation`, those of every status or conversation.
        """
        return await self.access_runs().survey(
            statuses=statuses, conversation=conversation, after=after, limit=limit
        )

    @property
    def registered_invokers(self) -> Mapping[str, Invoker]:
        """The tools that were given to `open_session(invokers=...)`, by name."""
        return self._registered

    def access_runs(self) -> Runs:
        """Return the service that starts, finds, and executes runs."""
        self._require_open()
        if self._runs is None:
            # Processes without runs do not import this.
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
        """Return the agents of `[agents]`, in the order of the configuration.

        Raises `ConfigurationError` if one of their rows is invalid.
        """
        return tuple(read_agents(self.configuration).values())

    def access_agent(self, name: str) -> Agent:
        """Return the agent with this name; raises `AgentNotFound`."""
        return access_agent(self.configuration, name)

    async def survey_skills(self) -> SkillCatalog:
        """Return the skills in the user's folders, with the reasons why some are not offered."""
        return await asyncio.to_thread(self._access_skills().survey)

    def choose_skills(self, agent: str | None) -> Sequence[str] | None:
        """Return the `skills` of a chat for `begin`: all of this user, unless the agent has a list.

        None means those of the agent. Users of a server have only the skills of their agents.
        """
        settled = agent is not None and self.access_agent(agent).skills is not None
        places, folders = self.configuration.places, self.configuration.skills.folders
        if settled or self._user != LOCAL or not (folders or places.skills.is_dir()):
            return None
        return (ALL_SKILLS,)

    def _access_skills(self) -> SkillLibrary:
        if self._skills is None:
            # Processes without skills do not import this.
            from vibe_llms.skills.catalog import produce_library

            self._skills = produce_library(self.configuration)
        return self._skills

    async def access_model(self, name: str) -> Model:
        """Return the model of an address `provider/model` or `provider:model`, or of an alias.

        The name of a known model, or a unique part of it, works too. Raises `ModelNotFound`.
        """
        self._require_open()
        return await self._providers.access_model(name)

    def locate_model(self, name: str) -> tuple[Row, str]:
        """Return the row of an address, and the model's own name."""
        return self._providers.locate(name)

    def is_of_callers(self, provider: str) -> bool:
        """Return True if a row is used with the keys of a server's callers."""
        return self._providers.is_of_callers(provider)

    def access_prices(self, provider: str) -> str:
        """Return the name of a row's price list; empty if it names none."""
        return self._providers.access_prices(provider)

    def choose_model(self) -> tuple[str, str]:
        """Return the address of the default model, and a note for the user.

        It is the configured default, the default of the first row with a key, or the scripted demo.
        No server is asked; see `find_model`.
        """
        return self._providers.choose()

    async def find_model(self) -> tuple[str, str]:
        """Return the address of the model that answers if none is named, and a note for the user.

        It is the one of `choose_model`. In place of the demo, it is the first chat model of a
        server that runs on this machine and needs no key, if one lists its models within 0.3
        seconds. Only rows with a loopback address are asked, and none with `offline = true` or
        `local-servers = false`.
        """
        self._require_open()
        return await self._providers.find()

    async def survey_models(self, provider: str | None = None) -> Sequence[Model]:
        """Ask servers for the models of one provider, or of all usable ones.

        Without a provider, servers on this machine that do not answer are skipped.
        """
        self._require_open()
        return await self._providers.survey_models(provider)

    @property
    def windows(self) -> Windows:
        """The context windows of models, declared or learned from refusals."""
        if self._windows is None:
            # Sessions that make no request do not import this.
            from vibe_llms.providers.windows import Windows

            # The folder of a removed user must not reappear.
            self._windows = Windows(
                self.configuration.places.state, self._notify, create=self._user == LOCAL
            )
        return self._windows

    def survey_addresses(self, *, usable: bool = False) -> Sequence[str]:
        """Return the names of models that are known without loading a provider, aliases first.

        With `usable`, leave out the models of rows whose key is not set.
        """
        return self._providers.survey_addresses(usable=usable)

    def survey_providers(self) -> Sequence[ProviderStatus]:
        """Return the status of the configured rows: if they load, and if they have a key."""
        return self._providers.survey()

    def estimate_cost(self, canisters: Iterable[Canister]) -> Cost:
        """Estimate the cost of the replies among some canisters, by the price list of each row."""
        from vibe_llms.messages.costs import estimate_cost

        return estimate_cost(canisters, self._providers.access_prices)

    async def survey_conversations(
        self, *, limit: int | None = None, tag: str = "", superseded: bool = False
    ) -> Sequence[Summary]:
        """Return the stored conversations, most recent first.

        `superseded` includes those that `undo` or `regenerate` has replaced.
        """
        return await self.archive.survey(limit=limit, tag=tag, superseded=superseded)

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Return stored messages that contain all words of a text, best first."""
        return await self.archive.search(text, limit=limit, superseded=superseded)

    async def import_conversations(
        self,
        paths: Paths,
        *,
        options: ImportOptions | None = None,
        progress: ProgressHandler | None = None,
    ) -> ImportReport:
        """Import conversations of other programs from files, folders, or ZIP files.

        Importing again adds only what is new. One that cannot be read is refused in the report, and
        the others are imported. `progress` is called after each. Raises `ImportUnreadable` before
        anything is stored if a file cannot be opened or nothing is recognized.
        """
        from vibe_llms.importing.core import import_conversations

        return await import_conversations(
            paths,
            self.archive,
            configuration=self.configuration,
            options=options,
            progress=progress,
        )

    async def import_agents(
        self, paths: AgentPaths, *, dry_run: bool = False, force: bool = False
    ) -> AgentImportReport:
        """Import templates of llm and roles of aichat, from files or folders, as agents.

        They are added to the configuration file, and sessions that are opened later have them.
        Importing again changes nothing; an agent that differs is replaced with `force`. One that
        cannot be read is refused in the report, and the others are imported.
        """
        from vibe_llms.agents.imports import import_agents

        return await offload(
            True,
            import_agents,
            paths,
            self.configuration,
            locate=self.locate_model,
            dry_run=dry_run,
            force=force,
        )

    async def load(self, reference: Reference) -> bytes:
        """Return the bytes of a reference in a content."""
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
        # Messages that running turns store later would restore the deleted conversation.
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
            # The work of hooks needs models and archive.
            stack.push_async_callback(self._hook_runner.close)
            if self._runs is not None:
                # Give runs back before cancelling their turns, so other processes continue them.
                await self._runs.give_back()
            async with asyncio.TaskGroup() as group:
                for conversation in list(self._conversations):
                    group.create_task(conversation.close())

    async def _produce_settings(
        self, model: Model, agent: Agent, options: ConversationOptions, *, conversation: str = ""
    ) -> ConversationSettings:
        """Return the settings of a conversation, with memory as tools or as a hook if requested."""
        ensembles = (*agent.ensembles, *options.get("ensembles", ()))
        hooks = tuple(options.get("hooks", ()))
        memory = agent.memory if (given := options.get("memory")) is None else given
        if memory and self.configuration.memory_mode == "tools":
            ensembles = (*ensembles, MEMORY.name)
        elif memory:
            hooks = (self.access_memory(), *hooks)
        handler = options.get("event_handler") or self.event_handler
        opened = [
            *await self._open_ensembles(ensembles, handler, conversation),
            *await self._open_optional(agent, handler, conversation),
        ]
        whole = {one.name for one in opened}
        opened += await self._open_ensembles(
            [row for row in agent.tool_rows if row not in whole], handler, conversation
        )
        if agent.agents:
            opened.append(self._produce_agents(agent, model, depth=1))
        named = options.get("skills")
        skills = tuple(named if named is not None else agent.skills or ())
        if skills:
            opened += await self._open_skills(skills, _produce_notifier(handler, conversation))
        toolbox = Toolbox(
            self._ensembles.survey_invokers,
            tuple(gather_invokers(options.get("invokers", ())).values()),
            tuple(dict.fromkeys(opened)),
        )
        return ConversationSettings(
            model=model,
            services=self._services,
            toolbox=restrict(self.configuration, agent, toolbox, whole),
            controls=(options.get("controls") or Controls()).over(agent.controls),
            handler=options.get("event_handler"),
            tool_mode=options.get("tool_mode") or agent.tool_mode,
            hooks=tuple(dict.fromkeys(hooks)),
            tracer=self._access_tracer(),
            collections=tuple(dict.fromkeys((*agent.collections, *options.get("collections", ())))),
            skills=skills,
            template=agent.produce_template(options.get("variables") or {}),
            agent=agent.name,
            context_mode=options.get("context_mode") or agent.context_mode,
            fallback=agent.fallback if (named := options.get("fallback")) is None else tuple(named),
            budgets=agent.budgets,
            claims=self._claims,
            revive=self._revive,
        )

    @property
    def background(self) -> Background:
        """The work of hooks after turns, such as memory's: wait for it, or cancel it."""
        return self._hook_runner.background

    def access_memory(self) -> TurnHook:
        """Return the hook that recalls and remembers the user's messages.

        `begin(memory=True)` adds it to a conversation, and so does `add_hook`.
        """
        self._require_open()
        return self._hook_runner.access(MEMORY.name, self._produce_memory)

    def access_documents(self) -> Documents:
        """Return the service that reads and searches the documents of conversations."""
        self._require_open()
        if self._documents is None:
            # Processes without documents do not import this.
            from vibe_llms.documents.core import produce_documents

            self._documents = produce_documents(
                self.configuration,
                lambda text: self._notify(Notice("documents", text)),
                self._providers,
                self._access_tracer(),
                None if self._access_library is None else self._access_library(),
                self.archive,
                self._offered_collections,
            )
        return self._documents

    def access_budgets(self) -> Budgets:
        """Return the budgets of the user, with the amounts spent."""
        if self._budgets is None:
            # Processes without budgets do not import this.
            from vibe_llms.runs.budgets import produce_budgets

            self._budgets = produce_budgets(
                self._backend,
                self._providers.access_prices,
                store=self._budget_store,
                user=self._user,
            )
        return self._budgets

    def access_spending(self, budgets: Mapping[str, Budget]) -> Spending | None:
        """Return the spending under the user's and the agents' budgets; None without budgets."""
        own = self.configuration.budgets.find(self._user)
        if not (budgets or own or self.configuration.limits.find(self._user)):
            return None
        return self.access_budgets().produce_spending(budgets)

    def _access_tracer(self) -> Tracer:
        if self._tracer is None and self.configuration.telemetry.enabled:
            # Processes without telemetry do not import this.
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
        from vibe_llms.conversations.asking import ModelAsker

        return ModelAsker(
            model,
            output_tokens=output_tokens,
            access_controls=self._providers.access_controls,
            access_limiter=self._providers.access_limiter,
            access_spending=self.access_spending,
            tracer=self._access_tracer(),
        )

    async def open_ensemble(self, name: str) -> Ensemble:
        """Open the ensemble of a row of `[ensembles]`, for use without a conversation.

        It is closed with the session. Raises `EnsembleFailed` if it cannot be opened.
        """
        self._require_open()
        return await self._ensembles.open_one(name)

    async def inspect_ensembles(
        self, names: Iterable[str], *, start: bool = False
    ) -> Sequence[EnsembleStatus]:
        """Return the states of rows of `[ensembles]`; with `start`, open those that are not."""
        self._require_open()
        return await self._ensembles.inspect(names, start=start)

    async def _ask_model(
        self, address: str, canisters: Sequence[Canister], supervisor: str, controls: Controls
    ) -> Turn:
        """Run one turn with a model for an ensemble, without storing anything."""
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
        """Run one turn with an agent for another one, without storing anything."""
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
        from vibe_llms.agents.ensemble import AgentsEnsemble, OfferedAgent

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
        """Rebuild the conversation of a run from its recipe."""
        from vibe_llms.runs.core import produce_history

        recipe = record.recipe
        history = await produce_history(self.archive, record)
        if recipe.model != history.details.model:
            history.choose(recipe.model)
        agent = Agent(name="")
        name = history.details.agent if recipe.agent is None else recipe.agent
        if name in survey_names(self.configuration):
            # The agent's other settings are in the recipe and in the history.
            row = self.access_agent(name)
            agent = Agent(name=name, budget=row.budget, agents=row.agents if recipe.agents else ())
        declared = (
            Invoker.from_declaration(one.name, one.schema, description=one.description)
            for one in recipe.declared
        )
        options = ConversationOptions(
            invokers=[*(self._registered[name] for name in recipe.invokers), *declared],
            ensembles=recipe.ensembles,
            collections=recipe.collections,
            skills=recipe.skills,
            controls=recipe.produce_controls(),
            event_handler=ignore_events,
            tool_mode=recipe.tool_mode,
            fallback=recipe.fallback,
            context_mode=recipe.context_mode,
            memory=False,
            hooks=[self.access_memory()] if MEMORY.name in recipe.hooks else [],
        )
        model = await self.access_model(recipe.model)
        settings = await self._produce_settings(
            model, agent, options, conversation=record.conversation
        )
        withheld, singled = frozenset(recipe.withheld), frozenset(recipe.singled)
        toolbox = replace(settings.toolbox, withheld=withheld, singled=singled)
        settings = replace(settings, toolbox=toolbox, claims=recipe.claims)
        return Conversation(history, settings, self._enter)

    async def _restore_anew(self, conversation: str) -> Sequence[Canister]:
        """Return the messages of a conversation that another process may have continued."""
        for one in self._conversations:
            if one.identity == conversation and not one.busy:
                await one.refresh()
                return one.canisters
        return await self._restore(conversation)

    async def _restore(self, conversation: str) -> Sequence[Canister]:
        return (await self.archive.restore(conversation)).canisters

    def _notify(self, notice: Notice) -> None:
        """Report a notice outside of turns, from any thread, in the thread of the conversations."""
        event = NoticeEvent(notice=notice)
        if self._loop is None or threading.get_ident() == self._thread:
            self.event_handler(event)
        else:
            # After the end of the loop, no handler is left.
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

    async def _open_skills(
        self, names: Sequence[str], notify: Callable[[str], None]
    ) -> Sequence[Ensemble]:
        """Return the ensemble of these skills; none if no skill can be offered."""
        from vibe_llms.skills.ensemble import SkillsEnsemble

        ensemble = SkillsEnsemble(
            self._access_skills(), names, show_folders=self._user == LOCAL, notify=notify
        )
        await ensemble.open()
        return [ensemble] if ensemble.invokers else []

    def _enter(self, conversation: Conversation) -> None:
        self._require_open()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._conversations.add(conversation)

    async def _choose(self, model: str | Model | None, event_handler: EventHandler | None) -> Model:
        if model is None:
            model, note = await self.find_model()
            if note:
                handler = event_handler or self.event_handler
                handler(NoticeEvent(notice=Notice("model", note)))
        return await self.access_model(model) if isinstance(model, str) else model

    def _find_agent(self, options: ConversationOptions) -> Agent:
        """Return the agent of a conversation; one without settings if none is named."""
        agent = options.get("agent")
        if agent is None and options.get("variables"):
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
