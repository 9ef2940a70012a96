"""The archive of one user, opened twice, and what checks of it have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeAlias

from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.storage.interfaces import Archive, Details, Restored
from vibe_llms.testing.limits import require

#: So many tasks of two archives do the same at the same time.
RIVALS = 8
#: Larger than what any archive keeps within a line.
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
        """The archive of another user; without one, both of this one."""
        if user:
            self._opened.append(await self._open(user))
            return self._opened[-1]
        self.one, self.other = await self._open(self.user), await self._open(self.user)
        self._opened += (self.one, self.other)
        return self.one

    async def close(self) -> None:
        """Close all, twice, which is safe."""
        for archive in self._opened:
            await archive.close()
            await archive.close()

    async def begin(self, *canisters: Canister, **details: Any) -> str:
        """A new conversation; returns its identity."""
        identity = f"c{next(self._numbers):03}-{self.user}"[:60]
        await self.one.create(identity, produce_details(**details), canisters or say("first"))
        return identity

    async def race(
        self, work: Callable[[Archive, int], Awaitable[object]]
    ) -> tuple[Sequence[int], Sequence[VibeLlmsError]]:
        """The numbers of those that succeed in the same at the same time, and the errors."""
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
            require(found == wanted, f"{what}: {len(wanted)} messages are due, {found} are there")
            require(not restored.gaps, f"{what}: there are gaps")
        return restored

    async def lists(self, **options: Any) -> Sequence[str]:
        """The identities of a list, which both archives and the count agree on."""
        one = [found.identity for found in await self.one.survey(**options)]
        other = [found.identity for found in await self.other.survey(**options)]
        require(one == other, f"two archives of one store list {one} and {other}")
        if "limit" not in options:
            number = await self.other.count(**options)
            require(number == len(one), f"{len(one)} conversations are counted as {number}")
        return one

    async def finds(self, text: str, **options: Any) -> Sequence[tuple[str, str]]:
        """The conversations and messages that a search finds, sorted."""
        found = await self.other.search(text, **options)
        return sorted((one.conversation, one.canister) for one in found)


def produce_details(**changes: Any) -> Details:
    """Details of a conversation that begins now."""
    return Details(**{"created": datetime.now(UTC), **changes})


def say(*texts: str) -> list[Canister]:
    """Messages of a user."""
    return [UserCanister.from_text(text) for text in texts]


async def refuses(work: Awaitable[object], kind: type[VibeLlmsError], what: str) -> VibeLlmsError:
    """The error that work must raise."""
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
