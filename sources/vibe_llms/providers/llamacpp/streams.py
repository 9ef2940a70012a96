"""Conversion of a reply to deltas: its text, with reasoning and calls as the template marks them.

llama.cpp produces tokens, whose bytes may end within a character. Marks show which text is
reasoning and which is a call (`templates.py`); text that may begin a mark is held back until it is
known. White space next to a mark belongs to the template and is left out.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    ContentClosed,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.llamacpp.templates import CALL, CALL_END, THINK, THINK_END
from vibe_llms.providers.repairs import escape, parse_object
from vibe_llms.providers.stop_reasons import close_reply

_AFTER = {CALL: "call", CALL_END: "text", THINK: "reasoning", THINK_END: "text"}
_BEGUN = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,')
_ARGUMENTS = re.compile(r'\s*"arguments"\s*:\s*')


class _Call(Struct):
    name: str
    arguments: Raw = Raw(b"{}")


_CALL = msgspec.json.Decoder(_Call)
_TEXT = msgspec.json.Decoder(str)


class StopFinder:
    """Filter that ends text before a stop word; a possible beginning of one is held back."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [word for word in words if word]
        self._held = ""
        self.found = ""

    def feed(self, text: str) -> str:
        """Add text and return the part that can be passed on, up to the word `found`."""
        text = self._held + text
        places = [(at, word) for word in self._words if (at := text.find(word)) >= 0]
        if places:
            at, self.found = min(places)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, word) for word in self._words), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def conclude(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held


class Decoder:
    """Decoder of tokens to text; a character that spans tokens is returned once it is complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        """Return the characters that are complete."""
        return self._decoder.decode(piece)

    def conclude(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)


class LlamacppAssimilator:
    """Converter of one reply to deltas.

    `calls` and `thinks` say which marks count, `thinking` whether it begins with reasoning.
    """

    def __init__(
        self,
        name_of: Callable[[str], str],
        *,
        provider: str = "llamacpp",
        calls: bool = False,
        thinks: bool = False,
        thinking: bool = False,
    ) -> None:
        self._name_of = name_of
        self._provider = provider
        self._calls = calls
        self._thinks = thinks
        self._mode = "reasoning" if thinking else "text"
        self._pending = ""
        # True while white space is skipped: next to a mark it belongs to the template.
        self._trim = thinking
        self._said = False
        self._called = False
        self._opened: re.Match[str] | None = None
        self.reasoning_tokens = 0
        self.tokens = 0

    def feed(self, text: str, tokens: int = 1) -> Iterator[Delta]:
        """Yield the deltas of more text with this number of tokens."""
        self.tokens += tokens
        if self._mode == "reasoning":
            self.reasoning_tokens += tokens
        self._pending += text
        while (mark := self._find_mark()) is not None:
            at, word = mark
            body, self._pending = self._pending[:at], self._pending[at + len(word) :]
            if word == CALL_END:
                yield from self._close_call(body)
            else:
                yield from self._say(body.rstrip())
                if self._mode == "reasoning":
                    yield ContentClosed()
            self._mode, self._trim = _AFTER[word], True
        if self._mode == "call":
            yield from self._open_call(self._pending)
            return
        keep = max((_overlap(self._pending, word) for word in self._marks()), default=0)
        safe = self._pending[: len(self._pending) - keep]
        if self._marks():
            safe = safe.rstrip()
        self._pending = self._pending[len(safe) :]
        yield from self._say(safe)

    def conclude(
        self, reason: str, input_tokens: int, kept: int, stop: str = ""
    ) -> Iterator[Delta]:
        """Yield the deltas of the end; `kept` of the `input_tokens` were already in the context."""
        native, rest = reason, self._pending
        self._pending = ""
        if self._mode == "call":
            yield from self._end_call(rest, cut=reason == "length")
        elif rest.strip() or not self._trim:
            yield from self._say(rest)
        yield UsageDelta(
            Usage(
                uncached_input_tokens=input_tokens - kept,
                cache_read_tokens=kept,
                output_tokens=self.tokens - self.reasoning_tokens,
                reasoning_tokens=self.reasoning_tokens,
            )
        )
        yield close_reply(self._provider, native, detail=stop, called=self._called)

    def _marks(self) -> Sequence[str]:
        match self._mode:
            case "call":
                return (CALL_END,)
            case "reasoning":
                return (THINK_END,)
            case _:
                # A reply reasons only at its beginning; later the mark is a word about it.
                begins = self._thinks and not self._said and not self._called
                return ((CALL,) if self._calls else ()) + ((THINK,) if begins else ())

    def _find_mark(self) -> tuple[int, str] | None:
        """Find the first mark that counts, and its position."""
        text = self._pending
        found: list[tuple[int, str]] = []
        for word in self._marks():
            at = text.find(word)
            while word == CALL_END and at >= 0 and _within_text(text[:at]):
                # It is part of an argument.
                at = text.find(word, at + 1)
            if at >= 0 and not (word == THINK and text[:at].strip()):
                found.append((at, word))
        return min(found, default=None)

    def _say(self, text: str) -> Iterator[Delta]:
        if self._trim:
            text = text.lstrip()
        if not text:
            return
        self._trim = False
        if self._mode == "reasoning":
            yield ReasoningDelta(text)
        else:
            self._said = True
            yield TextDelta(text)

    def _open_call(self, body: str) -> Iterator[Delta]:
        """Open a call as soon as its name is known."""
        if self._opened is None and (found := _BEGUN.match(body)) is not None:
            name = _read_name(found[1])
            if name:
                self._opened = found
                yield InvocationOpened(self._name_of(name))

    def _close_call(self, body: str) -> Iterator[Delta]:
        yield from self._open_call(body)
        call = _read_call(body)
        if self._opened is not None:
            # Invalid JSON is kept: the tool refuses it with a message for the model.
            raw = self._cut_arguments(body).strip().removesuffix("}")
            yield ArgumentsDelta(_text_of(call.arguments) if call else raw)
        elif call is not None:
            yield InvocationOpened(self._name_of(call.name))
            yield ArgumentsDelta(_text_of(call.arguments))
        else:
            self._said = True
            yield TextDelta(f"{CALL}{body}{CALL_END}")
            return
        self._called, self._opened = True, None
        yield InvocationClosed()

    def _cut_arguments(self, body: str) -> str:
        """Return the arguments received so far, for a call whose name is known."""
        assert self._opened is not None
        rest = body[self._opened.end() :]
        return rest[found.end() :] if (found := _ARGUMENTS.match(rest)) is not None else ""

    def _end_call(self, body: str, *, cut: bool) -> Iterator[Delta]:
        """End a reply within a call: complete except for its mark, cut off, or not a call."""
        if _read_call(body) is not None:
            yield from self._close_call(body)
        elif self._opened is not None:
            yield ArgumentsDelta(self._cut_arguments(body))
            if not cut:
                self._called = True
                yield InvocationClosed()
        else:
            yield TextDelta(f"{CALL}{body}")


def merge_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """Merge neighboring text deltas and neighboring reasoning deltas."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            merged[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            merged[-1] = ReasoningDelta(last.text + delta.text)
        else:
            merged.append(delta)
    return merged


def _overlap(text: str, word: str) -> int:
    """Return the number of characters at the end of a text that may begin a word."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0


def _within_text(body: str) -> bool:
    """Return True if JSON with this beginning is within a string."""
    return len(re.findall(r'(?<!\\)(?:\\\\)*"', body)) % 2 == 1


def _read_name(quoted: str) -> str | None:
    try:
        return repair_text(_TEXT.decode(quoted))
    except ValueError:
        return None


def _read_call(body: str) -> _Call | None:
    data = body.strip().encode("utf-8", "replace")
    try:
        call = _CALL.decode(data)
    except (ValueError, RecursionError):
        try:
            # The typed decoder refuses lone surrogates.
            value = parse_object(data)
        except ValueError:
            return None
        name = value.get("name")
        if not isinstance(name, str):
            return None
        call = _Call(repair_text(name), escape(value.get("arguments", {})))
    return call if call.name else None


def _text_of(arguments: Raw) -> str:
    raw = bytes(arguments)
    if raw == b"null":
        return "{}"
    # Some models write the object as a string.
    return repair_text(_TEXT.decode(raw)) if raw[:1] == b'"' else raw.decode("utf-8", "replace")
