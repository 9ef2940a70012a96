"""Records which parts of a request the server leaves out.

A client of a vendor's interface sends what only that vendor can do, such as a web search. It is
left out, and named in the response header `X-Left-Out` and in the line that the log has of the
request, so that the rest of the request still works. See adr/0090.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The header of a response that names what was left out, such as `tool web_search`.
HEADER = b"x-left-out"
#: Most names in the header; the header says how many more there are.
_MOST_NAMES = 16
_MOST_CHARACTERS = 64
#: Characters that may be in a header and a line of the log.
_UNSAFE = re.compile(r"[^\w.:/-]", re.ASCII)


class Omissions:
    """Unique names of the parts of one request that were left out."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, kind: str, name: str) -> None:
        """Name something that is left out: its kind, such as `tool`, and its name or type."""
        self._names[f"{kind} {_UNSAFE.sub('?', name)[:_MOST_CHARACTERS]}"] = None

    def __bool__(self) -> bool:
        return bool(self._names)

    def __str__(self) -> str:
        """The names, separated by commas, in visible ASCII.

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
        """The header that names them; nothing if nothing was left out."""
        return ((HEADER, str(self).encode("ascii")),) if self._names else ()
