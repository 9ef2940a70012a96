"""The composition root: providers, ensembles and archive, opened and closed as one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from vibe_llms.attendants import MEMORY, Attendance, Attendant, AttendantHost, access_attendant
from vibe_llms.configuration import Configuration, Places, ToolMode, load_configuration
from vibe_llms.controls import Controls
from vibe_llms.conversation import Conversation
from vibe_llms.costs import Cost, estimate_cost
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.ensembles.interfaces import Ensemble, EnsembleHost
from vibe_llms.ensembles.questions import Elicitor
from vibe_llms.events import EventHandler, Notice, NoticeEvent, ignore_events
from vibe_llms.exceptions import SessionClosed
from vibe_llms.invocation.approval import Approver, Gatekeeper
from vibe_llms.keys import KeyVault
from vibe_llms.ledger import Ledger
from vibe_llms.messages.canisters import Canister, SupervisorCanister, Turn
from vibe_llms.messages.contents import Reference
from vibe_llms.outfit import ConversationDefaults, Outfit
from vibe_llms.prompts import Prompt, read_prompt
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.rows import ImportGuard, Providers, ProviderStatus, unguarded
from vibe_llms.registries import Row
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Finding, Summary
from vibe_llms.toolbox import Tool


class Session:
    """Opened by `open_session`; makes conversations and closes what they need."""

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
    ) -> None:
        self.configuration = configuration
        self.archive = archive
        self.event_handler = event_handler
        self.gatekeeper = Gatekeeper(approver)
        self._providers = Providers(
            configuration,
            event_handler,
            keys=keys,
            interactive=interactive,
            import_guard=import_guard,
        )
        host = EnsembleHost(
            elicitor=elicitor,
            ask_model=self._ask_model,
            admit=self.gatekeeper.admit,
            vault=KeyVault(configuration.places.keys_file),
            tell=self._tell,
        )
        self._ensembles = Ensembles(configuration, host)
        self._attendance = Attendance(self._tell)
        self._conversations: WeakSet[Conversation] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False

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
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        tool_mode: ToolMode | None = None,
        memory: bool = False,
        attendants: Iterable[Attendant] = (),
        save: bool = True,
    ) -> Conversation:
        """A new conversation; without a model, with the one that `choose_model` chooses.

        `supervisor` is the system text, `history` what shall count as said already. `ensembles` are
        rows of `[ensembles]` by their names, or ensembles. `tool_mode` says how tools are offered:
        `native` by calls of the model's own, `contract` by an agreement in its instructions, `auto`
        as the model can, `off` not at all; without it, as `[tools]` says. With `memory` the user's
        long-term memory attends it, in the mode of `[memory]`; `attendants` are others who do. It
        is stored with its first turn, or never if `save` is off; memory takes in nothing then.
        """
        self._require_open()
        chosen = await self._choose(model, event_handler)
        instructions = SupervisorCanister.from_text(supervisor) if supervisor else None
        canisters = [*read_prompt(instructions), *read_prompt(history)]
        ledger = Ledger.begin(
            self.archive if save else None,
            name=name,
            model=f"{chosen.provider}/{chosen.name}",
            tags=tags,
            canisters=canisters,
        )
        named, attending = self._gather(ensembles, attendants, memory=memory)
        return await self._produce_conversation(
            ledger, chosen, invokers, named, controls, event_handler, tool_mode, attending
        )

    async def resume(
        self,
        conversation: str,
        *,
        model: str | Model | None = None,
        invokers: Iterable[Tool] = (),
        ensembles: Iterable[str | Ensemble] = (),
        controls: Controls | None = None,
        event_handler: EventHandler | None = None,
        tool_mode: ToolMode | None = None,
        memory: bool = False,
        attendants: Iterable[Attendant] = (),
    ) -> Conversation:
        """A stored conversation, by its identity, a prefix of at least 4 characters, or its name.

        It goes on with the model that it had, unless another is given. The rest is as in `begin`.
        """
        self._require_open()
        identity = await self.archive.resolve(conversation)
        ledger, notices = await Ledger.restore(self.archive, identity)
        handler = event_handler or self.event_handler
        for notice in notices:
            handler(NoticeEvent(notice=notice, conversation=identity))
        chosen = await self._choose(model or ledger.details.model or None, event_handler)
        address = f"{chosen.provider}/{chosen.name}"
        if model is not None and address != ledger.details.model:
            await ledger.revise(model=address)
        named, attending = self._gather(ensembles, attendants, memory=memory)
        return await self._produce_conversation(
            ledger, chosen, invokers, named, controls, event_handler, tool_mode, attending
        )

    async def access_model(self, name: str) -> Model:
        """The model of an address `provider/model`, or of an alias; `provider:model` serves too.

        So does the name of a model that is known, or a part of it that only one has.
        `ModelNotFound` where nothing fits.
        """
        self._require_open()
        return await self._providers.access_model(name)

    def locate_model(self, name: str) -> tuple[Row, str]:
        """The row of an address, and the model's own name."""
        return self._providers.locate(name)

    def choose_model(self) -> tuple[str, str]:
        """The address of the model to use where none is given, and what there is to say of it.

        It is the configured default, else the default of the first row whose key is set, else the
        scripted one.
        """
        return self._providers.choose()

    async def survey_models(self, provider: str | None = None) -> Sequence[Model]:
        """The models that one provider offers, or all that can be used; asks their servers.

        Of all, those that need no key are passed over where no such server answers.
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
        """What the replies among some canisters cost, by the price list that each row names."""
        return estimate_cost(canisters, self._providers.access_prices)

    async def survey(
        self, *, limit: int | None = None, tag: str = "", superseded: bool = False
    ) -> Sequence[Summary]:
        """The stored conversations, the most recent first.

        Those whose place another has taken, by an undo say, are among them with `superseded` only.
        """
        return await self.archive.survey(limit=limit, tag=tag, superseded=superseded)

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Stored messages that hold all words of a text, the best first."""
        return await self.archive.search(text, limit=limit, superseded=superseded)

    async def load(self, reference: Reference) -> bytes:
        """The bytes of a reference that a content holds."""
        return await self.archive.load(reference)

    async def remove(self, conversation: str) -> None:
        """Give a stored conversation up, by its identity, a prefix of it, or its name."""
        await self.archive.remove(await self.archive.resolve(conversation))

    async def close(self) -> None:
        """Cancel running turns and close all connections; safe to call twice.

        What the turns left to attendants is waited for, as long as these say.
        """
        self._closed = True
        async with AsyncExitStack() as stack:
            # Whatever fails or is cancelled on the way, the rest is closed too.
            stack.push_async_callback(self.archive.close)
            stack.push_async_callback(self._ensembles.close)
            stack.push_async_callback(self._providers.close)
            # While these work, models and archive are still there.
            stack.push_async_callback(self._attendance.close)
            async with asyncio.TaskGroup() as group:
                for conversation in list(self._conversations):
                    group.create_task(conversation.close())

    async def _produce_conversation(
        self,
        ledger: Ledger,
        model: Model,
        invokers: Iterable[Tool],
        ensembles: Sequence[str | Ensemble],
        controls: Controls | None,
        event_handler: EventHandler | None,
        tool_mode: ToolMode | None,
        attendants: Sequence[Attendant],
    ) -> Conversation:
        known = ledger.identity if ledger.stored else ""
        opened = await self._open_ensembles(ensembles, event_handler, known)
        defaults = ConversationDefaults(
            event_handler=self.event_handler,
            access_model=self.access_model,
            access_controls=self._providers.access_controls,
            access_limiter=self._providers.access_limiter,
            tools=self.configuration.tools,
            gatekeeper=self.gatekeeper,
            open_ensembles=lambda named: self._open_ensembles(named, event_handler),
            survey_invokers=self._ensembles.survey_invokers,
            attendance=self._attendance,
        )
        outfit = Outfit(
            model,
            defaults,
            invokers=invokers,
            ensembles=opened,
            controls=controls,
            event_handler=event_handler,
            tool_mode=tool_mode,
            attendants=attendants,
        )
        return Conversation(ledger, outfit, self._enter)

    @property
    def unfinished(self) -> int:
        """How many turns have left work to attendants, memory say, that is not done yet."""
        return self._attendance.unfinished

    @property
    def postponed(self) -> int:
        """How many turns have left work to a later session; see `postpone`."""
        return self._attendance.postponed

    def postpone(self) -> None:
        """Leave the work on turns that end from now on to a later session, where it can be left.

        What memory takes in is written down, and taken in by the next session of the same user
        that does not postpone, or by `vibe-llms memory ingest`.
        """
        self._attendance.postpone()

    async def drain(self) -> None:
        """Wait for that work, each attendant's as long as it says; what is left is told."""
        await self._attendance.drain()

    def give_up(self) -> None:
        """End that work at once; what is not done is told."""
        self._attendance.give_up()

    def access_memory(self) -> Attendant:
        """The attendant that recalls and takes in what a user's conversations say.

        A conversation has it from `begin(memory=True)`, or by `invite`.
        """
        self._require_open()
        return self._attendance.access(MEMORY.name, self._produce_memory)

    def _produce_memory(self) -> Attendant:
        host = AttendantHost(
            providers=self._providers,
            restore=self._restore,
            load=self.archive.load_all,
            tell=self._tell,
        )
        return access_attendant(MEMORY, self.configuration, host)

    async def open_ensemble(self, name: str) -> Ensemble:
        """The ensemble of a row of `[ensembles]`, opened, to be used without a conversation.

        It is closed with the session. `EnsembleFailed` says why it cannot be opened.
        """
        self._require_open()
        return await self._ensembles.open_one(name)

    async def _ask_model(
        self, address: str, canisters: Sequence[Canister], supervisor: str, controls: Controls
    ) -> Turn:
        """One turn with a model for an ensemble, of which nothing is kept."""
        conversation = await self.begin(
            address,
            supervisor=supervisor or None,
            history=canisters[:-1] or None,
            controls=controls,
            event_handler=ignore_events,
            save=False,
        )
        return await conversation.converse(canisters[-1])

    def _gather(
        self,
        ensembles: Iterable[str | Ensemble],
        attendants: Iterable[Attendant],
        *,
        memory: bool,
    ) -> tuple[Sequence[str | Ensemble], Sequence[Attendant]]:
        """Ensembles and attendants, with what stands for memory among them if it is wanted."""
        if not memory:
            return tuple(ensembles), tuple(attendants)
        if self.configuration.memory_mode == "tools":
            return (*ensembles, MEMORY.name), tuple(attendants)
        return tuple(ensembles), (self.access_memory(), *attendants)

    async def _restore(self, conversation: str) -> Sequence[Canister]:
        return (await self.archive.restore(conversation)).canisters

    def _tell(self, notice: Notice) -> None:
        """Tell something outside of any turn, by whatever thread, in that of the conversations."""
        event = NoticeEvent(notice=notice)
        if self._loop is None or threading.get_ident() == self._thread:
            self.event_handler(event)
        else:
            # Where the loop has ended there is nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.event_handler, event)

    async def _open_ensembles(
        self,
        named: Iterable[str | Ensemble],
        event_handler: EventHandler | None,
        conversation: str = "",
    ) -> Sequence[Ensemble]:
        handler = event_handler or self.event_handler

        def tell(text: str) -> None:
            handler(NoticeEvent(notice=Notice("ensemble", text), conversation=conversation))

        return await self._ensembles.open(named, tell)

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

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosed("the session is closed; open another one")


@asynccontextmanager
async def open_session(
    *,
    event_handler: EventHandler = ignore_events,
    home: str | Path | None = None,
    configuration: Configuration | Mapping[str, Any] | None = None,
    archive: Archive | None = None,
    keys: Mapping[str, str] | None = None,
    interactive: bool = False,
    import_guard: ImportGuard = unguarded,
    approver: Approver | None = None,
    elicitor: Elicitor | None = None,
) -> AsyncIterator[Session]:
    """A session, closed with the block::

        async with open_session() as session:
            conversation = await session.begin("scripted/demo")

    `home` puts configuration and archive under one folder, as `VIBE_LLMS_HOME` does.
    `configuration` is laid over the user's own, or replaces it if it is a `Configuration`. `keys`
    are keys by rows, used before any other. `interactive` tells providers that a person watches.
    `import_guard` surrounds the import of a provider's module, given the `import-seconds` of its
    row: by itself an import is not bounded, as none is in Python; the command bounds it.
    `approver` decides on calls of tools that ask before they run; without one they do not run.
    `elicitor` answers what ensembles ask a person; without one they cannot ask.
    """
    if not isinstance(configuration, Configuration):
        places = None if home is None else Places.under(Path(home))
        configuration = load_configuration(places, overrides=configuration)
    session = Session(
        configuration,
        archive or DirectoryArchive(configuration.places.data, configuration.storage),
        event_handler=event_handler,
        keys=keys,
        interactive=interactive,
        import_guard=import_guard,
        approver=approver,
        elicitor=elicitor,
    )
    try:
        yield session
    finally:
        await session.close()
