"""The protocol of an archive, which other stores can implement too, and its values."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeAlias

from msgspec import Meta, Struct

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference

#: The version of the files that this library writes, and the newest that it reads.
FORMAT = 1


#: A time in ISO 8601, in UTC.
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
#: Called with the number of conversations that are indexed, and of those to be indexed.
Report: TypeAlias = Callable[[int, int], None]
#: Canisters as they are kept in memory, and what there is to say of an append.
Appended: TypeAlias = tuple[tuple[Canister, ...], tuple[Notice, ...]]


def ignore(done: int, total: int) -> None:
    """Report nothing."""
    del done, total


class Origin(Struct, frozen=True):
    """Where a fork came from: the conversation, and the last canister that both share."""

    conversation: str
    canister: str = ""


class Details(Struct, frozen=True, kw_only=True):
    """Data about a conversation besides its canisters.

    `agent` is the name of the agent that it was begun with. `superseded_by` is the conversation
    that replaced this one, for example after an undo.
    """

    created: datetime
    name: str = ""
    model: str = ""
    agent: str = ""
    tags: tuple[str, ...] = ()
    forked_from: Origin | None = None
    superseded_by: str = ""
    format: int = FORMAT


class Gap(Struct, frozen=True):
    """An unreadable line: its number from 1, its position, and the reason."""

    line: int
    offset: int
    size: int
    reason: str


class Restored(Struct, frozen=True):
    """A conversation as read; `gaps` is empty unless it was read leniently and is damaged."""

    identity: str
    details: Details
    canisters: tuple[Canister, ...]
    gaps: tuple[Gap, ...] = ()
    notices: tuple[Notice, ...] = ()


class Summary(Struct, frozen=True):
    """A conversation in a list; `opening` is the beginning of the user's first message.

    `problem` says why it cannot be read; it is empty if it can. `superseded_by` is the conversation
    that replaced this one; lists skip this one while that one exists.
    """

    identity: str
    name: str
    opening: str
    created: datetime
    updated: datetime
    model: str
    tags: tuple[str, ...]
    forked_from: Origin | None
    messages: int
    problem: str = ""
    superseded_by: str = ""

    @property
    def title(self) -> str:
        """The text shown for it: its name, or its opening."""
        return self.name or self.opening


class Finding(Struct, frozen=True):
    """A message that matches a search; `excerpt` marks the words with `[` and `]`.

    `title` is the name of its conversation, or the opening.
    """

    conversation: str
    title: str
    canister: str
    role: str
    created: datetime
    excerpt: str
    name: str = ""


class UploadedFile(Struct, frozen=True, kw_only=True):
    """A file; `id` is the SHA-256 of its bytes in hexadecimal, `size` their number."""

    id: str
    name: str
    mimetype: str
    size: int
    created: Time


class Diagnosis(Struct, frozen=True):
    """A problem that a check of the archive found; `remedy` says what to do."""

    subject: str
    path: str
    text: str
    remedy: str = ""
    mended: bool = False


class Archive(Protocol):
    """Stores conversations.

    When a method returns, its changes are durable. If it fails, it raises a `StorageError`, and
    stored data is unchanged.
    """

    async def create(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        """A new conversation with its first canisters; returns them as they are kept in memory.

        `ConversationMoved` if there is one with this identity.
        """
        ...

    def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> Coroutine[Any, Any, Appended]:
        """Add canisters after the given one; returns them as they are kept in memory, and notices.

        `ConversationMoved` if another canister is last; `after=None` skips this check. Histories
        complete it even if they are cancelled, in a task, or without one if it is `ShieldedWork`.
        """
        ...

    async def retract(self, identity: str, *, after: str, last: str) -> None:
        """Delete the canisters after one of them, such as a prompt that no model answered.

        `ConversationMoved` if the canister `last` is no longer the last.
        """
        ...

    async def restore(self, identity: str, *, lenient: bool = False) -> Restored:
        """A conversation; `lenient` tolerates damage and reports the gaps."""
        ...

    async def fork(
        self, identity: str, target: str, details: Details, *, at: str | None = None
    ) -> None:
        """A new conversation with the lines of another up to and including the canister `at`."""
        ...

    async def revise(
        self,
        identity: str,
        *,
        name: str | None = None,
        model: str | None = None,
        superseded_by: str | None = None,
        add_tags: Sequence[str] = (),
        remove_tags: Sequence[str] = (),
    ) -> Details:
        """Change the details of a conversation."""
        ...

    async def remove(self, *identities: str, last: str | None = None) -> None:
        """Permanently delete conversations. `collect` deletes contents that are no longer used.

        `ConversationMoved` if another canister than `last` is the last, where it is given; it is
        empty for a conversation without canisters.
        """
        ...

    async def resolve(self, text: str) -> str:
        """The identity of the conversation that a text means.

        The text is an identity or at least the first 4 characters of it; a name or title, its
        beginning, or any part that only one has; or `-1` for the newest conversation, `-2` for the
        one before. `ConversationAmbiguous` lists the candidates.
        """
        ...

    async def survey(
        self,
        *,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        """The conversations, most recent first; with `superseded`, all of them.

        Only those that follow the conversation `after`, where it is given; `ConversationNotFound`
        if there is none with this identity.
        """
        ...

    async def count(self, *, tag: str = "", superseded: bool = False) -> int:
        """How many conversations `survey` lists without a limit."""
        ...

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Messages that contain all words of a text, best first."""
        ...

    async def load(self, reference: Reference) -> bytes:
        """The bytes of a reference, checked against its hash."""
        ...

    async def load_all(self, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """The bytes of references, by their hashes."""
        ...

    async def put(self, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes. If no message refers to them within an hour, they may be collected."""
        ...

    async def upload(self, data: bytes, name: str, mimetype: str = "") -> UploadedFile:
        """Store bytes as a file, which is kept until it is removed."""
        ...

    async def survey_files(self) -> Sequence[UploadedFile]:
        """The files that were uploaded, the newest first."""
        ...

    async def access_file(self, identity: str) -> UploadedFile:
        """An uploaded file, by the hash of its bytes; `ContentMissing` if there is none."""
        ...

    async def remove_file(self, identity: str) -> UploadedFile:
        """Delete an uploaded file; its bytes stay while a message needs them."""
        ...

    async def collect(self) -> Sequence[str]:
        """Delete the contents that no conversation or file refers to; returns their hashes."""
        ...

    async def close(self) -> None:
        """Close what is open; safe to call twice."""
        ...
