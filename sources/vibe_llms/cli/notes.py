"""Notes to the user; several that differ only in a name, such as a file's, are printed as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from vibe_llms.messages.events import Notice

#: Seconds that a note waits for others of its kind.
_SECONDS = 0.1
_NAMED = 3


class Notes:
    """Notes to print; between `begin` and `close`, similar notes that come together are merged."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._begun = False
        self._pending: list[Notice] = []

    def begin(self) -> None:
        """Hold notes back for a moment, or until something else is shown."""
        self._begun = True

    def add(self, notice: Notice) -> None:
        """Print a note, now or with others of its kind."""
        self._pending.append(notice)
        if not self._begun:
            self.flush()
        elif len(self._pending) == 1:
            try:
                asyncio.get_running_loop().call_later(_SECONDS, self.flush)
            except RuntimeError:
                self.flush()

    def flush(self) -> None:
        """Print the notes that are held back."""
        if self._pending:
            pending, self._pending = self._pending, []
            for text in merge_notices(pending):
                self._put(text)

    def close(self) -> None:
        """Print the notes that are held back, and stop holding notes."""
        self._begun = False
        self.flush()


def merge_notices(notices: Sequence[Notice]) -> Sequence[str]:
    """Merge notices of each kind into one text, in the order in which the kinds came.

    >>> files = [f"{letter}.docx" for letter in "abcdefg"]
    >>> merge_notices([Notice("x", f"{file} is given as text", name=file) for file in files])
    ['a.docx is given as text; the same for b.docx, c.docx, d.docx and 3 more']
    >>> merge_notices([Notice("x", "reasoning is left out"), Notice("x", "reasoning is left out")])
    ['reasoning is left out (2 times)']
    """
    kinds: dict[str, list[Notice]] = {}
    for notice in notices:
        # A name cannot contain this character.
        text = notice.text.replace(notice.name, "\0", 1) if notice.name else notice.text
        kinds.setdefault(text, []).append(notice)
    return [_describe(alike) for alike in kinds.values()]


def _describe(alike: Sequence[Notice]) -> str:
    text = alike[0].text
    names = [*dict.fromkeys(one.name for one in alike)][1:]
    if names:
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return f"{text}; the same for {', '.join(names[:_NAMED])}{more}"
    return f"{text} ({len(alike):,} times)" if len(alike) > 1 else text
