"""Parses a reply under the contract: text is shown as it arrives, calls come at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from vibe_llms.providers.contract.markers import (
    ARGUMENTS,
    CALLS,
    FINALS,
    OPEN,
    PROSE,
    read_beginning,
)
from vibe_llms.providers.contract.objects import (
    Answer,
    Call,
    FormBroken,
    FormForeign,
    IsKnown,
    find_name,
    find_rest,
    read_items,
    skip_marks,
)
from vibe_llms.providers.repairs import TextJoiner

_PIECE = re.compile(r'[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]|\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])')
# The quote that ends a content, which models do not always escape within it.
_END = re.compile(r'"\s*(?:\}|,\s*"[^"\\]{0,40}"\s*:)')
_PART_OF_AN_END = re.compile(r'"\s*(?:,\s*(?:"[^"\\]{0,40}(?:"\s*)?)?)?')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", '"': '"', "\\": "\\"}
_MENTION = re.compile(r'"type"\s*:\s*"tool_call"')
_ATTEMPT = re.compile(rf"\b(?:{'|'.join((*FINALS, *CALLS, *ARGUMENTS))})\b", re.IGNORECASE)
_QUOTED = 80


class Outcome(Struct, frozen=True):
    """The outcome of a complete reply.

    `text` is still to be shown, `calls` are to be made. `problem` says how the reply breaks the
    form; then `text` is the whole reply. `prose` is true if text was shown as it arrived, and
    `remark` is a message for the user.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    problem: str = ""
    prose: bool = False
    remark: str = ""


class Reading:
    """Reads one reply, piece by piece."""

    def __init__(self, is_known: IsKnown) -> None:
        self._knows = is_known
        self._raw: list[str] = []
        self._open = ""
        self._state = "open"
        self._content = _Content()

    @property
    def raw(self) -> str:
        """The whole reply, unchanged."""
        return "".join(self._raw)

    @property
    def severed(self) -> str | None:
        """The tool whose call would be lost if the reply ended here; empty if it is not known."""
        if self._state not in ("form", "content"):
            return None
        hidden = self.raw if self._state == "form" else self._content.rest
        return find_name(hidden) or ("" if _MENTION.search(hidden) else None)

    def feed(self, text: str) -> str:
        """The part of more text that can be shown."""
        self._raw.append(text)
        if self._state == "prose":
            return text
        match self._state:
            case "content":
                return self._content.feed(text)
            case "open":
                self._open += text
                return self._decide()
            case _:
                return ""

    def conclude(self) -> Outcome:
        """The outcome of the complete reply; only now are there calls."""
        match self._state:
            case "prose":
                return Outcome(prose=True, remark=self._remark_on_prose())
            case "content":
                said = self._content.conclude()
                return self._conclude_content(said)
            case "open":
                return Outcome(self._open, prose=True)
            case _:
                return self._conclude_form()

    def _decide(self) -> str:
        beginning = read_beginning(self._open)
        if beginning is OPEN:
            return ""
        text, self._open = self._open, ""
        self._state = beginning.kind
        if beginning is PROSE:
            return text
        return self._content.feed(text[beginning.start :]) if beginning.kind == "content" else ""

    def _conclude_form(self) -> Outcome:
        raw = self.raw
        try:
            text, calls, late = _settle(read_items(raw, self._knows))
        except FormForeign:
            return Outcome(raw, prose=True)
        except FormBroken as error:
            if not _ATTEMPT.search(raw):
                return Outcome(raw, prose=True)
            return Outcome(raw, problem=str(error))
        return Outcome(text, calls, remark=_remark_on_rest(late))

    def _conclude_content(self, said: str) -> Outcome:
        """The content is already shown; only more objects may follow it."""
        rest = self._content.rest
        end = find_rest(rest)
        if end is None:
            return Outcome(said)
        try:
            # All of it, to the letter: in an answer that is read leniently a call may be quoted.
            items = read_items(self.raw, self._knows)
        except (FormForeign, FormBroken):
            return Outcome(said, remark=_remark_on_rest(rest[end:]))
        text, calls, late = _settle(items[1:])
        return Outcome(f"{said}\n{text}" if text else said, calls, remark=_remark_on_rest(late))

    def _remark_on_prose(self) -> str:
        if not _MENTION.search(self.raw):
            return ""
        return (
            "the model wrote a tool call among other words; it is not run, since only a reply that "
            "is nothing else is a call"
        )


class _Content:
    """The content of a final answer, a growing JSON string, read leniently."""

    def __init__(self) -> None:
        self.rest = ""
        self._ended = False
        self._carry = ""
        self._joiner = TextJoiner()

    def feed(self, text: str) -> str:
        if self._ended:
            self.rest += text
            return ""
        text, self._carry = self._carry + text, ""
        shown: list[str] = []
        position = 0
        while position < len(text):
            if text[position] == '"':
                if found := _END.match(text, position):
                    self._ended = True
                    self.rest = text[position + 1 :]
                    break
                if _PART_OF_AN_END.fullmatch(text, position):
                    self._carry = text[position:]
                    break
                shown.append('"')
                position += 1
            elif found := _PIECE.match(text, position):
                shown.append(_unescape(found[0]))
                position = found.end()
            else:
                self._carry = text[position:]
                break
        return self._joiner.join("".join(shown))

    def conclude(self) -> str:
        """The rest, which can only be half a character or escape."""
        return self._joiner.conclude()


def _unescape(piece: str) -> str:
    if piece[0] != "\\" or len(piece) == 1:
        return piece
    if piece[1] == "u":
        return chr(int(piece[2:], 16)) if len(piece) > 2 else piece
    # What is no escape of JSON stays as it is: much of it is TeX.
    return _ESCAPES.get(piece[1], piece)


def _settle(items: Sequence[Answer | Call]) -> tuple[str, Sequence[Call], str]:
    """The text, the calls, and the text that comes too early: after calls without results."""
    calls = tuple(item for item in items if isinstance(item, Call))
    first = next((n for n, item in enumerate(items) if isinstance(item, Call)), len(items))
    said = [item.text for item in items[:first] if isinstance(item, Answer)]
    late = [item.text for item in items[first:] if isinstance(item, Answer)]
    return "\n".join(said), calls, "\n".join(late)


def _remark_on_rest(rest: str) -> str:
    rest = rest.lstrip("}")
    short = rest[skip_marks(rest) :].strip()
    if not short:
        return ""
    short = short if len(short) <= _QUOTED else short[:_QUOTED] + "…"
    return f"what the model wrote after it is left out: {short!r}"
