"""The calls of a turn as stages on stderr: name, arguments, progress, result and time.

At a terminal a stage is folded: while it runs it is the line of waiting, and then one line.
Elsewhere each of its news is a line of its own. Unfolded, arguments and results are shown whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from vibe_llms.cli.layout import cut
from vibe_llms.cli.terminal import one_line
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import Content, TextualContent

_SHORT = 200
_SHORT_ARGUMENTS = 60


class Stages:
    """`tell` prints a line, or several; `wait` says what is waited for."""

    def __init__(
        self,
        tell: Callable[[str], None],
        wait: Callable[[str], None],
        *,
        folded: bool = False,
        whole: bool = False,
    ) -> None:
        self._tell = tell
        self._wait = wait
        self._folded = folded and not whole
        self._whole = whole
        self._running: dict[str, tuple[InvocationCanister, float, str]] = {}

    def begin(self, invocation: InvocationCanister) -> None:
        """A call begins."""
        self._running[invocation.identity] = (invocation, time.monotonic(), "")
        if not self._folded:
            self._tell(f"→ {invocation.name} {self._draw_arguments(invocation)}")
        self._show()

    def report(
        self, invocation: InvocationCanister, text: str, done: float | None, total: float | None
    ) -> None:
        """A call tells how far it is."""
        words = " ".join(part for part in (_draw_share(done, total), one_line(text)) if part)
        if self._folded:
            begun = self._running.get(invocation.identity)
            if begun is not None:
                self._running[invocation.identity] = (*begun[:2], words)
        else:
            self._tell(f"· {invocation.name}: {words if self._whole else shorten(words)}")
        self._show()

    def end(self, invocation: InvocationCanister, result: ResultCanister) -> None:
        """A call has its result."""
        begun = self._running.pop(invocation.identity, None)
        took = f" ({time.monotonic() - begun[1]:.1f}s)" if begun is not None else ""
        text = result.display or _plain(result.contents)
        drawn = text if self._whole else shorten(text)
        if self._folded:
            call = f"{invocation.name} {shorten(invocation.arguments, _SHORT_ARGUMENTS)}"
            self._tell(f"{'✗' if result.failed else '✓'} {call} → {drawn}{took}")
        else:
            self._tell(f"{'✗' if result.failed else '←'} {invocation.name}: {drawn}{took}")
        self._show()

    def _show(self) -> None:
        """Say what is waited for now."""
        running = list(self._running.values())
        match running:
            case []:
                self._wait("waiting for the answer")
            case [(invocation, _, words)]:
                call = f"{invocation.name} {shorten(invocation.arguments, _SHORT_ARGUMENTS)}"
                self._wait(f"running {call}" + (f" · {words}" if words else ""))
            case _:
                names = ", ".join(invocation.name for invocation, _, _ in running)
                self._wait(f"running {len(running)} tools: {names}")

    def _draw_arguments(self, invocation: InvocationCanister) -> str:
        if not self._whole:
            return shorten(invocation.arguments)
        parsed = invocation.parsed
        if parsed is None:
            return invocation.arguments
        return json.dumps(parsed, ensure_ascii=False, indent=2)


def shorten(text: str, length: int = _SHORT) -> str:
    """A text in one line, cut where it is long.

    >>> shorten("some words", 6)
    'some …'
    """
    return cut(one_line(text), length)


def _draw_share(done: float | None, total: float | None) -> str:
    if done is None:
        return ""
    return f"{done:g}/{total:g}" if total else f"{done:g}"


def _plain(contents: Sequence[Content]) -> str:
    texts = [c.data for c in contents if isinstance(c, TextualContent) and isinstance(c.data, str)]
    return "".join(texts) or f"({len(contents)} contents)"
