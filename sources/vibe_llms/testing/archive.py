"""What every archive must keep to, as a function that anyone can run on their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.storage.interfaces import Archive
from vibe_llms.testing.archives import contents, finding, messages
from vibe_llms.testing.archives.opened import Archives, Check

#: One by one, to run only some of them.
CHECKS: Sequence[Check] = (*messages.CHECKS, *finding.CHECKS, *contents.CHECKS)


async def check_archive(open_archive: Callable[[str], Awaitable[Archive]]) -> None:
    """Raise `AssertionError` where an archive breaks what conversations rely on.

    `open_archive` opens the archive of a user, in the same store each time, as another process
    would; it has nothing of the users whose names begin with `check-`. Most checks use two of them.
    They are closed in the end.
    """
    for check in CHECKS:
        user = check.__name__.removeprefix("_").replace("_", "-")
        archives = Archives(user, open_archive)
        await archives.open()
        try:
            await check(archives)
        finally:
            await archives.close()
