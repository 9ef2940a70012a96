"""Replies of Chat Completions, streamed and whole, translated to deltas.

Nothing of a reply is complete before a finish reason or `[DONE]`. OpenAI sends both. A server that
sends only the reason and then ends the body as HTTP wants it has said all there is, so its reply is
complete; a connection that breaks there has cut it. A server that sends only `[DONE]` is believed
too, unless a call is not whole.

Servers differ, and what is harmless is borne: calls whole in one delta, all with one index,
without or with repeated identities; arguments as objects; missing usage; unknown members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from vibe_llms.exceptions import ReplyCut
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.calls import CallQueue
from vibe_llms.providers.deltas import (
    CitationDelta,
    ContentClosed,
    ContentOpened,
    Delta,
    ReasoningDelta,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.http_errors import find_error
from vibe_llms.providers.openai.chat_completions.chunks import (
    CHUNK,
    PLAIN,
    Chunk,
    Function,
    MessageDelta,
    adapt,
    read_citation,
    read_usage,
)
from vibe_llms.providers.openai.errors import ERRORS
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import TextJoiner, parse_object
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.wire import DONE

#: After so many chunks that are not plain, a server is taken to send no others.
_MISSES = 16


class ChatCompletionsAssimilator(StreamAssimilator):
    """One reply of Chat Completions."""

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._joiner = TextJoiner()
        self._calls = CallQueue(provider, name_of)
        # What is open: text, refusal, or the member in which reasoning comes.
        self._open = ""
        self._opened = False
        self._refused = False
        self._called = False
        self._finish: str | None = None
        self._native_finish = ""
        self._misses = 0

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """The deltas of some more events of the stream."""
        for data in events:
            if self._open == "text" and self._misses < _MISSES:
                # Nearly every chunk is the next piece of the open text.
                try:
                    text = PLAIN.decode(data).choices[0].delta.content
                except (ValueError, RecursionError):
                    self._misses += 1
                else:
                    if self._joiner.waiting:
                        text = self._joiner.join(text)
                    if text:
                        yield TextDelta(text)
                    continue
            try:
                decoded = CHUNK.decode(data)
            except (ValueError, RecursionError) as error:
                if data == DONE:
                    yield from self._end()
                    return
                decoded = self._decode_leniently(data, error)
            yield from self._advance(decoded, data)

    def conclude(self) -> Iterator[Delta]:
        """The end, where a finish reason was seen; else `ReplyCut`."""
        if self.closed:
            return
        if rest := self._splitter.conclude():
            yield from self.read(self.refine(rest))
        if self._finish is not None and not self.closed:
            yield from self._end()
        yield from super().conclude()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """The deltas of a reply that was not streamed: each block in one step."""
        try:
            whole = CHUNK.decode(body)
        except (ValueError, RecursionError) as error:
            whole = self._decode_leniently(body, error)
        yield from self._advance(whole, body)
        if whole.choices is None:
            raise self.malformed(f"a reply without choices: {body[:80]!r}")
        if self._finish is None:
            raise self.malformed("a reply without a finish reason")
        yield from self._end()

    def _advance(self, chunk: Chunk, data: bytes) -> Iterator[Delta]:
        failed = chunk.error is not UNSET and bytes(chunk.error) != b"null"
        if failed or (chunk.choices is None and chunk.usage is None):
            self._raise_error(data)
        if not self._opened and chunk.choices:
            self._opened = True
            yield ReplyOpened(repair_text(chunk.id or ""))
        for choice in chunk.choices or ():
            if choice.index:
                continue
            delta = choice.delta or choice.message
            if delta is not None:
                yield from self._grow(delta)
            if choice.finish_reason:
                self._finish = choice.finish_reason
            if choice.native_finish_reason:
                self._native_finish = choice.native_finish_reason
        if chunk.usage is not None:
            yield UsageDelta(read_usage(chunk.usage))

    def _grow(self, delta: MessageDelta) -> Iterator[Delta]:
        if thought := delta.reasoning_content:
            yield from self._say("reasoning_content", thought)
        elif thought := delta.reasoning:
            yield from self._say("reasoning", thought)
        if delta.content:
            yield from self._say("text", delta.content)
        for annotation in delta.annotations or ():
            if annotation.url_citation is not None and self._open == "text":
                yield CitationDelta(read_citation(annotation.url_citation))
        if delta.refusal:
            self._refused = True
            yield from self._say("text", delta.refusal)
        if delta.tool_calls:
            yield from self._close_content()
            for call in delta.tool_calls:
                self._called = True
                function = call.function or Function()
                yield from self._calls.accept(
                    call.index,
                    call.id or "",
                    function.name or "",
                    function.arguments or "",
                    self._keep(call.extra_content),
                )

    def _say(self, member: str, text: str) -> Iterator[Delta]:
        if self._open != member:
            yield from self._close_content()
            yield from self._calls.close()
            self._open = member
            yield ContentOpened("text" if member == "text" else "reasoning")
        text = self._joiner.join(text)
        if text:
            yield TextDelta(text) if member == "text" else ReasoningDelta(text)

    def _close_content(self) -> Iterator[Delta]:
        member, self._open = self._open, ""
        if not member:
            return
        if rest := self._joiner.conclude():
            yield TextDelta(rest) if member == "text" else ReasoningDelta(rest)
        native = None if member == "text" else Raw(encode_json({"member": member}))
        yield ContentClosed(native)

    def _end(self) -> Iterator[Delta]:
        """The reply is complete, unless a call of it is not."""
        yield from self._close_content()
        closed = close_reply(
            self.provider,
            repair_text(self._finish or ""),
            native=repair_text(self._native_finish),
            called=self._called,
            refused=self._refused,
        )
        if self._finish is None and not self._calls.whole:
            raise ReplyCut(
                "the stream ended within the arguments of a call", provider=self.provider
            )
        yield from self._calls.conclude(cut=closed.cut)
        self.closed = True
        yield closed

    def _raise_error(self, data: bytes) -> None:
        try:
            error = find_error(parse_object(data))
        except ValueError:
            error = None
        if error is not None:
            raise ERRORS.produce(self.provider, error)

    def _decode_leniently(self, data: bytes, error: Exception) -> Chunk:
        """A chunk that the typed decoder refuses: lone surrogates, or a form of another server."""
        try:
            reported = parse_object(data)
        except ValueError:
            raise self.malformed(f"{data[:80]!r} is not JSON of a chunk ({error})") from error
        self._raise_error(data)
        try:
            return msgspec.convert(adapt(reported), Chunk, strict=False)
        except (ValueError, TypeError) as other:
            raise self.malformed(f"a chunk has not its promised form: {other}") from other

    def _keep(self, raw: Raw | UnsetType) -> Raw | None:
        if raw is UNSET or bytes(raw) == b"null":
            return None
        return Raw(b'{"extra_content":' + bytes(self.keep(raw)) + b"}")
