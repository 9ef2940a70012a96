"""`Omissions`: parts of a request that the server leaves out.

Clients of a vendor's API send features that only that vendor has, such as web search. They are left
out, and named in the response header `X-Left-Out` and in the log line of the request, so that the
rest of the request still works. See adr/0090.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Response header that names the omissions, such as `tool web_search`.
HEADER = b"x-left-out"
#: Maximum number of names in the header, which then ends with the number of further ones.
_MOST_NAMES = 16
_MOST_CHARACTERS = 64
#: Characters not allowed in the header and the log.
_UNSAFE = re.compile(r"[^\w.:/-]", re.ASCII)


class Omissions:
    """Unique names of the omitted parts of one request."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, kind: str, name: str) -> None:
        """Add an omission: its kind, such as `tool`, and its name or type."""
        self._names[f"{kind} {_UNSAFE.sub('?', name)[:_MOST_CHARACTERS]}"] = None

    def __bool__(self) -> bool:
        return bool(self._names)

    def __str__(self) -> str:
        """Return the names, separated by commas, in visible ASCII.

        >>> omissions = Omissions()
        >>> omissions.add("tool", "web_search")
        >>> omissions.add("item", "a type")
        >>> str(omissions)
        'tool web_search, item a?type'
        """
        names = [*self._names]
        more = len(names) - _MOST_NAMES
        return ", ".join([*names[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])])

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Response header that names the omissions, or nothing if there are none."""
        return ((HEADER, str(self).encode("ascii")),) if self._names else ()
