"""Replies of Chat Completions, streamed and whole, translated to deltas.

A reply is complete only with a finish reason or `[DONE]`. OpenAI sends both. If a server sends only
the reason and ends the body as HTTP requires, the reply is complete; a broken connection cuts it.
With `[DONE]` alone, it is complete unless a call is not whole. In a row with `end = "close"`, the
end of the body suffices.

Harmless differences between servers are accepted: calls whole in one delta, all with one index,
without ids or with repeated ones; arguments as objects; missing usage; unknown members, and members
of other types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from vibe_llms.base.exceptions import ReplyCut
from vibe_llms.base.redaction import quote
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.calls import CallQueue
from vibe_llms.providers.content_filters import find_flags, read_prompt_filters
from vibe_llms.providers.deltas import (
    CitationDelta,
    ContentClosed,
    ContentOpened,
    Delta,
    InvocationClosed,
    ReasoningDelta,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.http_errors import find_error
from vibe_llms.providers.openai.chat_completions.chunks import (
    CHUNK,
    NO_RESULTS,
    PLAIN,
    ReceivedCall,
    ReceivedChunk,
    ReceivedDelta,
    ReceivedFunction,
    adapt,
    read_citation,
    read_usage,
)
from vibe_llms.providers.openai.chat_completions.reasoning_details import (
    merge_details,
    read_text,
)
from vibe_llms.providers.openai.errors import ERRORS
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.reasoning_tags import TagSplitter
from vibe_llms.providers.repairs import TextJoiner, is_object, parse_object, says_something
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.wire import DONE

#: Members in which servers send reasoning.
REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_NO_FUNCTION = ReceivedFunction()
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
#: Number of chunks that are not plain, after which the fast path is no longer tried.
_MISSES = 16
#: Number of different results of content filters that are remembered.
_MOST_RESULTS = 16


class ChatCompletionsAssimilator(StreamAssimilator):
    """Reader of one reply of Chat Completions.

    `tags` splits reasoning from the text of models that write it there. With `ends_by_close`, the
    end of the body is the end of the reply. `ending` is True once `[DONE]` has come.
    """

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self.tags: TagSplitter | None = None
        self.ends_by_close = False
        self.ending = False
        self._joiner = TextJoiner()
        self._calls = CallQueue(provider, name_of)
        # Open content: text, or the member in which reasoning comes.
        self._open = ""
        self._opened = False
        self._refused = False
        self._called = False
        self._finish: str | None = None
        self._native_finish = ""
        self._misses = 0
        # Members to send back with the message, stored with the content or call that closes next.
        self._details: list[Any] = []
        self._extra: Raw | None = None
        self._choice: int | None = None
        #: Results of content filters that were told; most texts have the same.
        self._results: set[bytes] = set()

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of the next events of the stream."""
        for data in events:
            if self._open == "text" and self._misses < _MISSES:
                # Fast path: nearly every chunk is the next piece of the open text.
                try:
                    choice = PLAIN.decode(data).choices[0]
                    results = choice.content_filter_results
                    flags = () if results is NO_RESULTS else self._find_flags(bytes(results))
                except (ValueError, RecursionError):
                    self._misses += 1
                else:
                    text = choice.delta.content
                    if self._joiner.waiting:
                        text = self._joiner.join(text)
                    if text:
                        yield TextDelta(text)
                    if flags:
                        yield from self.remark(("reply", flag) for flag in flags)
                    continue
            try:
                decoded = CHUNK.decode(data)
            except (ValueError, RecursionError) as error:
                if data == DONE:
                    self.ending = True
                    if self._finish is None:
                        # More events may follow.
                        continue
                    yield from self._end()
                    return
                decoded = self._decode_leniently(data, error)
            yield from self._advance(decoded, data)

    def conclude(self) -> Iterator[Delta]:
        """Yield the end of the reply, or raise `ReplyCut` if nothing marked it."""
        if self.closed:
            return
        if rest := self._splitter.conclude():
            yield from self.read(self.refine(rest))
        ended = self._finish is not None or self._native_finish or self.ending
        if not self.closed and (ended or (self.ends_by_close and not self._splitter.words)):
            yield from self._end()
        yield from super().conclude()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of an unstreamed reply, each block in one step."""
        if body.lstrip()[:1] != b"{":
            # The server sent a stream that was not requested, or an error in a list.
            yield from super().assimilate(body)
            return
        try:
            whole = CHUNK.decode(body)
        except (ValueError, RecursionError) as error:
            whole = self._decode_leniently(body, error)
        yield from self._advance(whole, body)
        if whole.choices is None:
            raise self.malformed(f"a reply without choices: {quote(body)}")
        if self._finish is None and not self._native_finish:
            raise self.malformed("a reply without a finish reason")
        yield from self._end()

    def _find_flags(self, results: bytes) -> Sequence[str]:
        """Return what results of content filters flag, unless the same results came before."""
        if results in self._results:
            return ()
        if len(self._results) < _MOST_RESULTS:
            self._results.add(results)
        return find_flags(msgspec.json.decode(results))

    def _advance(self, chunk: ReceivedChunk, data: bytes) -> Iterator[Delta]:
        if says_something(chunk.error) or not chunk.choices:
            self._raise_error(data)
        if not self._opened and chunk.choices:
            self._opened = True
            yield ReplyOpened(repair_text(chunk.id or ""))
        yield from self.remark(
            read_prompt_filters(chunk.prompt_filter_results or chunk.prompt_annotations)
        )
        for choice in chunk.choices or ():
            if self._choice is None:
                self._choice = choice.index
            elif choice.index is not None and choice.index != self._choice:
                continue
            delta = choice.delta or choice.message
            for error in (choice.error, delta.error if delta is not None else UNSET):
                if says_something(error):
                    self._raise_error(b'{"error":' + bytes(error) + b"}")
            if delta is not None:
                yield from self._grow(delta)
            if choice.text and (delta is None or not delta.content):
                yield from self._say_tagged(choice.text)
            if results := choice.content_filter_results or choice.content_filter_result:
                yield from self.remark(("reply", flag) for flag in find_flags(results))
            if choice.finish_reason:
                self._finish = choice.finish_reason
            if choice.native_finish_reason:
                self._native_finish = choice.native_finish_reason
        if chunk.usage is not None:
            yield UsageDelta(read_usage(chunk.usage))

    def _grow(self, delta: ReceivedDelta) -> Iterator[Delta]:
        details = [msgspec.json.decode(self.keep(raw)) for raw in delta.reasoning_details or ()]
        for member in REASONING:
            if thought := getattr(delta, member):
                yield from self._say(member, thought)
                break
        else:
            if thought := read_text(details):
                yield from self._say("reasoning_details", thought)
        self._details += details
        if says_something(delta.extra_content):
            self._extra = self.keep(delta.extra_content)
        if text := delta.content or delta.text:
            yield from self._say_tagged(text)
        for annotation in delta.annotations or ():
            if annotation.url_citation is not None and self._open == "text":
                yield CitationDelta(read_citation(annotation.url_citation))
        if delta.refusal:
            self._refused = True
            yield from self._say("text", delta.refusal)
        calls: Sequence[ReceivedCall] = delta.tool_calls or ()
        if not calls and delta.function_call is not None:
            # No other call has this index.
            yield from self._call("function_call", ReceivedCall(function=delta.function_call))
        if len(calls) > 1:
            calls = _tell_apart(calls)
        for call in calls:
            function = call.function or _NO_FUNCTION
            yield from self._call(function.index if call.index is None else call.index, call)

    def _call(self, index: int | str | None, call: ReceivedCall) -> Iterator[Delta]:
        function = call.function or _NO_FUNCTION
        yield from self._flush_tags()
        yield from self._close_content()
        self._called = True
        yield from self._seal(
            self._calls.accept(
                index,
                call.id or "",
                function.name or call.name or "",
                function.arguments or call.arguments or "",
                self._keep(call.extra_content),
            )
        )

    def _say_tagged(self, text: str) -> Iterator[Delta]:
        """Yield text, split from the reasoning that the model writes into it."""
        if self.tags is not None:
            thought, text = self.tags.feed(text)
            if thought:
                yield from self._say(f"<{self.tags.tag}>", thought)
        if text:
            yield from self._say("text", text)

    def _flush_tags(self) -> Iterator[Delta]:
        """Yield the text that the tag splitter held back, at the end or before a call."""
        if self.tags is None:
            return
        thought, text = self.tags.conclude()
        if thought:
            yield from self._say(f"<{self.tags.tag}>", thought)
        if text:
            yield from self._say("text", text)

    def _say(self, member: str, text: str) -> Iterator[Delta]:
        if self._open != member:
            yield from self._close_content()
            yield from self._seal(self._calls.close())
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
        kept = {} if member == "text" else {"member": member}
        yield ContentClosed(self._pack(kept))

    def _seal(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        """Add the members to send back with the message to a call that closes."""
        for delta in deltas:
            if type(delta) is InvocationClosed and (self._details or self._extra is not None):
                kept = {} if delta.native is None else _MEMBERS.decode(delta.native)
                delta = InvocationClosed(self._pack(kept))  # noqa: PLW2901
            yield delta

    def _pack(self, kept: dict[str, Any]) -> Raw | None:
        message: dict[str, Any] = {}
        if self._details:
            message["reasoning_details"] = merge_details(self._details)
        if self._extra is not None:
            message["extra_content"] = self._extra
        self._details, self._extra = [], None
        kept = {**kept, "message": message} if message else kept
        return Raw(encode_json(kept)) if kept else None

    def _end(self) -> Iterator[Delta]:
        """Complete the reply; raise `ReplyCut` if a call is incomplete."""
        yield from self._flush_tags()
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
        yield from self._seal(self._calls.conclude(cut=closed.cut))
        if not self._calls.waiting and (native := self._pack({})) is not None:
            yield ContentOpened("reasoning")
            yield ContentClosed(native)
        self.closed = True
        yield self.explain(closed)

    def _raise_error(self, data: bytes) -> None:
        try:
            error = find_error(parse_object(data))
        except ValueError:
            error = None
        if error is not None:
            raise self.errors.produce(self.provider, error)

    def _decode_leniently(self, data: bytes, error: Exception) -> ReceivedChunk:
        """Decode a chunk that the typed decoder refuses, such as one with lone surrogates."""
        try:
            reported = parse_object(data)
        except ValueError:
            raise self.malformed(f"{quote(data)} is not the JSON of a chunk ({error})") from error
        self._raise_error(data)
        try:
            return msgspec.convert(adapt(reported), ReceivedChunk, strict=False)
        except (ValueError, TypeError) as other:
            raise self.malformed(f"a chunk does not have the expected form: {other}") from other

    def _keep(self, raw: Raw | UnsetType) -> Raw | None:
        if not says_something(raw):
            return None
        return Raw(b'{"extra_content":' + bytes(self.keep(raw)) + b"}")


def _tell_apart(calls: Sequence[ReceivedCall]) -> Sequence[ReceivedCall]:
    """Give each whole call of a delta an index if they share one and have no ids.

    Otherwise two equal calls would look like one call sent twice.
    """
    indices = set()
    for call in calls:
        function = call.function or _NO_FUNCTION
        indices.add(function.index if call.index is None else call.index)
        named = (function.name or call.name) and not call.id
        if not named or not is_object(function.arguments or call.arguments or "{}"):
            return calls
    if len(indices) > 1:
        return calls
    return [msgspec.structs.replace(call, index=place) for place, call in enumerate(calls)]
