"""Memory as an attendant: it recalls before a turn, and takes in what was said after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from vibe_llms.attendants import AttendantHost, Briefing, Occasion, Work, register
from vibe_llms.configuration import Configuration
from vibe_llms.events import Notice
from vibe_llms.exceptions import ConversationNotFound, ModelNotFound, ScriptInvalid, VibeLlmsError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.ingestion import Ingestion
from vibe_llms.memory.journal import Journal, Ticket
from vibe_llms.memory.models import ModelAsker
from vibe_llms.memory.recall import Asked, recall, write_down
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings
from vibe_llms.messages.canisters import AssistantCanister, Canister, StopReason, Turn, UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model


class Taker(Protocol):
    """Takes what was said into a memory: an `Ingestion`, or in a test what keeps it."""

    async def take_in(self, canisters: Sequence[Canister], *, conversation: str) -> Report:
        """Take in what one turn added; gives a report of it."""
        ...


#: Makes what takes turns in, with the model that answered.
TakerFactory: TypeAlias = Callable[[Model], Awaitable[Taker]]
_SAID_BY_MODELS = (Role.ASSISTANT, Role.SUMMARY)
_MOST_REPORTS = 100
#: So many turns wait in memory for a model that works again.
_MOST_DEFERRED = 100
#: A machine that loads a model may be busy for a while.
_GRACE_SECONDS = 10.0


class Report(Protocol):
    """What a taker did; `failures` are what it could not do and may be done another time."""

    @property
    def failures(self) -> Sequence[str]:
        """In words, each."""
        ...

    def describe(self) -> Iterable[str]:
        """Lines for a person: what is remembered now, and what is not."""
        ...


class MemoryAttendant:
    """One user's memory in the conversations of a session."""

    def __init__(
        self,
        memory: Memory,
        settings: MemorySettings,
        *,
        journal: Path,
        produce_taker: TakerFactory,
        host: AttendantHost,
        durable: bool = True,
    ) -> None:
        self.memory = memory
        self.settings = settings
        self.user = Scope.of_user(settings.user)
        #: Of the last turns; a session may last for months.
        self.reports: deque[Report] = deque(maxlen=_MOST_REPORTS)
        self._journal = Journal(journal, durable=durable)
        self._produce_taker = produce_taker
        self._host = host
        self._inherited = False
        # What does not fit stays in the journal, for another session.
        self._deferred: deque[tuple[Path, Ticket, Sequence[Canister]]] = deque(
            maxlen=_MOST_DEFERRED
        )

    @property
    def name(self) -> str:
        """What people know it by."""
        return "memory"

    @property
    def brief_seconds(self) -> float:
        """How long a turn waits at the most: after the seconds of recall it has what words find."""
        return self.settings.recall.seconds + _GRACE_SECONDS

    @property
    def close_seconds(self) -> float:
        """How long a session that closes waits for what is to be taken in."""
        return self.settings.drain_seconds

    @property
    def resumes(self) -> bool:
        """The journal has what was given up."""
        return True

    async def brief(self, occasion: Occasion) -> Briefing:
        """What is recalled, as one document; nothing where nothing fits.

        What the person said, and the facts of it, are no text from outside. What a model said may
        be: it read what its tools returned, and a summary is of what it said.
        """
        entries = await self.find(occasion)
        if not entries:
            return Briefing()
        canister = write_down(entries, characters=self.settings.recall.characters)
        return Briefing((canister,), outside=any(one.role in _SAID_BY_MODELS for one in entries))

    async def find(self, occasion: Occasion) -> Sequence[Entry]:
        """The entries that fit to what is said."""
        return await recall(
            self.memory,
            Asked(occasion.said, occasion.conversation, occasion.history, occasion.load),
            user=self.user,
            retrieval=self.settings,
            settings=self.settings.recall,
        )

    def conclude(self, occasion: Occasion, turn: Turn) -> Work | None:
        """Take the turn in, however it ended; not that of a conversation which is not kept.

        Where the model failed it would fail now too, so that this is left to the next turn, or to
        another session.
        """
        said = choose(turn)
        if not occasion.kept or not said:
            return None
        identities = tuple(canister.identity for canister in said)
        ticket = Ticket(
            self.settings.user,
            occasion.conversation,
            identities,
            model=f"{occasion.model.provider}/{occasion.model.name}",
            entered=datetime.now(UTC),
        )
        path = self._journal.enter(ticket)
        if turn.stop_reason == StopReason.FAILED:
            self._deferred.append((path, ticket, said))
            return None
        return self._work(occasion.model, said, ticket, path)

    async def catch_up(
        self, *, known: Collection[str] = (), failed: bool = False
    ) -> tuple[int, Collection[str]]:
        """Take in what other processes of this user have left, each turn with its own model.

        Gives how many turns were taken in, and the names of all that were tried. Those that are
        `known` by their names are left, and so are those that have `failed`, unless wanted.
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
        """Keep the index; what is still to be taken in waits for another session."""
        self._journal.close()
        await self.memory.close()

    async def _work(
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
        """Merge what says the same in the user's facts, where that is due."""
        settings = self.settings.deduplication
        try:
            report = await Deduplication(self.memory, settings, self._tell).run_if_due(self.user)
        except VibeLlmsError as error:
            self._tell(f"facts were not deduplicated: {error}")
            return
        if report is not None and report.groups:
            gone = sum(len(group.given_up) for group in report.groups)
            facts = "a fact that says" if gone == 1 else f"{gone} facts that say"
            self._tell(f"memory merged {facts} what others do")

    def _tell(self, text: str) -> None:
        self._host.tell(Notice("memory", text))

    async def _take_up(self, taker: Taker) -> None:
        """Take in what other processes of this user have left undone."""
        count = 0
        for path, ticket in self._journal.take_over(self.settings.user):
            count += await self._take_up_one(taker, path, ticket)
        if count:
            turns = "a turn" if count == 1 else f"{count} turns"
            self._tell(f"memory took in what an earlier session had left: {turns}")

    async def _take_up_one(self, present: Taker | None, path: Path, ticket: Ticket) -> bool:
        """Take in a turn of another process; whether there was one, and it came to its end."""
        said: Sequence[Canister] = ()
        try:
            stored = await self._host.restore(ticket.conversation)
            said = [one for one in stored if one.identity in ticket.canisters]
            taker = await self._choose_taker(present, ticket)
        except ConversationNotFound:
            # There is nothing to take in.
            self._journal.settle(path)
            return False
        except VibeLlmsError as error:
            self._put_off(ticket, path, error)
            return False
        return await self._take_in(taker, said, ticket, path) and bool(said)

    async def _choose_taker(self, present: Taker | None, ticket: Ticket) -> Taker:
        """What takes a turn in: with the model that answered it, as far as that is known here.

        Another model may be of another provider, which was never sent this.
        """
        if not ticket.model and present is not None:
            return present
        try:
            return await self._produce_taker(await self._host.providers.access_model(ticket.model))
        except (ModelNotFound, ScriptInvalid):
            # A program has made it, and it has no row.
            if present is None:
                raise
            return present

    async def _take_in(
        self, taker: Taker, said: Sequence[Canister], ticket: Ticket, path: Path
    ) -> bool:
        """Take a turn in; whether that came to its end, or is tried another time."""
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
                self._keep_failed(ticket, path, report.failures[0])
                return False
        self._journal.settle(path)
        return True

    def _put_off(self, ticket: Ticket, path: Path, error: VibeLlmsError) -> None:
        """Leave a turn that cannot be taken in to another session; the others do not wait."""
        after = "will be tried again"
        if self._keep_failed(ticket, path, str(error)).failed:
            after = "is not tried again by itself; to try: vibe-llms memory ingest"
        self._tell(f"a turn of {ticket.conversation} was not remembered and {after}: {error}")

    def _keep_failed(self, ticket: Ticket, path: Path, failure: str) -> Ticket:
        """Keep a turn for another time; what was stored of it is known then."""
        kept = msgspec.structs.replace(
            ticket, attempts=ticket.attempts + 1, failure=" ".join(failure.split())
        )
        self._journal.enter(kept, path)
        return kept


def choose(turn: Turn) -> Sequence[Canister]:
    """What of a turn is to be taken in: nothing where nobody said anything.

    Of a reply that was interrupted or failed nothing is taken: it says what nobody has read to its
    end.
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
    """The canister with its texts in it, also those that lie in the archive."""
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
    """Where the turns are written down that are still to be taken in."""
    return configuration.places.state / "ingestion"


def produce_attendant(configuration: Configuration, host: AttendantHost) -> MemoryAttendant:
    """The memory of `[memory]`; nothing is read before it is asked."""
    settings = read_memory_settings(configuration)

    def tell(text: str) -> None:
        host.tell(Notice("memory", text))

    memory = produce_memory(configuration, settings, providers=host.providers, tell=tell)

    # Before anybody asks: it takes seconds, and what is said is not known yet.
    memory.begin_loading()

    async def produce_taker(model: Model) -> Ingestion:
        chosen = settings.ingestion.model
        asker = ModelAsker(
            await host.providers.access_model(chosen) if chosen else model,
            output_tokens=settings.ingestion.output_tokens,
            access_controls=host.providers.access_controls,
            access_limiter=host.providers.access_limiter,
        )
        return Ingestion(
            memory,
            asker,
            settings.ingestion,
            scope=Scope.of_user(settings.user),
            notify=host.tell,
        )

    return MemoryAttendant(
        memory,
        settings,
        journal=journal_folder(configuration),
        produce_taker=produce_taker,
        host=host,
        durable=configuration.storage.durability == "safe",
    )


register("memory", produce_attendant)
