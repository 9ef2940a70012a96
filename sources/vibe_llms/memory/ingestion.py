"""Ingestion of turns into memory.

The turn is stored first, with a mark that its facts are still missing. The mark is removed once
they are stored. So an interruption loses nothing: `resume` continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.conversations.hosts import Asker
from vibe_llms.embedding.words import digest_of
from vibe_llms.memory.asking import Unanswered, attempt
from vibe_llms.memory.changes import HeldScope, evict
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.extraction import ExtractedFact, extract
from vibe_llms.memory.gate import LONGEST_FACT, Recalled, sift_turn, sift_words
from vibe_llms.memory.metadata import MARK, is_pending, produce_mark, read_mark, remove_mark
from vibe_llms.memory.reconciliation import (
    SUPERVISOR,
    Applied,
    Decisions,
    ReconciliationPlan,
    add_all,
    apply,
    plan,
    write_question,
)
from vibe_llms.memory.reports import (
    IngestionReport,
    IngestionSettings,
    Refusal,
    Update,
    Why,
)
from vibe_llms.memory.retrieval import RetrievalSettings
from vibe_llms.memory.summaries import (
    SummaryTask,
    WrittenSummary,
    check_summary,
    choose_plan,
    keep_summary,
    produce_summary,
    produce_task,
)
from vibe_llms.memory.transcript import identity_of, read_turn, text_in
from vibe_llms.messages.canisters import AssistantCanister, Canister, Usage, UserCanister
from vibe_llms.messages.events import Notice
from vibe_llms.messages.identities import produce_identity

__all__ = ["Ingestion", "IngestionSettings"]

#: Maximum number of unfinished turns that are completed after a turn.
_MOST_LEFT = 3
#: Maximum number of summaries made after a turn; a longer backlog waits for the next.
_MOST_SUMMARIES = 6


class _Draft(Struct):
    """Accumulator for the values of a report."""

    conversation: str
    turns: list[Entry] = []
    added: list[Entry] = []
    updated: list[Update] = []
    removed: list[Update] = []
    known: list[Entry] = []
    kept: list[Entry] = []
    refused: list[Refusal] = []
    summaries: list[Entry] = []
    evicted: list[Entry] = []
    failures: list[str] = []
    asked: bool = False

    def take(self, applied: Applied) -> None:
        for name in applied.__struct_fields__:
            getattr(self, name).extend(getattr(applied, name))


class Ingestion:
    """Ingester of turns; safe for several conversations, one turn at a time.

    Facts go into the `scope` of the user. Turns and summaries go into that of their conversation:
    they contain an assistant's words, which must not pass for the user's in other conversations.
    """

    def __init__(
        self,
        memory: Memory,
        asker: Asker,
        settings: IngestionSettings = IngestionSettings(),
        *,
        scope: Scope,
        notify: Callable[[Notice], object] = lambda _: None,
    ) -> None:
        self._memory = memory
        self.asker = asker
        self._settings = settings
        self._scope = scope
        self._notify = notify

    async def take_in(self, canisters: Sequence[Canister], *, conversation: str) -> IngestionReport:
        """Remember what one turn added to a conversation: its prompt and its replies.

        A failing model or disk does not raise: the report and a notice describe the failure. A
        stored canister is not stored again, and its facts are extracted again only after an
        interruption.
        """
        draft, usage = _Draft(conversation), self.asker.usage
        place = Scope.of_conversation(conversation)
        try:
            spoken = read_turn(canisters)
            heard = [await self._hear(draft, place, said, spoken.recalled) for said in spoken.user]
            for answered in spoken.assistant:
                await self._keep(draft, place, answered, spoken.recalled)
            for turn, own in heard:
                if turn is None or not is_pending(turn):
                    continue
                if not await self._learn(draft, turn, own, spoken.recalled):
                    # The model would not answer about the next one, either.
                    break
            if draft.asked and not draft.failures:
                await self._catch_up(draft, place, most=_MOST_LEFT)
            await self._finish(draft, place)
        except VibeLlmsError as error:
            draft.failures.append(f"the turn was not remembered completely: {error}")
        return self._report(draft, usage)

    async def resume(self, *, conversation: str) -> IngestionReport:
        """Extract the facts of turns that were interrupted, or for which no model answered.

        Each later turn does so for some of them, once a model has answered.
        """
        draft, usage = _Draft(conversation), self.asker.usage
        place = Scope.of_conversation(conversation)
        try:
            await self._catch_up(draft, place)
            if draft.added or draft.updated:
                await self._finish(draft, place)
        except VibeLlmsError as error:
            draft.failures.append(f"earlier turns were not remembered completely: {error}")
        return self._report(draft, usage)

    async def _catch_up(self, draft: _Draft, place: Scope, most: int | None = None) -> None:
        left = [known for known in await self._memory.outline(place) if known.metadata.pending]
        for turn in await self._memory.read(place, left[:most]):
            digests = None if turn is None else read_mark(turn)
            if turn is None or digests is None:
                continue
            # Texts recalled then are unknown now, except for the digests of refused sentences.
            recalled = Recalled(digests=digests)
            said = sift_words(turn.content, recalled).text
            if not await self._learn(draft, turn, said, recalled):
                return

    def _report(self, draft: _Draft, before: Usage) -> IngestionReport:
        members = {name: getattr(draft, name) for name in draft.__struct_fields__}
        for failure in dict.fromkeys(draft.failures):
            self._notify(Notice("memory", failure))
        spent = (
            getattr(self.asker.usage, name) - getattr(before, name)
            for name in Usage.__struct_fields__
        )
        lists = {name: tuple(one) for name, one in members.items() if isinstance(one, list)}
        return IngestionReport(conversation=draft.conversation, usage=Usage(*spent), **lists)

    async def _hear(
        self, draft: _Draft, place: Scope, said: UserCanister, recalled: Recalled
    ) -> tuple[Entry | None, str]:
        """Keep what the user said; return the turn, and the words that may contain facts."""
        own = sift_words(text_in(said), recalled)
        looked = bool(own.text and self._settings.facts)
        again = [one.text for one in own.refused if one.why == Why.RECALLED]
        mark = produce_mark(again) if looked else ""
        turn = await self._keep(draft, place, said, recalled, mark=mark)
        if turn is not None:
            draft.refused += own.refused
        return turn, own.text

    async def _keep(
        self,
        draft: _Draft,
        place: Scope,
        canister: UserCanister | AssistantCanister,
        recalled: Recalled,
        *,
        mark: str = "",
    ) -> Entry | None:
        """Keep a turn as it was said; return `None` if it is refused, or was deleted."""
        sifted = sift_turn(text_in(canister), recalled)
        draft.refused += sifted.refused
        if not sifted.text:
            return None
        role = Role.USER if isinstance(canister, UserCanister) else Role.ASSISTANT
        entry = Entry(
            content=sifted.text,
            identity=identity_of(canister, draft.conversation, role),
            role=role,
            scope=place,
            created=canister.created,
            speaker=self._scope.name if role == Role.USER else "assistant",
            conversation=draft.conversation,
            turn=canister.identity,
            further={MARK: mark} if mark else {},
        )

        def keep(held: HeldScope) -> tuple[Entry | None, bool]:
            if held.holds(entry):
                return held.find(entry.identity), False
            return (None, False) if held.is_deleted(entry) else (held.add(entry), True)

        turn, new = await self._memory.change(place, keep)
        if turn is not None and new:
            draft.turns.append(turn)
        return turn

    async def _learn(self, draft: _Draft, turn: Entry, said: str, recalled: Recalled) -> bool:
        """Extract and store facts from what the user said; return True if that was completed."""
        settings = self._settings
        draft.asked = True
        found = await extract(
            self.asker,
            said,
            most=settings.facts,
            seconds=settings.timeout_seconds,
            recalled=recalled,
            when=turn.created,
        )
        draft.refused += found.refused
        if found.failure is not None:
            draft.failures.append(f"no facts were extracted: {found.failure.why}")
            if not found.failure.final:
                return False
        facts: dict[str, Entry] = {}
        for one in found.facts:
            facts.setdefault(digest_of(one.statement), self._produce_fact(one, turn))
        if facts:
            await self._reconcile(draft, turn, list(facts.values()))
        await self._memory.change(turn.scope, lambda held: _unmark(held, turn))
        return True

    def _produce_fact(self, finding: ExtractedFact, turn: Entry) -> Entry:
        return Entry(
            content=finding.statement,
            identity=produce_identity(),
            scope=self._scope,
            created=turn.created,
            importance=finding.importance,
            category=finding.category,
            topics=finding.topics,
            speaker=self._scope.name,
            conversation=turn.conversation,
            turn=turn.turn,
        )

    async def _reconcile(self, draft: _Draft, turn: Entry, facts: Sequence[Entry]) -> None:
        repeats = await self._memory.change(
            self._scope, lambda held: [held.find_repeat(fact) for fact in facts]
        )
        new: list[Entry] = []
        for fact, repeat in zip(facts, repeats, strict=True):
            # A repeat from this turn was stored before an interruption, and may lack effects.
            if repeat is None or repeat.turn == turn.turn:
                new.append(fact)
            else:
                draft.known.append(repeat)
        wanted = await self._decide(draft, new)

        def carry_out(held: HeldScope) -> Applied | None:
            # A turn forgotten while the model worked must not come back as a fact.
            return None if held.has_forgotten(turn) else apply(held, wanted)

        applied = await self._memory.change(self._scope, carry_out)
        if applied is None:
            draft.refused += (Refusal(fact.content, Why.FORGOTTEN) for fact in new)
        else:
            draft.take(applied)

    async def _decide(self, draft: _Draft, facts: Sequence[Entry]) -> ReconciliationPlan:
        """Plan what to do with new facts; if there are similar ones, a model decides."""
        notes: dict[str, Entry] = {}
        asked: list[Entry] = []
        for fact in facts:
            near = await self._survey_neighbours(fact)
            notes.update((entry.identity, entry) for entry in near)
            if near:
                asked.append(fact)
        alone = add_all(fact for fact in facts if fact not in asked)
        if not asked:
            return alone
        shown = sorted(notes.values(), key=lambda entry: (entry.created, entry.identity))
        answer = await attempt(
            self.asker,
            SUPERVISOR,
            write_question(shown, asked),
            Decisions,
            seconds=self._settings.timeout_seconds,
        )
        if isinstance(answer, Unanswered):
            decided, failure = add_all(asked), answer.why
        else:
            decided, failure = plan(answer.decisions, shown, asked)
        if failure:
            draft.failures.append(f"new facts were added without updating stored ones: {failure}")
        return ReconciliationPlan((*decided.steps, *alone.steps), decided.known)

    async def _survey_neighbours(self, fact: Entry) -> Sequence[Entry]:
        wanted = self._settings.neighbours
        if not wanted:
            return ()
        # No minimum: a contradiction may share almost no word with a fact.
        settings = RetrievalSettings(limit=wanted + 1, least_relevance=0.0, least_likeness=0.0)
        found = await self._memory.search(
            fact.content, scopes=[self._scope], roles=[Role.FACT], settings=settings
        )
        digest = digest_of(fact.content)
        near = [one.entry for one in found if digest_of(one.entry.content) != digest]
        # A model decides only about notes that it sees in full.
        return [entry for entry in near if len(entry.content) <= LONGEST_FACT][:wanted]

    async def _finish(self, draft: _Draft, place: Scope) -> None:
        # A model that has just failed is not asked again.
        if self._settings.summaries and not draft.failures:
            await self._summarize(draft, place)
        most = self._settings.max_entries
        for scope, touched in (
            (self._scope, draft.added or draft.updated),
            (place, draft.turns),
        ):
            if touched:
                draft.evicted += await self._memory.change(scope, lambda held: evict(held, most))

    async def _summarize(self, draft: _Draft, place: Scope) -> None:
        for _ in range(_MOST_SUMMARIES):
            if (task := await self._choose_task(place)) is None:
                return
            text, why = await self._sum_up(task)
            if why:
                draft.failures.append(f"no summary was written: {why}")
                return
            entry = produce_summary(task, text, place, draft.conversation)
            keep = partial(keep_summary, task=task, entry=entry)
            if not await self._memory.change(place, keep):
                return
            draft.summaries.append(entry)

    async def _choose_task(self, place: Scope) -> SummaryTask | None:
        """Return the next summary to make, with exactly the entries that it covers."""
        known = await self._memory.outline(place)
        while (plan := choose_plan(known)) is not None:
            entries = await self._memory.read(place, plan.members)
            there = [entry for entry in entries if entry is not None]
            if len(there) == len(entries):
                return produce_task(plan, there)
            gone = {
                one.place for one, entry in zip(plan.members, entries, strict=True) if entry is None
            }
            known = [one for one in known if one.place not in gone]
        return None

    async def _sum_up(self, task: SummaryTask) -> tuple[str, str]:
        """Return the text of a summary, and the reason to reject it, or an empty reason."""
        answer = await attempt(
            self.asker,
            task.supervisor,
            task.text,
            WrittenSummary,
            seconds=self._settings.timeout_seconds,
        )
        if isinstance(answer, Unanswered):
            return "", answer.why
        return answer.summary, check_summary(task, answer.summary)


def _unmark(held: HeldScope, turn: Entry) -> None:
    """Remove the mark from a turn whose facts are stored."""
    entry = held.find(turn.identity)
    if entry is not None and MARK in entry.further:
        held.rewrite(remove_mark(entry))
