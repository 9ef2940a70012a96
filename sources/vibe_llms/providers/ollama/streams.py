"""Ollama's replies, streamed and whole, translated to deltas.

A stream has a line of JSON for each step; a whole reply is a single such line. Calls arrive whole.
A reply is complete with `done`; an `error` may come in any line, even with a status of success.
Unknown members are skipped, except in a call, which keeps them.

Source: `ChatResponse` in `api/types.go` of the server, and the package ollama 0.6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Raw, Struct

from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.ollama.errors import ERRORS
from vibe_llms.providers.pieces import compact, encode_json
from vibe_llms.providers.repairs import (
    TextJoiner,
    convert_members,
    escape,
    parse_object,
    says_something,
)
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.usages import subtract
from vibe_llms.providers.wire import DONE, LineSplitter


class _Message(Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[dict[str, Raw]] | None = None


class _Line(Struct):
    message: _Message | None = None
    done: bool | None = False
    done_reason: str | None = None
    # msgspec decodes only null as `Raw | None`.
    error: Raw = Raw()
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    eval_count: int | None = None


class _Function(Struct):
    name: str | None = None
    arguments: Raw = Raw(b"null")
    # Name of the arguments on some other servers.
    parameters: Raw = Raw(b"null")


_LINE = msgspec.json.Decoder(_Line)
_FUNCTION = msgspec.json.Decoder(_Function)
_TEXT = msgspec.json.Decoder(str)
_NUMBER = msgspec.json.Decoder(int)
_KNOWN = frozenset({"id", "type", "function", "name", "arguments", "parameters"})

#: Check at the end of a reply, given the prompt tokens read and those from the cache; raises an
#: error if the prompt was cut.
Examiner = Callable[[int | None, int | None], None]


class OllamaAssimilator(StreamAssimilator):
    """Reader of one reply from Ollama."""

    splitter = LineSplitter
    errors = ERRORS

    def __init__(
        self,
        provider: str,
        name_of: Callable[[str], str],
        examine: Examiner | None = None,
        model: str = "",
    ) -> None:
        super().__init__(provider, name_of)
        self._examine = examine
        self._model = model
        self._joiner = TextJoiner()
        # Kind of the text in the joiner.
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._called = False

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of the next lines of the stream."""
        for data in events:
            if data == DONE:
                continue
            try:
                line = _LINE.decode(data)
            except (ValueError, RecursionError) as error:
                yield from self._advance(self._decode_leniently(data, error))
                if self.closed:
                    return
                continue
            message = line.message
            if (
                message is not None
                and message.content
                and not message.thinking
                and message.tool_calls is None
                and not line.done
                and not self._joiner.waiting
                and not line.error
            ):
                # Fast path for nearly every line; the decoder gives no surrogates.
                yield TextDelta(message.content)
                continue
            yield from self._advance(line)
            if self.closed:
                return

    def conclude(self) -> Iterator[Delta]:
        """Raise `ReplyCut` if `done` has not been seen."""
        if not self.closed:
            # The last line may lack its line break.
            for data in self.refine(self._splitter.conclude()):
                yield from self._finish(data)
        yield from super().conclude()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of a whole reply, or of a stream in one piece."""
        try:
            line = _LINE.decode(body)
        except (ValueError, RecursionError):
            yield from self.feed(body)
            yield from self.conclude()
            return
        if not line.done and not says_something(line.error):
            raise self.malformed("a complete reply without done = true")
        yield from self._advance(line)

    def _finish(self, data: bytes) -> Iterator[Delta]:
        try:
            line = _LINE.decode(data)
        except (ValueError, RecursionError):
            return
        if line.done or says_something(line.error):
            yield from self._advance(line)

    def _advance(self, line: _Line) -> Iterator[Delta]:
        if says_something(line.error):
            error = self.errors.parse(b'{"error":' + bytes(line.error) + b"}")
            raise self.errors.produce(self.provider, error, model=self._model)
        message = line.message or _Message()
        if message.thinking:
            yield from self._say(message.thinking, ReasoningDelta)
        if message.content:
            yield from self._say(message.content, TextDelta)
        for call in message.tool_calls or ():
            yield from self._flush()
            yield from self._call(call)
        if line.done:
            yield from self._flush()
            yield from self._close(line)

    def _say(self, text: str, kind: type[TextDelta | ReasoningDelta]) -> Iterator[Delta]:
        if kind is not self._kind:
            yield from self._flush()
            self._kind = kind
        if text := self._joiner.join(text):
            yield kind(text)

    def _flush(self) -> Iterator[Delta]:
        if rest := self._joiner.conclude():
            yield self._kind(rest)

    def _call(self, call: dict[str, Raw]) -> Iterator[Delta]:
        # Servers that imitate Ollama may omit the object around a function.
        found = call.get("function", Raw(b"null"))
        inner = found if bytes(found) != b"null" else Raw(encode_json(call))
        try:
            function = _FUNCTION.decode(inner)
            identity = _read_identity(call.get("id", Raw(b"null")))
            given = function.arguments
            given = given if bytes(given) != b"null" else function.parameters
            arguments = self._read_arguments(given)
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"an invalid call ({error})") from error
        if not function.name:
            raise self.malformed("a call without a tool name")
        extra = {name: value for name, value in call.items() if name not in _KNOWN}
        self._called = True
        yield InvocationOpened(self.name_of(repair_text(function.name)), repair_text(identity))
        yield ArgumentsDelta(arguments)
        yield InvocationClosed(Raw(encode_json(extra)) if extra else None)

    def _read_arguments(self, raw: Raw) -> str:
        data = compact(bytes(raw))
        if data == b"null":
            return "{}"
        # Servers that imitate Ollama may send the arguments as text.
        return repair_text(_TEXT.decode(data)) if data[:1] == b'"' else data.decode()

    def _close(self, line: _Line) -> Iterator[Delta]:
        reported, cached = line.prompt_eval_count, line.prompt_eval_cached_count
        read = reported or 0
        kept = min(cached or 0, max(read, 0))
        yield UsageDelta(
            Usage(
                uncached_input_tokens=subtract(read, kept),
                cache_read_tokens=kept,
                output_tokens=line.eval_count or 0,
            )
        )
        if self._examine is not None:
            self._examine(reported, cached)
        native = repair_text(line.done_reason or "")
        self.closed = True
        yield close_reply(self.provider, native, called=self._called)

    def _decode_leniently(self, data: bytes, error: Exception) -> _Line:
        """Decode a line that the typed decoder refuses, such as one with lone surrogates."""
        try:
            value = parse_object(data)
        except ValueError:
            raise self.malformed(f"{quote(data)} is not a line of a reply ({error})") from error
        message = value.get("message")
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            message["tool_calls"] = [calls] if isinstance(calls, dict) and calls else calls
        if not _says_what_it_may(message):
            raise self.malformed(f"{quote(data)} is not a line of a reply ({error})")
        if isinstance(message, dict):
            message["tool_calls"] = [
                {name: escape(part) for name, part in call.items()}
                for call in message["tool_calls"] or ()
            ]
        try:
            return convert_members(value, _Line)
        except (ValueError, TypeError) as other:
            raise self.malformed(f"a line does not have the expected form: {other}") from other


def _says_what_it_may(message: object) -> bool:
    """Return True if decoding loses no part of a message: texts are texts, calls are objects."""
    if not isinstance(message, dict):
        return message is None
    texts = (message.get("content"), message.get("thinking"))
    calls = message["tool_calls"]
    return all(isinstance(text, str | None) for text in texts) and (
        calls is None or (isinstance(calls, list) and all(isinstance(one, dict) for one in calls))
    )


def _read_identity(raw: Raw) -> str:
    data = bytes(raw)
    if data == b"null":
        return ""
    return _TEXT.decode(data) if data[:1] == b'"' else str(_NUMBER.decode(data))
