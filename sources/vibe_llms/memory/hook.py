"""Memory as a hook: it recalls before a turn, and remembers what was said after it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from vibe_llms.configuration import Configuration
from vibe_llms.events import Notice
from vibe_llms.exceptions import (
    ConversationNotFound,
    ModelNotFound,
    ScriptInvalid,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.hooks import Asker, HookContext, HookHost, HookRequest, TurnHook, Work, register
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.ingestion import Ingestion
from vibe_llms.memory.interfaces import MemoryStores
from vibe_llms.memory.recall import Asked, question_of, recall, write_down
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings
from vibe_llms.memory.tickets import Ticket, TicketJournal
from vibe_llms.messages.canisters import AssistantCanister, Canister, StopReason, Turn, UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model
from vibe_llms.storage.backends import produce_part
from vibe_llms.tracing import Span


class Taker(Protocol):
    """Takes what was said into a memory, as `Ingestion` does; `asker` asks its model."""

    @property
    def asker(self) -> Asker:
        """What asks its model."""
        ...

    async def take_in(self, canisters: Sequence[Canister], *, conversation: str) -> Report:
        """Remember what one turn added, and report what was done."""
        ...


#: Makes a taker for the model that answered.
TakerFactory: TypeAlias = Callable[[Model], Awaitable[Taker]]
_SAID_BY_MODELS = (Role.ASSISTANT, Role.SUMMARY)
_MOST_REPORTS = 100
#: The number of turns that wait in this process for a model that works again.
_MOST_DEFERRED = 100
#: A machine that is loading a model may be slow for a while.
_GRACE_SECONDS = 10.0


class Report(Protocol):
    """What a taker did; `failures` may be tried again."""

    @property
    def failures(self) -> Sequence[str]:
        """A message for each."""
        ...

    def describe(self) -> Iterable[str]:
        """Lines to print: what is remembered now, and what is not."""
        ...


class MemoryHook(TurnHook):
    """One user's memory in the conversations of a session."""

    name = "memory"
    #: The journal keeps what was cancelled.
    resumes = True

    def __init__(
        self,
        memory: Memory,
        settings: MemorySettings,
        *,
        journal: TicketJournal,
        produce_taker: TakerFactory,
        host: HookHost,
    ) -> None:
        self.memory = memory
        self.settings = settings
        # After the seconds of recall, a turn gets what keywords find.
        self.before_seconds = settings.recall.seconds + _GRACE_SECONDS
        self.close_seconds = settings.drain_seconds
        self.user = Scope.of_user(settings.user)
        #: Those of the last turns; a session may last for months.
        self.reports: deque[Report] = deque(maxlen=_MOST_REPORTS)
        self._journal = journal
        #: The tickets of turns that have just ended, by the first canister of each.
        self._noted: dict[str, str] = {}
        self._produce_taker = produce_taker
        self._host = host
        #: Tickets that were tried here; what failed waits for another session.
        self._tried: set[str] = set()
        #: What asked the model last that answered.
        self._asker: Asker | None = None
        # The journal keeps what does not fit, for another session.
        self._deferred: deque[tuple[str, Ticket, Sequence[Canister]]] = deque(maxlen=_MOST_DEFERRED)

    async def before_turn(self, request: HookRequest) -> HookContext:
        """What is recalled, as one document; nothing if nothing fits.

        What the user said, and facts from it, are trusted. What a model said may come from outside,
        such as from a tool; so may summaries of it.
        """
        entries = await self.find(request)
        if not entries:
            return HookContext()
        canister = write_down(entries, characters=self.settings.recall.characters)
        return HookContext((canister,), outside=any(one.role in _SAID_BY_MODELS for one in entries))

    async def find(self, request: HookRequest) -> Sequence[Entry]:
        """The entries that fit what is said."""
        text = question_of(request.said)
        with self._host.tracer.work(
            "search_memory", conversation=request.conversation, text=text
        ) as span:
            found = await recall(
                self.memory,
                Asked(request.said, request.conversation, request.history, request.load),
                user=self.user,
                retrieval=self.settings,
                settings=self.settings.recall,
            )
            span.count(len(found))
        return found

    async def note_turn(self, request: HookRequest, turn: Turn) -> None:
        """Enter the turn in the journal, if it is to be remembered."""
        if (ticket := self._produce_ticket(request, turn)) is not None:
            identity = await asyncio.to_thread(self._journal.enter, ticket)
            self._noted[ticket.canisters[0]] = identity

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        """Remember the turn, however it ended, if the conversation is kept.

        If the model failed it would fail now, too; the turn waits for the next one, or for another
        session.
        """
        said = choose(turn)
        ticket = self._produce_ticket(request, turn)
        if ticket is None:
            return None
        identity = self._noted.pop(ticket.canisters[0], "")
        if turn.stop_reason == StopReason.FAILED:
            self._deferred.append((identity, ticket, said))
            return None
        # It begins later, but lies within the turn that ends now.
        span = self._host.tracer.work("upsert_memory", conversation=request.conversation)
        return self._work(request.model, said, ticket, identity, span)

    def _produce_ticket(self, request: HookRequest, turn: Turn) -> Ticket | None:
        """What is to be remembered of a turn; `None` for nothing."""
        said = choose(turn)
        if not request.kept or not said:
            return None
        return Ticket(
            self.settings.user,
            request.conversation,
            tuple(canister.identity for canister in said),
            model=f"{request.model.provider}/{request.model.name}",
            entered=datetime.now(UTC),
        )

    async def catch_up(
        self, *, known: Collection[str] = (), failed: bool = False
    ) -> tuple[int, Collection[str]]:
        """Remember what other processes of this user have left, each turn with its own model.

        Returns how many turns were remembered, and the names of all that were tried. Those whose
        names are `known` are left out, and so are failed ones, unless `failed` is set.
        """
        tried, count = set(known), 0
        take_over = partial(self._journal.take_over, self.settings.user, failed=failed)
        while left := await asyncio.to_thread(take_over, known=tried):
            for identity, ticket in left:
                tried.add(identity)
                count += await self._take_up_one(None, identity, ticket)
        if count:
            await self._deduplicate()
        return count, tried

    async def close(self) -> None:
        """Keep the index; what is still to be remembered waits for another session."""
        try:
            await asyncio.to_thread(self._journal.close)
        finally:
            await self.memory.close()

    async def _work(
        self, model: Model, said: Sequence[Canister], ticket: Ticket, identity: str, span: Span
    ) -> None:
        with span:
            try:
                identity = identity or await asyncio.to_thread(self._journal.enter, ticket)
            except StorageError:
                # It could not be noted before either; the next turn tries again.
                self._deferred.append(("", ticket, said))
                raise
            await self._learn(model, said, ticket, identity)

    async def _learn(
        self, model: Model, said: Sequence[Canister], ticket: Ticket, identity: str
    ) -> None:
        if not await asyncio.to_thread(self._journal.begin):
            # The process that remembers for this user takes it over.
            return
        taker = await self._produce_taker(model)
        await self._take_up(taker, identity)
        while self._deferred:
            before, other, words = self._deferred.popleft()
            try:
                before = before or await asyncio.to_thread(self._journal.enter, other)
            except StorageError:
                self._deferred.appendleft((before, other, words))
                raise
            await self._take_in_own(taker, words, other, before)
        await self._take_in_own(taker, said, ticket, identity)
        await self._deduplicate()
        while not await asyncio.to_thread(self._journal.end, known=self._tried):
            await self._take_up(taker, identity)

    async def _take_in_own(
        self, taker: Taker, said: Sequence[Canister], ticket: Ticket, identity: str
    ) -> None:
        """Remember a turn of this process, unless another server has done so before it began."""
        left = await asyncio.to_thread(self._journal.survey)
        if any(one.identity == identity for one in left):
            await self._take_in(taker, said, ticket, identity)

    async def _deduplicate(self) -> None:
        """Merge the user's repeated facts, if that is due."""
        settings = self.settings.deduplication
        try:
            report = await Deduplication(
                self.memory,
                settings,
                self._notify,
                asker=self._asker,
                seconds=self.settings.ingestion.timeout_seconds,
            ).run_if_due(self.user)
        except VibeLlmsError as error:
            self._notify(f"facts were not deduplicated: {error}")
            return
        if report is not None and report.groups:
            gone = sum(len(group.deleted) for group in report.groups)
            facts = "a fact that says" if gone == 1 else f"{gone} facts that say"
            self._notify(f"memory merged {facts} the same as others")

    def _notify(self, text: str) -> None:
        self._host.notify(Notice("memory", text))

    async def _take_up(self, taker: Taker, own: str) -> None:
        """Remember what others have left undone, as far as it came before an own ticket."""
        count = 0
        known = {*self._tried, *(identity for identity, _, _ in self._deferred)}
        take_over = partial(self._journal.take_over, self.settings.user, known=known)
        for identity, ticket in await asyncio.to_thread(take_over):
            if identity == own:
                break
            self._tried.add(identity)
            count += await self._take_up_one(taker, identity, ticket)
        if count:
            turns = "a turn" if count == 1 else f"{count} turns"
            self._notify(f"memory now remembers what an earlier session left: {turns}")

    async def _take_up_one(self, present: Taker | None, identity: str, ticket: Ticket) -> bool:
        """Remember a turn of another process; whether there was one, and it was completed."""
        said: Sequence[Canister] = ()
        try:
            stored = await self._host.restore(ticket.conversation)
            said = [one for one in stored if one.identity in ticket.canisters]
            taker = await self._choose_taker(present, ticket)
        except ConversationNotFound:
            # There is nothing to remember.
            await asyncio.to_thread(self._journal.settle, identity)
            return False
        except VibeLlmsError as error:
            await self._put_off(ticket, identity, error)
            return False
        return await self._take_in(taker, said, ticket, identity) and bool(said)

    async def _choose_taker(self, present: Taker | None, ticket: Ticket) -> Taker:
        """The taker with the model that answered a turn, if it is known here.

        Another model may belong to another provider, which has never been sent this.
        """
        if not ticket.model and present is not None:
            return present
        try:
            return await self._produce_taker(await self._host.providers.access_model(ticket.model))
        except (ModelNotFound, ScriptInvalid):
            # A program made this model, and it has no row.
            if present is None:
                raise
            return present

    async def _take_in(
        self, taker: Taker, said: Sequence[Canister], ticket: Ticket, identity: str
    ) -> bool:
        """Remember a turn; whether that was completed, and need not be tried again."""
        if said:
            try:
                whole = [await load_texts(canister, self._host.load) for canister in said]
            except VibeLlmsError as error:
                await self._put_off(ticket, identity, error)
                return False
            with self.memory.grouped():
                report = await taker.take_in(whole, conversation=ticket.conversation)
            self.reports.append(report)
            if report.failures:
                self._asker = None
                await self._keep_failed(ticket, identity, report.failures[0])
                return False
            self._asker = taker.asker
        await asyncio.to_thread(self._journal.settle, identity)
        return True

    async def _put_off(self, ticket: Ticket, identity: str, error: VibeLlmsError) -> None:
        """Leave a turn that cannot be remembered to another session."""
        after = "will be tried again"
        if (await self._keep_failed(ticket, identity, str(error))).failed:
            after = "will not be tried again; to try: vibe-llms memory ingest"
        self._notify(f"a turn of {ticket.conversation} was not remembered and {after}: {error}")

    async def _keep_failed(self, ticket: Ticket, identity: str, failure: str) -> Ticket:
        """Keep a turn for another attempt."""
        self._tried.add(identity)
        kept = msgspec.structs.replace(
            ticket, attempts=ticket.attempts + 1, failure=" ".join(failure.split())
        )
        await asyncio.to_thread(self._journal.enter, kept, identity)
        return kept


def choose(turn: Turn) -> Sequence[Canister]:
    """What to remember of a turn; nothing if neither the user nor the assistant said anything.

    A reply that was interrupted or failed is left out, since it is incomplete.
    """
    chosen = [
        canister
        for canister in turn.canisters
        if not (
            isinstance(canister, AssistantCanister)
            and canister.ending is not None
            and canister.ending.interrupted
        )
    ]
    speaks = any(isinstance(one, UserCanister | AssistantCanister) for one in chosen)
    return chosen if speaks else ()


async def load_texts(canister: Canister, load: Loader) -> Canister:
    """The canister with all its texts, those in the archive included."""
    references = [
        content.data
        for content in canister.contents
        if isinstance(content, TextualContent) and isinstance(content.data, Reference)
    ]
    if not references:
        return canister
    loaded = await load(references)
    contents = [
        msgspec.structs.replace(content, data=loaded[content.data.hash].decode("utf-8", "replace"))
        if isinstance(content, TextualContent) and isinstance(content.data, Reference)
        else content
        for content in canister.contents
    ]
    return msgspec.structs.replace(canister, contents=tuple(contents))


def produce_hook(configuration: Configuration, host: HookHost) -> MemoryHook:
    """The memory of `[memory]`; nothing is read before it is used."""
    settings = read_memory_settings(configuration)

    def notify(text: str) -> None:
        host.notify(Notice("memory", text))

    memory = produce_memory(
        configuration,
        settings,
        backend=host.backend,
        user=host.user,
        providers=host.providers,
        notify=notify,
    )

    stores: MemoryStores = produce_part(host.backend, "memory")

    # This takes seconds, and the first turn is still to come.
    memory.begin_loading()

    async def produce_taker(model: Model) -> Ingestion:
        chosen = settings.ingestion.model
        asker = host.produce_asker(
            await host.providers.access_model(chosen) if chosen else model,
            settings.ingestion.output_tokens,
        )
        return Ingestion(
            memory,
            asker,
            settings.ingestion,
            scope=Scope.of_user(settings.user),
            notify=host.notify,
        )

    return MemoryHook(
        memory,
        settings,
        journal=stores.open_journal(host.user, configuration),
        produce_taker=produce_taker,
        host=host,
    )


register("memory", produce_hook)
