"""The history of one conversation, in memory and in the archive, if any.

When `append` returns, the messages are durable. If another process has continued the conversation,
the history continues in a fork, so that no reply is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from vibe_llms.base.exceptions import (
    ArchiveDamaged,
    ConversationMoved,
    ConversationNotFound,
    ForkPointInvalid,
    FormatNewer,
    RequestError,
    StorageError,
)
from vibe_llms.base.futures import finish, shield
from vibe_llms.conversations.corrections import find_last_prompt, is_prompt
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Loader, refuse_loading
from vibe_llms.storage.conversations import produce_conversation_identity
from vibe_llms.storage.details import fork_details
from vibe_llms.storage.interfaces import Archive, Details, Origin

Notifier = Callable[[Notice], None]

#: Errors if the lines of a conversation are missing or have changed.
_GONE = (ConversationNotFound, ArchiveDamaged, FormatNewer)
_REPLIES = (AssistantCanister, InvocationCanister, ResultCanister)


class History:
    """The messages of a conversation in order, and their storage."""

    def __init__(
        self,
        archive: Archive | None,
        details: Details,
        *,
        identity: str = "",
        canisters: Sequence[Canister] = (),
        stored: bool = False,
        load: Loader = refuse_loading,
    ) -> None:
        self.archive = archive
        #: Loads contents of messages that come from an archive, if this history has none.
        self._load = load
        self.details = details
        self.identity = identity or produce_conversation_identity()
        self.canisters = list(canisters)
        self._stored = stored
        #: The chosen model, while the archive has another one.
        self._chosen = ""
        # Results of parallel calls arrive together and must be appended one at a time.
        self._lock = asyncio.Lock()

    @classmethod
    def begin(
        cls,
        archive: Archive | None,
        *,
        name: str = "",
        model: str = "",
        agent: str = "",
        tags: Sequence[str] = (),
        canisters: Sequence[Canister] = (),
        load: Loader = refuse_loading,
    ) -> Self:
        """Create a history; it is stored with the first message appended to it.

        Without an archive, `load` returns the contents of messages that come from one.
        """
        details = Details(
            created=datetime.now(UTC), name=name, model=model, agent=agent, tags=tuple(tags)
        )
        return cls(archive, details, canisters=canisters, load=load)

    @classmethod
    async def restore(cls, archive: Archive, identity: str) -> tuple[Self, Sequence[Notice]]:
        """Return a stored history, and notices on its state."""
        restored = await archive.restore(identity)
        history = cls(
            archive,
            restored.details,
            identity=identity,
            canisters=restored.canisters,
            stored=True,
        )
        return history, restored.notices

    @property
    def load(self) -> Loader:
        """Function that returns the bytes of references in its contents."""
        return self._load if self.archive is None else self.archive.load_all

    @property
    def root(self) -> str:
        """Identity of the conversation that all forks of this one began with."""
        return self.details.root or self.identity

    @property
    def stored(self) -> bool:
        """True if the archive has this conversation."""
        return self._stored

    async def append(
        self,
        canisters: Sequence[Canister],
        notify: Notifier,
        *,
        confirm: Callable[[], Awaitable[None]] | None = None,
        revive: bool = True,
    ) -> None:
        """Append messages; once started, this completes even if the task is cancelled.

        `confirm` is awaited before the history continues in a fork, and raises an error to prevent
        that. Without `revive`, raises `ConversationNotFound` if the conversation has been deleted.
        """
        if self.archive is None:
            self.canisters += canisters
        elif canisters:
            done, cancelled = await self._append_directly(self.archive, canisters, notify)
            if not done:
                await finish(self._append(self.archive, canisters, notify, confirm, revive=revive))
            if cancelled is not None:
                raise cancelled

    async def refresh(self) -> None:
        """Read the messages that other processes have added."""
        if self.archive is None:
            return
        try:
            restored = await self.archive.restore(self.identity)
        except ConversationNotFound:
            if self._stored:
                raise
            return
        self._adopt(restored.details)
        self.canisters = list(restored.canisters)
        self._stored = True

    async def fork(self, at: int, *, name: str = "", identity: str = "") -> History:
        """Return an independent history of the canisters before the index `at`.

        Raises `ConversationMoved` if a conversation has the given `identity`.
        """
        last = self.canisters[at - 1].identity if at else ""
        details = fork_details(self.details, Origin(self.identity, last), name)
        twin = History(
            self.archive,
            details,
            identity=identity,
            canisters=self.canisters[:at],
            load=self._load,
        )
        if self.archive is not None and self._stored and at:
            await self.archive.fork(self.identity, twin.identity, details, at=last)
            twin._stored = True
        return twin

    async def rewind(self, turns: int, *, keep_prompt: bool) -> History:
        """Return a fork without the last turns, or with the first prompt of them.

        The stored fork takes the name and supersedes this history, which is renamed and not listed
        any more. Raises `ForkPointInvalid` if the history has fewer turns.
        """
        if turns < 1:
            raise RequestError(f"{turns} turns cannot be undone; use 1 or more")
        end = len(self.canisters)
        for undone in range(turns):
            start = start_of_turn(self.canisters[:end])
            if start is None:
                reported = f"only {undone} of {turns} turns can be" if undone else "nothing can be"
                raise ForkPointInvalid(f"{reported} undone", nearest=())
            end = start
        if keep_prompt:
            while end < len(self.canisters) and not isinstance(self.canisters[end], _REPLIES):
                end += 1
        name = self.details.name
        twin = await finish(self.fork(end, name=name))
        await self.give_way(twin.identity)
        return twin

    async def give_way(self, fork: str) -> None:
        """Let lists show a fork, which has the name of this history, instead of it."""
        name = self.details.name
        await self.revise(name=self._name_until(name) if name else None, superseded_by=fork)

    def choose(self, model: str) -> None:
        """Set the model that it continues with, which is stored with the next message."""
        self.details = msgspec.structs.replace(self.details, model=model)
        if self._stored:
            self._chosen = model

    def _adopt(self, details: Details) -> None:
        self.details = msgspec.structs.replace(details, model=self._chosen or details.model)

    async def withdraw(self, at: int, notify: Notifier, reason: str) -> None:
        """Continue in a fork of the canisters before the index `at`; the rest stays stored.

        The fork takes the name. Once started, this completes even if the task is cancelled.
        """
        if self.archive is None or not self._stored:
            del self.canisters[at:]
        else:
            await finish(self._withdraw(self.archive, at, notify, reason))

    async def revise(
        self,
        *,
        name: str | None = None,
        model: str | None = None,
        superseded_by: str | None = None,
    ) -> None:
        """Change the metadata of the history."""
        given = {"name": name, "model": model, "superseded_by": superseded_by}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        async with self._lock:
            if self.archive is not None and self._stored:
                if model is not None:
                    self._chosen = ""
                self._adopt(await self.archive.revise(self.identity, **changes))
                return
            self.details = msgspec.structs.replace(self.details, **changes)

    async def _append_directly(
        self, archive: Archive, canisters: Sequence[Canister], notify: Notifier
    ) -> tuple[bool, asyncio.CancelledError | None]:
        """Append without a separate task, if a single call of the archive is enough.

        Returns True if it was enough, and the cancellation of this task in the meantime.
        """
        if not self._stored or self._lock.locked() or self.details.superseded_by or self._chosen:
            return False, None
        after = self.canisters[-1].identity if self.canisters else None
        async with self._lock:
            cancelled = None
            try:
                work = shield(archive.append(self.identity, canisters, after=after))
                cancelled = await work.wait()
                kept, notices = work.result()
            except (ConversationMoved, *_GONE):
                return False, cancelled
            self.canisters += kept
        for notice in notices:
            notify(notice)
        return True, cancelled

    async def _append(
        self,
        archive: Archive,
        canisters: Sequence[Canister],
        notify: Notifier,
        confirm: Callable[[], Awaitable[None]] | None,
        *,
        revive: bool,
    ) -> None:
        notices: list[Notice] = []
        try:
            async with self._lock:
                try:
                    notices += await self._keep(archive, canisters)
                except (ConversationMoved, *_GONE) as error:
                    if confirm is not None:
                        await confirm()
                    if isinstance(error, ConversationNotFound) and not revive:
                        raise
                    # A paid reply is never lost: continue from our last line.
                    notices.append(await self._leave(archive, error))
                    notices += await self._keep(archive, canisters)
        finally:
            for notice in notices:
                notify(notice)

    async def _keep(self, archive: Archive, canisters: Sequence[Canister]) -> Sequence[Notice]:
        if not self._stored:
            every = [*self.canisters, *canisters]
            self.canisters = list(await archive.create(self.identity, self.details, every))
            self._stored = True
            return ()
        if self.details.superseded_by:
            # Continuing a superseded conversation lists it again.
            self._adopt(await archive.revise(self.identity, superseded_by=""))
        after = self.canisters[-1].identity if self.canisters else None
        kept, notices = await archive.append(self.identity, canisters, after=after)
        self.canisters += kept
        if self._chosen:
            self.details = await archive.revise(self.identity, model=self._chosen)
            self._chosen = ""
        return notices

    async def _leave(self, archive: Archive, error: StorageError | ConversationNotFound) -> Notice:
        try:
            twin = await self.fork(len(self.canisters))
        except _GONE:
            # Our own last line is missing, so everything is written again.
            origin = Origin(self.identity, self.canisters[-1].identity)
            details = fork_details(self.details, origin, "")
            twin = History(archive, details, canisters=self.canisters)
        if isinstance(error, ConversationMoved):
            return self._continue_in(twin, "another process has continued this conversation")
        return self._continue_in(twin, str(error))

    async def _withdraw(self, archive: Archive, at: int, notify: Notifier, reason: str) -> None:
        async with self._lock:
            name, identity = self.details.name, self.identity
            former = self._name_until(name)
            notice = self._continue_in(await self.fork(at, name=name), reason)
            await archive.revise(
                identity, name=former if name else None, superseded_by=self.identity
            )
        notify(notice)

    def _name_until(self, name: str) -> str:
        """Return the name of this history after a fork has taken the original one."""
        last = self.canisters[-1].created if self.canisters else self.details.created
        return f"{name} (until {last:%Y-%m-%d %H:%M:%S})"

    def _continue_in(self, twin: History, reason: str) -> Notice:
        self.identity, self.details, self._stored = twin.identity, twin.details, twin._stored
        self.canisters, self._chosen = twin.canisters, ""
        return Notice("fork", f"{reason}; this one continues as {twin.identity}, a fork")


def locate(canisters: Sequence[Canister], at: str | int | None, *, open_calls: bool = False) -> int:
    """Return the number of canisters up to and including `at`, an identity or an index.

    Raises `ForkPointInvalid`, with the nearest valid points, if the history cannot be cut there.
    With `open_calls`, it can be cut between calls and their results.
    """
    if at is None:
        return len(canisters)
    if isinstance(at, str):
        index = next((i for i, one in enumerate(canisters) if one.identity == at), None)
        if index is None:
            raise ConversationNotFound(f"message {at!r} not found in this conversation")
    else:
        index = at + len(canisters) if at < 0 else at
        if not 0 <= index < len(canisters):
            raise ConversationNotFound(
                f"message {at} not found: this conversation has {len(canisters)} messages"
            )
    following = _find_message(canisters, range(index + 1, len(canisters)))
    if may_end(canisters, index) or (open_calls and isinstance(following, ResultCanister)):
        return index + 1
    before = next((i for i in range(index - 1, -1, -1) if may_end(canisters, i)), None)
    after = next(i for i in range(index + 1, len(canisters)) if may_end(canisters, i))
    nearest = tuple(canisters[i].identity for i in (before, after) if i is not None)
    raise ForkPointInvalid(
        "a conversation cannot be cut within a reply or between calls and their results; "
        f"the nearest points are {' and '.join(nearest)}",
        nearest=nearest,
    )


def may_end(canisters: Sequence[Canister], index: int) -> bool:
    """Return True if a history can be cut after this message; digests in between do not matter."""
    this = _find_message(canisters, range(index, -1, -1))
    following = _find_message(canisters, range(index + 1, len(canisters)))
    if this is None or following is None:
        return True
    if isinstance(following, ResultCanister):
        return False
    both = isinstance(this, AssistantCanister | InvocationCanister) and isinstance(
        following, AssistantCanister | InvocationCanister
    )
    return not (both and this.reply and this.reply == following.reply)  # type: ignore[union-attr]


def _find_message(canisters: Sequence[Canister], places: Iterable[int]) -> Canister | None:
    """Return the first message at these places that is no digest."""
    found = map(canisters.__getitem__, places)
    return next((one for one in found if type(one) is not DigestCanister), None)


def find_exchange(canisters: Sequence[Canister], index: int) -> range:
    """Return the places of a message and of those that no cut may separate from it."""
    start, end = index, index + 1
    while start and not may_end(canisters, start - 1):
        start -= 1
    while not may_end(canisters, end - 1):
        end += 1
    return range(start, end)


def find_exchanges(canisters: Sequence[Canister], identities: AbstractSet[str]) -> AbstractSet[int]:
    """Return the places of some messages, each with the calls and results of its reply."""
    return {
        place
        for index, one in enumerate(canisters)
        if one.identity in identities
        for place in find_exchange(canisters, index)
    }


def has_reply(canisters: Sequence[Canister]) -> bool:
    """Return True if these canisters have a reply of a model or a result of a tool."""
    return any(isinstance(canister, _REPLIES) for canister in canisters)


def start_of_turn(canisters: Sequence[Canister]) -> int | None:
    """Return the index of the first message of the last turn: its prompt and its documents."""
    index = find_last_prompt(canisters)
    if index is None:
        return None
    while index > 0 and (
        isinstance(canisters[index - 1], DocumentCanister) or is_prompt(canisters, index - 1)
    ):
        index -= 1
    return index
