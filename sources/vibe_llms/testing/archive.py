"""Contract checks for implementations of `Archive`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.storage.interfaces import Archive
from vibe_llms.testing.archives import contents, finding, messages
from vibe_llms.testing.archives.opened import Archives, Check

#: All checks, for callers that run only some of them.
CHECKS: Sequence[Check] = (*messages.CHECKS, *finding.CHECKS, *contents.CHECKS)


async def check_archive(open_archive: Callable[[str], Awaitable[Archive]]) -> None:
    """Raise `AssertionError` if an archive breaks its contract with conversations.

    `open_archive` opens the archive of a user, in the same store each time, as another process
    would. The store must have no users whose names begin with `check-`. Most checks use two
    archives. All are closed at the end.
    """
    for check in CHECKS:
        user = check.__name__.removeprefix("_").replace("_", "-")
        archives = Archives(user, open_archive)
        await archives.open()
        try:
            await check(archives)
        finally:
            await archives.close()
