"""Tool calls of a streamed reply, one after another, even if their pieces are mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Raw

from vibe_llms.base.exceptions import ReplyMalformed
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.deltas import ArgumentsDelta, Delta, InvocationClosed, InvocationOpened
from vibe_llms.providers.repairs import TextJoiner, is_object


class _Call:
    def __init__(self, index: int | str | None, identity: str, extra: Raw | None) -> None:
        self.index, self.identity, self.extra = index, identity, extra
        self.name = ""
        self.pieces: list[str] = []
        self.joiner = TextJoiner()
        self.opened = False
        self.sent = 0

    @property
    def whole(self) -> bool:
        """True if the arguments are complete, or none have arrived."""
        return self.stated or not any(map(str.strip, self.pieces))

    @property
    def stated(self) -> bool:
        """True if the arguments have arrived and are complete."""
        last = next((piece for piece in reversed(self.pieces) if piece.strip()), "")
        # The cheap check comes first: most pieces do not end an object.
        return last.rstrip()[-1:] in ("}", '"') and is_object("".join(self.pieces))


class CallQueue:
    """Queue that turns pieces of calls into the deltas of one call after another.

    A piece belongs to the call with its index, unless it can only begin a new one: some servers
    give all calls the same index, or none. The first incomplete call is passed on as it arrives.
    Later calls wait, because a reply is passed on in order.
    """

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        self._provider = provider
        self._name_of = name_of
        self._waiting: list[_Call] = []
        self._done: dict[int | str | None, _Call] = {}

    @property
    def waiting(self) -> bool:
        """True if a call has begun and not ended."""
        return bool(self._waiting)

    @property
    def whole(self) -> bool:
        """True if no call has incomplete arguments."""
        return all(call.whole for call in self._waiting)

    def accept(
        self,
        index: int | str | None,
        identity: str,
        name: str,
        arguments: str,
        extra: Raw | None = None,
    ) -> Iterator[Delta]:
        """Add a piece of a call, and yield the deltas that can be passed on."""
        identity, name = repair_text(identity), repair_text(name)
        call = self._find(index, identity, name, arguments)
        if call is None:
            return
        call.identity = call.identity or identity
        call.extra = call.extra or extra
        if name and not call.opened and not call.pieces and name != call.name:
            call.name += name
        if arguments and (text := call.joiner.join(arguments)):
            call.pieces.append(text)
        yield from self._advance()

    def close(self) -> Iterator[Delta]:
        """End the open calls, because something else begins."""
        while self._waiting:
            yield from self._finish(self._waiting[0])

    def conclude(self, *, cut: bool) -> Iterator[Delta]:
        """End the calls with the reply; if it was `cut`, the last call may be incomplete."""
        while len(self._waiting) > 1:
            yield from self._finish(self._waiting[0])
        if self._waiting:
            (call,) = self._waiting
            if cut and not call.stated:
                # It stays open: the accumulator marks it as severed.
                if call.name:
                    yield from self._open(call)
                    yield from self._flush(call)
            else:
                yield from self._finish(call)

    def _find(
        self, index: int | str | None, identity: str, name: str, arguments: str
    ) -> _Call | None:
        """Find or add the call of a piece; return None if the piece only repeats one."""
        known = self._find_known(index, identity, name)
        if known is None and not (name or identity or arguments.strip()):
            return None
        if known is not None:
            other = identity and known.identity and identity != known.identity
            again = name and known.name and known.pieces and known.whole
            if not (other and name) and not again:
                if known in self._waiting:
                    return known
                if arguments.strip():
                    raise ReplyMalformed(
                        f"more arguments came for the call of {known.name!r}, which was complete",
                        provider=self._provider,
                    )
                return None
            repeats = bool(identity) and not arguments.strip()
            if not other and name == known.name and (repeats or arguments == "".join(known.pieces)):
                return None
        call = _Call(index, identity, None)
        if known is not None and known in self._waiting:
            # From now on, this index is the new call's.
            known.index = -1 - len(self._waiting)
        self._waiting.append(call)
        return call

    def _find_known(self, index: int | str | None, identity: str, name: str) -> _Call | None:
        """Find the call of a piece by its index; if it has none, by identity, or the last one."""
        known = next((call for call in self._waiting if call.index == index), None)
        known = known or self._done.get(index)
        if known is not None and (index is not None or name or not identity):
            return known
        if index is None and identity:
            calls = (*reversed(self._waiting), *self._done.values())
            same = next((call for call in calls if call.identity == identity), None)
            if same is not None:
                return same
        last = self._waiting[-1] if self._waiting else None
        # A piece without a name continues the open call, with any index.
        if last is not None and (not name or (index is None and name == last.name)):
            unknown = index is None or not (identity or (last.pieces and last.whole))
            return last if unknown else known
        return known

    def _advance(self) -> Iterator[Delta]:
        while len(self._waiting) > 1 and self._waiting[0].stated:
            yield from self._finish(self._waiting[0])
        call = self._waiting[0]
        if call.pieces and call.name:
            yield from self._open(call)
            yield from self._flush(call)

    def _open(self, call: _Call) -> Iterator[Delta]:
        if call.opened:
            return
        if not call.name:
            raise ReplyMalformed("a call without a tool name", provider=self._provider)
        call.opened = True
        yield InvocationOpened(self._name_of(call.name), call.identity)

    def _flush(self, call: _Call) -> Iterator[Delta]:
        for text in call.pieces[call.sent :]:
            yield ArgumentsDelta(text)
        call.sent = len(call.pieces)

    def _finish(self, call: _Call) -> Iterator[Delta]:
        if rest := call.joiner.conclude():
            call.pieces.append(rest)
        yield from self._open(call)
        yield from self._flush(call)
        self._waiting.remove(call)
        self._done[call.index] = call
        yield InvocationClosed(call.extra)
