"""Stores an exported conversation: the branch that its source shows, and the others as forks.

An identity derives from the source's, so a conversation that was imported before is found. If its
branch has grown, the new lines are appended. If it was continued here, what is new at the source
becomes a fork.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.importing.drafts import Drafter
from vibe_llms.importing.messages import ExportedConversation
from vibe_llms.importing.reports import ImportedConversation, ImportStatus
from vibe_llms.importing.trees import MessageTree, count
from vibe_llms.importing.writing import ImportWriter
from vibe_llms.messages.canisters import AssistantCanister, Canister, InvocationCanister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister
from vibe_llms.messages.hidden import one_line
from vibe_llms.storage.conversations import derive_conversation_identity
from vibe_llms.storage.deposits import Deposit, separate
from vibe_llms.storage.details import encode_details
from vibe_llms.storage.interfaces import Details, Origin
from vibe_llms.storage.lines import encode_line
from vibe_llms.storage.transfer import (
    NewConversation,
    StoredConversation,
    TransferableArchive,
)

#: Forks of one conversation; a tree with more branches loses the later ones, and says so.
MOST_FORKS = 100
LONGEST_TITLE = 500
_EPOCH = datetime.fromtimestamp(0, UTC)
_IMPORTED_FROM = "imported-from"


class Branch(Struct, frozen=True):
    """A branch to be stored: its identity, and its first message of its own.

    It parts from the conversation `parent` after the message `at`. All are empty for the branch
    that the source shows, except its identity.
    """

    identity: str
    parent: str = ""
    at: str = ""
    beginning: str = ""


class DraftLine(Struct, frozen=True):
    """A line of a conversation, with the contents that it needs."""

    canister: Canister
    data: bytes
    deposits: Sequence[Deposit]


class PlannedBranch(Struct, frozen=True):
    """The lines of a branch, those of them that are new, and the message with which it ends."""

    end: str
    lines: Sequence[DraftLine]
    new: Sequence[DraftLine]
    changed: int = 0


class ImportTarget(Struct, frozen=True):
    """Where an import stores, and how: the archive, its conversations so far, and its settings.

    `source` and `module` name the importer. Nothing is stored in a dry run.
    """

    archive: TransferableArchive
    writer: ImportWriter
    known: set[str]
    settings: StorageSettings
    source: str
    module: str
    tags: Collection[str] = ()
    dry_run: bool = False


class ConversationStorer:
    """Storer of one conversation."""

    def __init__(self, conversation: ExportedConversation, target: ImportTarget) -> None:
        self._conversation = conversation
        self._target = target
        self._tree = MessageTree(conversation)
        self._drafter = Drafter(
            conversation, self._tree, source=target.source, module=target.module
        )
        self._lines: dict[str, Sequence[DraftLine]] = {}
        self._kept: set[str] = set()
        self._main = self._identify()
        self._ends: list[str] = []
        self._added = 0
        self._changed = 0
        self._was_known = self._main in target.known

    async def store(self) -> ImportedConversation:
        """Store all branches; return the outcome.

        Raises `ConversationMoved` if the conversation changes here at the same time.
        """
        if not self._tree.messages:
            return self._report("empty", ("it has no messages",))
        waiting = [Branch(self._main)]
        forks: list[str] = []
        dropped = 0
        while waiting:
            branch = waiting.pop(0)
            if branch.parent:
                if len(forks) == MOST_FORKS:
                    dropped += 1
                    continue
                forks.append(branch.identity)
            planned = await self._store_branch(branch)
            self._ends.append(planned.end)
            waiting += self._survey_forks(branch, planned.end)
        return self._conclude(tuple(forks), dropped)

    async def _store_branch(self, branch: Branch) -> PlannedBranch:
        target = self._target
        stored = None
        if branch.identity in target.known:
            if target.writer.has(branch.identity):
                await target.writer.flush()
            stored = await target.archive.export_conversation(branch.identity)
        planned = await asyncio.to_thread(self._plan, branch, stored)
        self._changed += planned.changed
        self._added += len(planned.new)
        if planned.new and not target.dry_run:
            updated = self._date(planned.end)
            new = b"".join(line.data for line in planned.new)
            if stored is None:
                lines = b"".join(line.data for line in planned.lines)
                whole = StoredConversation(self._describe(branch), lines, updated)
                deposits = await asyncio.to_thread(self._collect, planned.lines)
                await target.writer.add(NewConversation(branch.identity, whole, deposits))
            else:
                for deposit in await asyncio.to_thread(self._collect, planned.new):
                    await target.archive.put(deposit.data, deposit.mimetype)
                whole = StoredConversation(stored.metadata, stored.lines + new, updated)
                await target.archive.import_conversation(branch.identity, whole)
            target.known.add(branch.identity)
        return planned

    def _collect(self, lines: Sequence[DraftLine]) -> Sequence[Deposit]:
        """Return the contents that lines need, each once."""
        found: list[Deposit] = []
        for line in lines:
            found += [one for one in line.deposits if one.reference.hash not in self._kept]
            self._kept.update(one.reference.hash for one in line.deposits)
            for content in line.canister.contents:
                digest = getattr(getattr(content, "data", None), "hash", "")
                media = self._drafter.media.get(digest)
                if media is not None and digest not in self._kept:
                    self._kept.add(digest)
                    found.append(Deposit.from_bytes(media.media.load(), media.content.mimetype))
        return found

    def _plan(self, branch: Branch, stored: StoredConversation | None) -> PlannedBranch:
        """Return the lines of a branch, given what is stored of it."""
        if stored is None:
            end = self._tree.find_end(branch.beginning)
            lines = self._draw_path(end)
            # A fork shares the lines of its parent, which are not counted again.
            shared = len(self._draw_path(branch.at))
            return PlannedBranch(end, lines, lines[shared:])
        last, continued, changed = self._compare(branch, stored)
        end = last if continued else self._tree.find_end(last or branch.beginning)
        lines = self._draw_path(end)
        place = len(self._draw_path(last)) if continued else self._count_stored(lines, stored)
        return PlannedBranch(end, lines, () if continued else lines[place:], changed)

    def _compare(self, branch: Branch, stored: StoredConversation) -> tuple[str, bool, int]:
        """Return the last message that is stored, if others follow it here, and the changed ones.

        The last message is "" if none of the branch is stored.
        """
        found: dict[str, tuple[str, DraftLine]] = {}
        for message in (*self._tree.path(branch.at), *self._tree.descend(branch.beginning)):
            for line in self._draw(message):
                found[line.canister.identity] = (message, line)
        last, continued, changed = "", False, 0
        for data in stored.lines.splitlines(keepends=True):
            canister = _decode(data)
            place = None if canister is None else found.get(canister.identity)
            continued = place is None
            if place is not None:
                last, line = place
                changed += data != line.data and not _is_same(canister, line)
        return last, continued, changed

    def _count_stored(self, lines: Sequence[DraftLine], stored: StoredConversation) -> int:
        """Return the number of lines up to the last one that is stored."""
        held = {
            canister.identity
            for data in stored.lines.splitlines()
            if (canister := _decode(data)) is not None
        }
        places = [place for place, line in enumerate(lines, 1) if line.canister.identity in held]
        return places[-1] if places else 0

    def _survey_forks(self, branch: Branch, end: str) -> Sequence[Branch]:
        """Return the branches that part from one, oldest first."""
        path = self._tree.path(end)
        places = ["", *path] if not branch.parent else path[path.index(branch.beginning) :]
        found = [
            Branch(self._identify(child), branch.identity, place, child)
            for place in places
            for child in self._tree.children[place]
            if child not in path
        ]
        times = {one.beginning: self._date(one.beginning) for one in found}
        return sorted(found, key=lambda one: times[one.beginning])

    def _draw_path(self, end: str) -> Sequence[DraftLine]:
        return [line for message in self._tree.path(end) for line in self._draw(message)]

    def _draw(self, message: str) -> Sequence[DraftLine]:
        """Return the lines of a message."""
        if message not in self._lines:
            self._lines[message] = [*map(self._draw_line, self._drafter.draft(message))]
        return self._lines[message]

    def _draw_line(self, canister: Canister) -> DraftLine:
        settings = self._target.settings
        separated = separate(canister, settings.inline_bytes)
        data = encode_line(separated.stored, settings.line_bytes, self._conversation.title)
        return DraftLine(separated.stored, data + b"\n", separated.deposits)

    def _identify(self, *parts: str) -> str:
        names = (self._target.source, self._conversation.id, *parts)
        return derive_conversation_identity(b"import", *(name.encode() for name in names))

    def _date(self, message: str) -> datetime:
        """Return the time of a message, or the best time that is known for it."""
        conversation = self._conversation
        known = self._tree.messages[message].created if message else None
        return known or conversation.updated or conversation.created or self._last_resort

    @property
    def _last_resort(self) -> datetime:
        return self._conversation.fallback or _EPOCH

    def _describe(self, branch: Branch) -> bytes:
        """Return the details of a new conversation, as they are stored."""
        conversation = self._conversation
        tags = tuple(sorted({*conversation.tags, *self._target.tags}))
        others = {_IMPORTED_FROM: f"{self._target.source}:{conversation.id}"}
        if not branch.parent:
            first = next(iter(self._tree.messages.values())).created
            created = conversation.created or first or self._last_resort
            name = one_line(conversation.title)[:LONGEST_TITLE]
            return encode_details(Details(created=created, name=name, tags=tags), others)
        shared = self._draw_path(branch.at)
        origin = Origin(branch.parent, shared[-1].canister.identity if shared else "")
        details = Details(
            created=self._date(branch.beginning),
            tags=tags,
            forked_from=origin,
            # Versions that the source does not show are not listed either.
            superseded_by="" if conversation.parallel else self._main,
            root=self._main,
        )
        return encode_details(details, others)

    def _conclude(self, forks: tuple[str, ...], dropped: int) -> ImportedConversation:
        drafter = self._drafter
        losses = [*self._conversation.losses, *self._tree.losses]
        losses += [count(number, what) for what, number in sorted(drafter.losses.items())]
        notes = [*self._conversation.notes]
        notes += [count(number, what) for what, number in sorted(drafter.notes.items())]
        if unanswered := drafter.count_unanswered(self._ends):
            notes.append(count(unanswered, "call without a result"))
        if dropped:
            losses.append(f"{dropped:,} of {dropped + MOST_FORKS:,} branches")
        if self._changed:
            notes.append(
                count(self._changed, "message that changed at the source after its import")
            )
        if self._added and losses:
            status: ImportStatus = "partly"
        elif self._added:
            status = "extended" if self._was_known else "imported"
        else:
            status = "unchanged"
        return self._report(status, (*losses, *notes), self._main, forks)

    def _report(
        self,
        status: ImportStatus,
        reasons: tuple[str, ...],
        identity: str = "",
        forks: tuple[str, ...] = (),
    ) -> ImportedConversation:
        return ImportedConversation(
            source=self._target.source,
            id=self._conversation.id,
            title=one_line(self._conversation.title)[:LONGEST_TITLE],
            status=status,
            conversation=identity,
            forks=forks,
            messages=self._added,
            reasons=reasons,
        )


def _decode(data: bytes) -> Canister | None:
    try:
        return decode_canister(data)
    except LineUnreadable:
        return None


def _is_same(canister: Canister | None, line: DraftLine) -> bool:
    """Return True if two messages differ only in their time, which may be that of a file, or end.

    The end of a reply moves to the parts that it got later.
    """
    changes: dict[str, object] = {"created": line.canister.created}
    if isinstance(canister, AssistantCanister | InvocationCanister):
        changes["ending"] = getattr(line.canister, "ending", None)
    return canister is not None and msgspec.structs.replace(canister, **changes) == line.canister
