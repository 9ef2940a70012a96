"""Memory as a hook: it recalls before a turn, and remembers what was said after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from vibe_llms.configuration import Configuration
from vibe_llms.events import Notice
from vibe_llms.exceptions import ConversationNotFound, ModelNotFound, ScriptInvalid, VibeLlmsError
from vibe_llms.hooks import Asker, HookContext, HookHost, HookRequest, TurnHook, Work, register
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.ingestion import Ingestion
from vibe_llms.memory.journal import Journal, Ticket
from vibe_llms.memory.recall import Asked, question_of, recall, write_down
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings
from vibe_llms.messages.canisters import AssistantCanister, Canister, StopReason, Turn, UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model
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
        journal: Path,
        produce_taker: TakerFactory,
        host: HookHost,
        durable: bool = True,
    ) -> None:
        self.memory = memory
        self.settings = settings
        # After the seconds of recall, a turn gets what keywords find.
        self.before_seconds = settings.recall.seconds + _GRACE_SECONDS
        self.close_seconds = settings.drain_seconds
        self.user = Scope.of_user(settings.user)
        #: Those of the last turns; a session may last for months.
        self.reports: deque[Report] = deque(maxlen=_MOST_REPORTS)
        self._journal = Journal(journal, durable=durable)
        self._produce_taker = produce_taker
        self._host = host
        self._inherited = False
        #: What asked the model last that answered.
        self._asker: Asker | None = None
        # The journal keeps what does not fit, for another session.
        self._deferred: deque[tuple[Path, Ticket, Sequence[Canister]]] = deque(
            maxlen=_MOST_DEFERRED
        )

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

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        """Remember the turn, however it ended, if the conversation is kept.

        If the model failed it would fail now, too; the turn waits for the next one, or for another
        session.
        """
        said = choose(turn)
        if not request.kept or not said:
            return None
        identities = tuple(canister.identity for canister in said)
        ticket = Ticket(
            self.settings.user,
            request.conversation,
            identities,
            model=f"{request.model.provider}/{request.model.name}",
            entered=datetime.now(UTC),
        )
        path = self._journal.enter(ticket)
        if turn.stop_reason == StopReason.FAILED:
            self._deferred.append((path, ticket, said))
            return None
        # It begins later, but lies within the turn that ends now.
        span = self._host.tracer.work("upsert_memory", conversation=request.conversation)
        return self._work(request.model, said, ticket, path, span)

    async def catch_up(
        self, *, known: Collection[str] = (), failed: bool = False
    ) -> tuple[int, Collection[str]]:
        """Remember what other processes of this user have left, each turn with its own model.

        Returns how many turns were remembered, and the names of all that were tried. Those whose
        names are `known` are left out, and so are failed ones, unless `failed` is set.
        """
        tried, count = set(known), 0
        while left := self._journal.take_over(self.settings.user, known=tried, failed=failed):
            for path, ticket in left:
                tried.add(path.name)
                count += await self._take_up_one(None, path, ticket)
        if count:
            await self._deduplicate()
        return count, tried

    async def close(self) -> None:
        """Keep the index; what is still to be remembered waits for another session."""
        self._journal.close()
        await self.memory.close()

    async def _work(
        self, model: Model, said: Sequence[Canister], ticket: Ticket, path: Path, span: Span
    ) -> None:
        with span:
            await self._learn(model, said, ticket, path)

    async def _learn(
        self, model: Model, said: Sequence[Canister], ticket: Ticket, path: Path
    ) -> None:
        taker = await self._produce_taker(model)
        if not self._inherited:
            self._inherited = True
            await self._take_up(taker)
        while self._deferred:
            before, other, words = self._deferred.popleft()
            await self._take_in(taker, words, other, before)
        await self._take_in(taker, said, ticket, path)
        await self._deduplicate()

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

    async def _take_up(self, taker: Taker) -> None:
        """Remember what other processes of this user have left undone."""
        count = 0
        for path, ticket in self._journal.take_over(self.settings.user):
            count += await self._take_up_one(taker, path, ticket)
        if count:
            turns = "a turn" if count == 1 else f"{count} turns"
            self._notify(f"memory now remembers what an earlier session left: {turns}")

    async def _take_up_one(self, present: Taker | None, path: Path, ticket: Ticket) -> bool:
        """Remember a turn of another process; whether there was one, and it was completed."""
        said: Sequence[Canister] = ()
        try:
            stored = await self._host.restore(ticket.conversation)
            said = [one for one in stored if one.identity in ticket.canisters]
            taker = await self._choose_taker(present, ticket)
        except ConversationNotFound:
            # There is nothing to remember.
            self._journal.settle(path)
            return False
        except VibeLlmsError as error:
            self._put_off(ticket, path, error)
            return False
        return await self._take_in(taker, said, ticket, path) and bool(said)

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
        self, taker: Taker, said: Sequence[Canister], ticket: Ticket, path: Path
    ) -> bool:
        """Remember a turn; whether that was completed, and need not be tried again."""
        if said:
            try:
                whole = [await load_texts(canister, self._host.load) for canister in said]
            except VibeLlmsError as error:
                self._put_off(ticket, path, error)
                return False
            with self.memory.grouped():
                report = await taker.take_in(whole, conversation=ticket.conversation)
            self.reports.append(report)
            if report.failures:
                self._asker = None
                self._keep_failed(ticket, path, report.failures[0])
                return False
            self._asker = taker.asker
        self._journal.settle(path)
        return True

    def _put_off(self, ticket: Ticket, path: Path, error: VibeLlmsError) -> None:
        """Leave a turn that cannot be remembered to another session."""
        after = "will be tried again"
        if self._keep_failed(ticket, path, str(error)).failed:
            after = "will not be tried again; to try: vibe-llms memory ingest"
        self._notify(f"a turn of {ticket.conversation} was not remembered and {after}: {error}")

    def _keep_failed(self, ticket: Ticket, path: Path, failure: str) -> Ticket:
        """Keep a turn for another attempt."""
        kept = msgspec.structs.replace(
            ticket, attempts=ticket.attempts + 1, failure=" ".join(failure.split())
        )
        self._journal.enter(kept, path)
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


def journal_folder(configuration: Configuration) -> Path:
    """The folder of the turns that are still to be remembered."""
    return configuration.places.state / "ingestion"


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
        journal=journal_folder(configuration),
        produce_taker=produce_taker,
        host=host,
        durable=configuration.storage.durability == "safe",
    )


register("memory", produce_hook)
