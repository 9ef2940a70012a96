"""What comes over the wire, as deltas: a line of JSON for each step, and one for the end."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw, Struct

from vibe_llms import StopReason, Usage
from vibe_llms.exceptions import ReplyCut, ReplyMalformed
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReplyClosed,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.wire import EventTooLarge, LineSplitter

_ENDS = {"": StopReason.FINISHED, "words": StopReason.LENGTH, "use": StopReason.INVOCATIONS}


class _Line(Struct, rename={"arguments": "with"}):
    shout: str = ""
    use: str = ""
    arguments: Raw = Raw(b"{}")
    end: str | None = None
    heard: int = 0
    shouted: int = 0


class ShoutAssimilator:
    """One reply; made anew for every attempt."""

    def __init__(self, provider: str, names: Mapping[str, str]) -> None:
        self._provider = provider
        self._names = names
        self._splitter = LineSplitter()
        self._closed = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The steps that some more bytes make, wherever the network cut them."""
        try:
            lines = [msgspec.json.decode(each, type=_Line) for each in self._splitter.feed(chunk)]
        except (ValueError, EventTooLarge) as error:
            raise ReplyMalformed(
                f"what came is no line: {error}", provider=self._provider
            ) from error
        for line in lines:
            yield from self._advance(line)

    def conclude(self) -> Iterator[Delta]:
        """The end of the bytes: without the line that says so, the reply was cut."""
        if not self._closed:
            raise ReplyCut("the reply ended before its last line", provider=self._provider)
        yield from ()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """A reply that was not streamed; this server sends the same lines."""
        yield from self.feed(body)
        yield from self.conclude()

    def _advance(self, line: _Line) -> Iterator[Delta]:
        if line.use:
            yield InvocationOpened(self._names.get(line.use, line.use))
            yield ArgumentsDelta(bytes(line.arguments).decode())
            yield InvocationClosed()
        elif line.end is not None:
            self._closed = True
            yield UsageDelta(Usage(line.heard, output_tokens=line.shouted))
            yield ReplyClosed(_ENDS.get(line.end, line.end), native_reason=line.end)
        else:
            yield TextDelta(line.shout)
