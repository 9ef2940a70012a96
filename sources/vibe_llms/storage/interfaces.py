"""Archive protocol, which other stores can implement too, and its values."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference
from vibe_llms.messages.events import Notice

#: Version of the files that this library writes, and the newest version that it reads.
FORMAT = 1


#: ISO 8601 time in UTC.
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
#: Called with the number of indexed conversations and the total to index.
Report: TypeAlias = Callable[[int, int], None]
#: Canisters as kept in memory, and the notices of an append.
Appended: TypeAlias = tuple[tuple[Canister, ...], tuple[Notice, ...]]


def ignore(done: int, total: int) -> None:
    """Report nothing."""
    del done, total


class Origin(Struct, frozen=True):
    """Source of a fork: the conversation, and the last canister that both share."""

    conversation: str
    canister: str = ""


class Details(Struct, frozen=True, kw_only=True):
    """Data about a conversation besides its canisters.

    `agent` is the name of the agent that began it. `superseded_by` is the conversation that
    replaced this one, for example after an undo. `root` is the conversation that a fork, or the
    first one of its parents, was made from; empty if this one is not a fork.
    """

    created: datetime
    name: str = ""
    model: str = ""
    agent: str = ""
    tags: tuple[str, ...] = ()
    forked_from: Origin | None = None
    superseded_by: str = ""
    root: str = ""
    format: int = FORMAT


class Gap(Struct, frozen=True):
    """An unreadable line: its number from 1, its offset and size in bytes, and the reason."""

    line: int
    offset: int
    size: int
    reason: str


class Restored(Struct, frozen=True):
    """A conversation as read. `gaps` can be nonempty only if it was read leniently."""

    identity: str
    details: Details
    canisters: tuple[Canister, ...]
    gaps: tuple[Gap, ...] = ()
    notices: tuple[Notice, ...] = ()


class Summary(Struct, frozen=True):
    """A conversation in a list. `opening` is the beginning of the user's first message.

    `problem` is the reason if it cannot be read, otherwise empty. `superseded_by` is the
    conversation that replaced this one; lists omit this one while that one exists.
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
        """Name of the conversation, or its opening."""
        return self.name or self.opening


class Relative(Struct, frozen=True):
    """A conversation of a family, and the number of messages that it took over when it was forked.

    `shared` is 0 if it is not a fork.
    """

    summary: Summary
    shared: int = 0


class ConversationVersions(Struct, frozen=True):
    """The version of each conversation at one time, which differs after each change.

    `token` differs if any of them may have changed, and is empty if that is not certain.
    """

    token: bytes
    versions: Mapping[str, object]


class Finding(Struct, frozen=True):
    """A message that matches a search. `excerpt` marks the words with `[` and `]`.

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
    """An uploaded file. `hash` is the SHA-256 of its bytes in hexadecimal, `size` their number.

    `id` is the hash too, unless the file was stored under another one, with 32 hexadecimal digits.
    `purpose` is the client's. After the time `expires`, if set, the server deletes the file.
    """

    id: str
    name: str
    mimetype: str
    size: int
    created: Time
    hash: str = ""
    purpose: str = ""
    expires: Time | None = None

    def __post_init__(self) -> None:
        if not self.hash:
            # Records of earlier versions.
            force_setattr(self, "hash", self.id)


class Diagnosis(Struct, frozen=True):
    """A problem found by a check. `remedy` says what to do; `mended` is True after a repair."""

    subject: str
    path: str
    text: str
    remedy: str = ""
    mended: bool = False


class ContentArchive(Protocol):
    """Part of an archive that stores the bytes of contents and uploaded files, by their hashes."""

    async def load(self, reference: Reference) -> bytes:
        """Return the bytes of a reference, checked against its hash."""
        ...

    async def load_all(self, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """Return the bytes of references, keyed by hash."""
        ...

    async def put(self, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes. They may be collected if no message refers to them within an hour."""
        ...

    async def upload(
        self,
        data: bytes,
        name: str,
        mimetype: str = "",
        *,
        identity: str = "",
        purpose: str = "",
        expires: str | None = None,
    ) -> UploadedFile:
        """Store bytes as a file, which is kept until it is removed, and replace one with its id.

        The id is `identity`, 32 hexadecimal digits, or else the hash of the bytes.
        """
        ...

    async def survey_files(self) -> Sequence[UploadedFile]:
        """Return the uploaded files, newest first."""
        ...

    async def access_file(self, identity: str) -> UploadedFile:
        """Return an uploaded file by its id, or raise `ContentMissing`."""
        ...

    async def remove_file(self, identity: str) -> UploadedFile:
        """Delete an uploaded file. Its bytes stay while a message needs them."""
        ...

    async def collect(self) -> Sequence[str]:
        """Delete contents that no conversation or file refers to, and return their hashes."""
        ...


class Archive(ContentArchive, Protocol):
    """Store of conversations and of their contents.

    When a method returns, its changes are durable. If it fails, it raises a `StorageError`, and
    stored data is unchanged.
    """

    async def create(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        """Create a conversation with its first canisters, and return them as kept in memory.

        Raises `ConversationMoved` if a conversation has this identity.
        """
        ...

    def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> Coroutine[Any, Any, Appended]:
        """Add canisters after a given one, and return them as kept in memory, and notices.

        Raises `ConversationMoved` if another canister is last; `after=None` skips this check. A
        cancelled history completes the append, without a task if it is `ShieldedWork`.
        """
        ...

    async def retract(self, identity: str, *, after: str, last: str) -> None:
        """Delete the canisters after one of them, such as a prompt that no model answered.

        Raises `ConversationMoved` if the canister `last` is no longer the last.
        """
        ...

    async def restore(self, identity: str, *, lenient: bool = False) -> Restored:
        """Return a conversation. With `lenient`, tolerate damage and report the gaps."""
        ...

    async def fork(
        self, identity: str, target: str, details: Details, *, at: str | None = None
    ) -> None:
        """Create a conversation from the lines of another, up to the canister `at` inclusive."""
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

        If `last` is given, raises `ConversationMoved` if another canister is the last. An empty
        `last` is that of a conversation without canisters.
        """
        ...

    async def resolve(self, text: str) -> str:
        """Return the identity of the conversation that a text refers to.

        The text is an identity or at least its first 4 characters; a name or title, its beginning,
        or any part that is unique; or `-1` for the newest conversation, `-2` for the one before.
        Raises `ConversationAmbiguous`, which lists the candidates.
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
        """Return the conversations, most recent first, including superseded ones on request.

        If `after` is given, only those that follow this conversation. Raises `ConversationNotFound`
        if it does not exist.
        """
        ...

    async def count(self, *, tag: str = "", superseded: bool = False) -> int:
        """Return the number of conversations that `survey` lists without a limit."""
        ...

    async def survey_versions(
        self, before: ConversationVersions | None = None
    ) -> ConversationVersions:
        """Return the versions of all conversations, or `before` if nothing has changed since.

        Another conversation may get a new version too, but none that changed keeps its own.
        """
        ...

    async def survey_family(self, identity: str) -> Sequence[Relative]:
        """Return all conversations that were forked from the same one, oldest first.

        A deleted conversation parts a family. Raises `ConversationNotFound`.
        """
        ...

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Return the messages that contain all words of a text, best match first."""
        ...

    async def close(self) -> None:
        """Close all resources; safe to call twice."""
        ...
