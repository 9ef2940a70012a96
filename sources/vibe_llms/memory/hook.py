"""Memory as a hook: recall before a turn, and ingest the turn afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import (
    ConversationNotFound,
    ModelNotFound,
    ScriptInvalid,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.conversations.hooks import HookContext, HookRequest, TurnHook, Work
from vibe_llms.conversations.hosts import Asker, HookHost, register_hook
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.ingestion import Ingestion
from vibe_llms.memory.recall import RecallQuery, recall, recall_query, write_down
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings
from vibe_llms.memory.stores import MEMORY_STORES
from vibe_llms.memory.tickets import Ticket, TicketJournal
from vibe_llms.messages.canisters import AssistantCanister, Canister, StopReason, Turn, UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.messages.events import Notice
from vibe_llms.messages.tracing import Span
from vibe_llms.providers.interfaces import Loader, Model


class Ingester(Protocol):
    """Ingester of turns into a memory, like `Ingestion`."""

    @property
    def asker(self) -> Asker:
        """Asker of its model."""
        ...

    async def take_in(
        self, canisters: Sequence[Canister], *, conversation: str
    ) -> IngestionOutcome:
        """Remember what one turn added, and report the result."""
        ...


#: Factory for the ingester with the model that answered.
IngesterFactory: TypeAlias = Callable[[Model], Awaitable[Ingester]]
_SAID_BY_MODELS = (Role.ASSISTANT, Role.SUMMARY)
_MOST_REPORTS = 100
#: Maximum number of turns that wait in this process until the model works again.
_MOST_DEFERRED = 100
#: Seconds between two checks for old entries, whose age is in days.
_PRUNE_SECONDS = 24 * 3600.0
#: A machine that is loading a model may be slow for a while.
_GRACE_SECONDS = 10.0


class IngestionOutcome(Protocol):
    """Result of an ingestion; `failures` may be tried again."""

    @property
    def failures(self) -> Sequence[str]:
        """One message per failure."""
        ...

    def describe(self) -> Iterable[str]:
        """Yield lines to print about remembered and refused entries."""
        ...


class MemoryHook(TurnHook):
    """Memory of one user in the conversations of a session."""

    name = "memory"
    #: The journal keeps cancelled work.
    resumes = True

    def __init__(
        self,
        memory: Memory,
        settings: MemorySettings,
        *,
        journal: TicketJournal,
        produce_ingester: IngesterFactory,
        host: HookHost,
    ) -> None:
        self.memory = memory
        self.settings = settings
        # After the seconds for recall, a turn gets the keyword results.
        self.before_seconds = settings.recall.seconds + _GRACE_SECONDS
        self.close_seconds = settings.drain_seconds
        self.user = Scope.of_user(settings.user)
        #: Reports of the most recent turns (bounded).
        self.reports: deque[IngestionOutcome] = deque(maxlen=_MOST_REPORTS)
        self._journal = journal
        #: Tickets of turns that have just ended, by the first canister of each.
        self._recorded: dict[str, str] = {}
        self._produce_ingester = produce_ingester
        self._host = host
        #: Tickets already tried here; failed ones wait for another session.
        self._tried: set[str] = set()
        #: Asker of the last successful ingestion.
        self._asker: Asker | None = None
        #: Monotonic time at which old entries were forgotten.
        self._pruned: float | None = None
        # The journal keeps the overflow for another session.
        self._deferred: deque[tuple[str, Ticket, Sequence[Canister]]] = deque(maxlen=_MOST_DEFERRED)

    async def before_turn(self, request: HookRequest) -> HookContext:
        """Return the recalled entries as one document, or an empty context.

        What the user said, and facts from it, are trusted. What a model said may come from outside,
        such as from a tool; so may summaries of it.
        """
        entries = await self.find(request)
        if not entries:
            return HookContext()
        canister = write_down(entries, characters=self.settings.recall.characters)
        return HookContext((canister,), outside=any(one.role in _SAID_BY_MODELS for one in entries))

    async def find(self, request: HookRequest) -> Sequence[Entry]:
        """Return the entries that fit the new messages."""
        text = recall_query(request.said)
        with self._host.tracer.work(
            "search_memory", conversation=request.conversation, text=text
        ) as span:
            found = await recall(
                self.memory,
                RecallQuery(request.said, request.conversation, request.history, request.load),
                user=self.user,
                retrieval=self.settings,
                settings=self.settings.recall,
            )
            span.count(len(found))
        return found

    async def record_turn(self, request: HookRequest, turn: Turn) -> None:
        """Enter the turn in the journal, if it is to be remembered."""
        if (ticket := self._produce_ticket(request, turn)) is not None:
            identity = await asyncio.to_thread(self._journal.enter, ticket)
            self._recorded[ticket.canisters[0]] = identity

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        """Return the work of remembering a turn, if its conversation is kept.

        Interrupted turns are remembered too. If the model failed, the turn is deferred until the
        next turn or another session, since the model would fail again.
        """
        said = choose(turn)
        ticket = self._produce_ticket(request, turn)
        if ticket is None:
            return None
        identity = self._recorded.pop(ticket.canisters[0], "")
        if turn.stop_reason == StopReason.FAILED:
            self._deferred.append((identity, ticket, said))
            return None
        # The work begins later, but its span belongs to the turn that ends now.
        span = self._host.tracer.work("upsert_memory", conversation=request.conversation)
        return self._work(request.model, said, ticket, identity, span)

    def _produce_ticket(self, request: HookRequest, turn: Turn) -> Ticket | None:
        """Return the ticket of a turn, or `None` if there is nothing to remember."""
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
        """Remember turns left by other processes of this user, each with its own model.

        Return how many turns were remembered, and the names of all that were tried. Turns in
        `known` are skipped, and so are failed ones, unless `failed` is set.
        """
        tried, count = set(known), 0
        take_over = partial(self._journal.take_over, self.settings.user, failed=failed)
        while left := await asyncio.to_thread(take_over, known=tried):
            for identity, ticket in left:
                tried.add(identity)
                count += await self._ingest_left(None, identity, ticket)
        if count:
            await self._deduplicate()
        await self._prune()
        return count, tried

    async def close(self) -> None:
        """Store the index; unfinished turns wait for another session."""
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
                # Noting it failed before, too; the next turn tries again.
                self._deferred.append(("", ticket, said))
                raise
            await self._learn(model, said, ticket, identity)

    async def _learn(
        self, model: Model, said: Sequence[Canister], ticket: Ticket, identity: str
    ) -> None:
        if not await asyncio.to_thread(self._journal.begin):
            # The process that remembers for this user takes it over.
            return
        ingester = await self._produce_ingester(model)
        await self._ingest_earlier(ingester, identity)
        while self._deferred:
            before, other, words = self._deferred.popleft()
            try:
                before = before or await asyncio.to_thread(self._journal.enter, other)
            except StorageError:
                self._deferred.appendleft((before, other, words))
                raise
            await self._ingest_own(ingester, words, other, before)
        await self._ingest_own(ingester, said, ticket, identity)
        await self._deduplicate()
        await self._prune()
        while not await asyncio.to_thread(self._journal.end, known=self._tried):
            await self._ingest_earlier(ingester, identity)

    async def _ingest_own(
        self, ingester: Ingester, said: Sequence[Canister], ticket: Ticket, identity: str
    ) -> None:
        """Remember a turn of this process, unless another server has already done so."""
        left = await asyncio.to_thread(self._journal.survey)
        if any(one.identity == identity for one in left):
            await self._ingest(ingester, said, ticket, identity)

    async def _deduplicate(self) -> None:
        """Merge the user's repeated facts, if due."""
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
            facts = "1 repeated fact" if gone == 1 else f"{gone} repeated facts"
            self._notify(f"memory merged {facts}")

    async def _prune(self) -> None:
        """Forget old entries, once a day in each process."""
        rule = self.settings.find_retention()
        now = time.monotonic()
        if rule is None or (self._pruned is not None and now < self._pruned + _PRUNE_SECONDS):
            return
        self._pruned = now
        try:
            gone = await self.memory.prune(rule)
        except VibeLlmsError as error:
            self._notify(f"old entries were not forgotten: {error}")
            return
        if gone:
            entries = "1 old entry" if len(gone) == 1 else f"{len(gone)} old entries"
            self._notify(f"memory forgot {entries}")

    def _notify(self, text: str) -> None:
        self._host.notify(Notice("memory", text))

    async def _ingest_earlier(self, ingester: Ingester, own: str) -> None:
        """Remember turns left by others that precede our own ticket."""
        count = 0
        known = {*self._tried, *(identity for identity, _, _ in self._deferred)}
        take_over = partial(self._journal.take_over, self.settings.user, known=known)
        for identity, ticket in await asyncio.to_thread(take_over):
            if identity == own:
                break
            self._tried.add(identity)
            count += await self._ingest_left(ingester, identity, ticket)
        if count:
            turns = "1 turn" if count == 1 else f"{count} turns"
            self._notify(f"memory remembered {turns} of an earlier session")

    async def _ingest_left(self, present: Ingester | None, identity: str, ticket: Ticket) -> bool:
        """Remember a turn of another process; return True if it existed and was completed."""
        said: Sequence[Canister] = ()
        try:
            stored = await self._host.restore(ticket.conversation)
            said = [one for one in stored if one.identity in ticket.canisters]
            ingester = await self._choose_ingester(present, ticket)
        except ConversationNotFound:
            await asyncio.to_thread(self._journal.remove, identity)
            return False
        except VibeLlmsError as error:
            await self._defer(ticket, identity, error)
            return False
        return await self._ingest(ingester, said, ticket, identity) and bool(said)

    async def _choose_ingester(self, present: Ingester | None, ticket: Ticket) -> Ingester:
        """Return the ingester with the model that answered a turn, if it is known here.

        Another model may belong to another provider, which has never received this text.
        """
        if not ticket.model and present is not None:
            return present
        try:
            return await self._produce_ingester(
                await self._host.providers.access_model(ticket.model)
            )
        except (ModelNotFound, ScriptInvalid):
            # A program made this model, and it has no row.
            if present is None:
                raise
            return present

    async def _ingest(
        self, ingester: Ingester, said: Sequence[Canister], ticket: Ticket, identity: str
    ) -> bool:
        """Remember a turn; return True if it was completed and need not be tried again."""
        if said:
            try:
                whole = [await load_texts(canister, self._host.load) for canister in said]
            except VibeLlmsError as error:
                await self._defer(ticket, identity, error)
                return False
            with self.memory.grouped():
                report = await ingester.take_in(whole, conversation=ticket.conversation)
            self.reports.append(report)
            if report.failures:
                self._asker = None
                await self._keep_failed(ticket, identity, report.failures[0])
                return False
            self._asker = ingester.asker
        await asyncio.to_thread(self._journal.remove, identity)
        return True

    async def _defer(self, ticket: Ticket, identity: str, error: VibeLlmsError) -> None:
        """Leave a turn that cannot be remembered now to another session."""
        after = "it is retried in a later session"
        if (await self._keep_failed(ticket, identity, str(error))).failed:
            after = "to retry: vibe-llms memory ingest"
        self._notify(f"a turn of {ticket.conversation} was not remembered: {error}; {after}")

    async def _keep_failed(self, ticket: Ticket, identity: str, failure: str) -> Ticket:
        self._tried.add(identity)
        kept = msgspec.structs.replace(
            ticket, attempts=ticket.attempts + 1, failure=" ".join(failure.split())
        )
        await asyncio.to_thread(self._journal.enter, kept, identity)
        return kept


def choose(turn: Turn) -> Sequence[Canister]:
    """Return the canisters of a turn to remember; none if nobody said anything.

    An interrupted or failed reply is left out, since it is incomplete.
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
    """Return the canister with all its texts, loading them from the archive."""
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
    """Produce the hook of `[memory]`; nothing is read before it is used."""
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

    stores = MEMORY_STORES.produce(host.backend)

    # Loading takes seconds, and the first turn is still to come.
    memory.begin_loading()

    async def produce_ingester(model: Model) -> Ingestion:
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
        produce_ingester=produce_ingester,
        host=host,
    )


register_hook("memory", produce_hook)
