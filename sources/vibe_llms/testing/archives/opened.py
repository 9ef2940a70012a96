"""The archive of one user, opened twice, and helpers of its checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeAlias

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.storage.interfaces import Archive, Details, Restored
from vibe_llms.testing.limits import require

#: Number of tasks that do the same at the same time in two archives.
RIVALS = 8
#: Length of a text that no archive keeps within a line.
LONG = 100_000

Check: TypeAlias = "Callable[[Archives], Awaitable[None]]"


class Archives:
    """The archive of one user, opened twice."""

    one: Archive
    other: Archive

    def __init__(self, user: str, open_archive: Callable[[str], Awaitable[Archive]]) -> None:
        self.user = user
        self._open = open_archive
        self._numbers = count(1)
        self._opened: list[Archive] = []

    async def open(self, user: str = "") -> Archive:
        """Open the archive of another user, or both archives of this one."""
        if user:
            self._opened.append(await self._open(user))
            return self._opened[-1]
        self.one, self.other = await self._open(self.user), await self._open(self.user)
        self._opened += (self.one, self.other)
        return self.one

    async def close(self) -> None:
        """Close all archives twice, since a second `close` must be harmless."""
        for archive in self._opened:
            await archive.close()
            await archive.close()

    async def begin(self, *canisters: Canister, **details: Any) -> str:
        """Create a conversation, and return its identity."""
        identity = f"c{next(self._numbers):03}-{self.user}"[:60]
        await self.one.create(identity, produce_details(**details), canisters or say("first"))
        return identity

    async def race(
        self, work: Callable[[Archive, int], Awaitable[object]]
    ) -> tuple[Sequence[int], Sequence[VibeLlmsError]]:
        """Run the same work at the same time; return the numbers that succeeded, and the errors."""
        archives = [self.one, self.other] * (RIVALS // 2)
        done = await asyncio.gather(
            *(work(archive, number) for number, archive in enumerate(archives)),
            return_exceptions=True,
        )
        errors: list[VibeLlmsError] = []
        winners: list[int] = []
        for number, one in enumerate(done):
            if isinstance(one, VibeLlmsError):
                errors.append(one)
            elif isinstance(one, BaseException):
                raise one
            else:
                winners.append(number)
        return winners, errors

    async def holds(self, identity: str, canisters: Sequence[Canister], what: str) -> Restored:
        """Require that a conversation has exactly these messages, in both archives."""
        for archive in (self.other, self.one):
            restored = await archive.restore(identity)
            found = [encode_canister(one) for one in restored.canisters]
            wanted = [encode_canister(one) for one in canisters]
            require(
                found == wanted, f"{what}: {len(wanted)} messages are expected, {found} are found"
            )
            require(not restored.gaps, f"{what}: there are gaps")
        return restored

    async def lists(self, **options: Any) -> Sequence[str]:
        """Return the identities in a list; require that both archives and the count agree."""
        one = [found.identity for found in await self.one.survey(**options)]
        other = [found.identity for found in await self.other.survey(**options)]
        require(one == other, f"two archives of one store list {one} and {other}")
        if "limit" not in options:
            number = await self.other.count(**options)
            require(number == len(one), f"{len(one)} conversations are counted as {number}")
        return one

    async def finds(self, text: str, **options: Any) -> Sequence[tuple[str, str]]:
        """Return the conversations and messages that a search finds, sorted."""
        found = await self.other.search(text, **options)
        return sorted((one.conversation, one.canister) for one in found)


def produce_details(**changes: Any) -> Details:
    """Return the details of a conversation that begins now."""
    return Details(**{"created": datetime.now(UTC), **changes})


def say(*texts: str) -> list[Canister]:
    """Return messages of a user."""
    return [UserCanister.from_text(text) for text in texts]


async def refuses(work: Awaitable[object], kind: type[VibeLlmsError], what: str) -> VibeLlmsError:
    """Require that the work raises this kind of error, and return the error."""
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{what}: no {kind.__name__} is raised")


async def refuse_all(
    works: Sequence[Coroutine[Any, Any, object]], kind: type[VibeLlmsError], what: str
) -> None:
    """Require that each of several pieces of work raises an error."""
    try:
        for work in works:
            await refuses(work, kind, what)
    finally:
        for work in works:
            work.close()
