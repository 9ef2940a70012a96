"""What an archive is: a protocol that other stores can fulfil too, and the values it speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference

#: The version of the files that this library writes, and the newest that it reads.
FORMAT = 1


class Origin(Struct, frozen=True):
    """Where a fork came from: the conversation, and the last canister that both have."""

    conversation: str
    canister: str = ""


class Details(Struct, frozen=True, kw_only=True):
    """What is kept of a conversation besides its canisters.

    `superseded_by` names the conversation that took its place, by an undo say.
    """

    created: datetime
    name: str = ""
    model: str = ""
    tags: tuple[str, ...] = ()
    forked_from: Origin | None = None
    superseded_by: str = ""
    format: int = FORMAT


class Gap(Struct, frozen=True):
    """A line that could not be read: its number from 1, where it lies, and why."""

    line: int
    offset: int
    size: int
    reason: str


class Restored(Struct, frozen=True):
    """A conversation as it was read; `gaps` is empty unless damage was to be borne with."""

    identity: str
    details: Details
    canisters: tuple[Canister, ...]
    gaps: tuple[Gap, ...] = ()
    notices: tuple[Notice, ...] = ()


class Summary(Struct, frozen=True):
    """A conversation in a list; `opening` are the first words that the user said in it.

    `problem` says why it cannot be read; empty if it can. `superseded_by` names the conversation
    that took its place; lists leave it out while that one exists.
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
        """What a person knows it by: its name, else its opening."""
        return self.name or self.opening


class Finding(Struct, frozen=True):
    """A message that holds what was searched for; `excerpt` marks the words with `[` and `]`.

    `title` is the name of its conversation, else the opening.
    """

    conversation: str
    title: str
    canister: str
    role: str
    created: datetime
    excerpt: str
    name: str = ""


class Diagnosis(Struct, frozen=True):
    """Something that a check of the archive found; `remedy` says what to do."""

    subject: str
    path: str
    text: str
    remedy: str = ""
    mended: bool = False


class Archive(Protocol):
    """Where conversations are kept.

    What returns has been made durable; what fails raises a `StorageError` and left everything that
    was kept as it was.
    """

    async def create(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        """A new conversation with its first canisters; gives them as they are kept in memory."""
        ...

    async def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> tuple[tuple[Canister, ...], tuple[Notice, ...]]:
        """Add canisters after the one named; gives them as they are kept in memory, and notices.

        `ConversationMoved` where another canister stands last; `after=None` adds to whatever does.
        """
        ...

    async def restore(self, identity: str, *, lenient: bool = False) -> Restored:
        """A conversation; `lenient` bears with damage and tells the gaps."""
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
        """Change what is kept besides the canisters."""
        ...

    async def remove(self, *identities: str) -> None:
        """Remove conversations for good. Contents that nobody needs any more go with `collect`."""
        ...

    async def resolve(self, text: str) -> str:
        """The identity of the conversation that a text names.

        It is an identity or 4 or more characters of its beginning, a name or title, its beginning
        or any part of it that only one has, or `-1` for the newest conversation, `-2` for the one
        before. `ConversationAmbiguous` names the candidates.
        """
        ...

    async def survey(
        self, *, limit: int | None = None, tag: str = "", superseded: bool = False
    ) -> Sequence[Summary]:
        """The conversations, the most recent first; with `superseded`, all of them."""
        ...

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Messages that hold all words of a text, the best first."""
        ...

    async def load(self, reference: Reference) -> bytes:
        """The bytes of a reference, checked against its hash."""
        ...

    async def load_all(self, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """The bytes of references, by their hashes."""
        ...

    async def close(self) -> None:
        """Give up what is open; safe to call twice."""
        ...
