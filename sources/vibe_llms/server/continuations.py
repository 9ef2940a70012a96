"""Continuations: finding the stored conversation that a client's history continues.

A stateless client sends its whole history each time. A chain of hashes over the visible part leads
to the stored conversation; see adr/0059.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from vibe_llms.base.configuration import Places
from vibe_llms.base.databases import open_database
from vibe_llms.base.folders import make_folder
from vibe_llms.invocation.approval import canonical_arguments
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, Reference, TextualContent, hash_bytes, text_of
from vibe_llms.storage.backends import Backend

_DIGEST_BYTES = 16
_VERSION = 1
_LOCK_SECONDS = 5.0
_TABLES = """
create table replies (
    chain blob primary key, conversation text not null, canister text not null, system blob not null
) without rowid
"""


class Chain:
    """Hash of the client-visible part of a history; empty unless `wanted`."""

    def __init__(self, agent: str, *, wanted: bool = True) -> None:
        """Create the chain of an empty history with an agent."""
        self.value = _digest(b"agent", agent.encode()) if wanted else b""
        self._agent = agent
        self._wanted = wanted
        self._calls: dict[str, int] = {}

    def begin_again(self) -> Chain:
        """Return the chain of an empty history with the same agent."""
        return Chain(self._agent, wanted=self._wanted)

    def extend(self, canisters: Iterable[Canister]) -> None:
        """Add messages of the client."""
        for canister in canisters if self._wanted else ():
            match canister:
                case UserCanister(contents=contents):
                    self._calls.clear()
                    self._add(b"user", *_encode_contents(contents))
                case AssistantCanister():
                    self._calls.clear()
                    self.add_text(text_of(canister.contents))
                case InvocationCanister():
                    self.add_call(canister)
                case ResultCanister(contents=contents, invocation=invocation):
                    # Clients may rename calls, but keep their order.
                    place = self._calls.get(invocation, 0)
                    self._add(b"result", str(place).encode(), *_encode_contents(contents))

    def add_text(self, text: str) -> None:
        """Add text of the assistant, ignoring surrounding whitespace."""
        if self._wanted and (stripped := text.strip()):
            self._add(b"assistant", stripped.encode("utf-8", "surrogatepass"))

    def add_call(self, call: InvocationCanister) -> None:
        """Add a call of a client's tool."""
        if not self._wanted:
            return
        self._calls[call.identity] = len(self._calls)
        self._add(b"call", call.name.encode(), canonical_arguments(call))

    def _add(self, *parts: bytes) -> None:
        self.value = _digest(self.value, *parts)


class ContinuationPlace(Struct, frozen=True):
    """End of a history in the archive; `system` is the hash of the client's system text."""

    conversation: str
    canister: str
    system: bytes


class Continuations(Protocol):
    """The stored places of a user's replies, by the chains that end with them.

    Derived data: without an entry, a history is stored as a new conversation.
    """

    async def find(self, chain: bytes) -> ContinuationPlace | None:
        """Return the stored place of a history, if its last reply came from this server."""
        ...

    async def put(self, chain: bytes, place: ContinuationPlace) -> None:
        """Record the stored place of a history, replacing that of an equal history."""
        ...

    async def forget(self, conversation: str) -> None:
        """Forget the histories that end in a removed conversation."""
        ...

    async def close(self) -> None:
        """Close open resources."""
        ...


class ContinuationStore(Protocol):
    """Storage of the continuations of all users."""

    def open(self, user: str, places: Places) -> Continuations:
        """Open the continuations of one user, whose own files are at `places`."""
        ...


class HomeContinuations:
    """`Continuations` in a SQLite file."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._database = open_database(
            folder / "continuations.sqlite",
            version=_VERSION,
            tables=_TABLES,
            seconds=_LOCK_SECONDS,
            pragmas=("journal_mode = wal",),
        )

    async def find(self, chain: bytes) -> ContinuationPlace | None:
        """Return the stored place of a history, if its last reply came from this server."""
        query = "select conversation, canister, system from replies where chain = ?"
        row = self._database.execute(query, (chain,)).fetchone()
        return None if row is None else ContinuationPlace(*row)

    async def put(self, chain: bytes, place: ContinuationPlace) -> None:
        """Record the stored place of a history, replacing that of an equal history."""
        row = (chain, place.conversation, place.canister, place.system)
        self._database.execute("insert or replace into replies values (?, ?, ?, ?)", row)

    async def forget(self, conversation: str) -> None:
        """Forget the histories that end in a removed conversation."""
        self._database.execute("delete from replies where conversation = ?", (conversation,))

    async def close(self) -> None:
        """Close the file."""
        self._database.close()


class HomeContinuationStore:
    """The `ContinuationStore` of a home, with a file per user."""

    def open(self, user: str, places: Places) -> HomeContinuations:
        """Open the continuations of one user."""
        del user
        return HomeContinuations(places.data / "server")


def produce_home_continuations(backend: Backend) -> HomeContinuationStore:
    """Create the store of the continuations of all users."""
    del backend
    return HomeContinuationStore()


def hash_system(canisters: Iterable[Canister]) -> bytes:
    """Hash the system texts of a client."""
    texts = [one.text for one in canisters if isinstance(one, SupervisorCanister)]
    return _digest(*(text.encode("utf-8", "surrogatepass") for text in texts))


def _encode_contents(contents: Iterable[Content]) -> Iterable[bytes]:
    texts: list[str] = []
    for content in contents:
        match content:
            case TextualContent():
                texts.append(content.text)
            case _ if (data := getattr(content, "data", None)) is not None:
                yield _name_data(data).encode()
    yield "".join(texts).encode("utf-8", "surrogatepass")


def _name_data(data: object) -> str:
    match data:
        case bytes():
            return hash_bytes(data)
        case Reference(hash=digest):
            return digest
        case _:
            return str(data)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
