"""Parser for replies under the contract: text is shown as it arrives, calls come at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from vibe_llms.providers.contract.markers import (
    ARGUMENTS,
    CALLS,
    FINALS,
    NESTED,
    OPEN,
    PROSE,
    IsKnown,
    read_beginning,
)
from vibe_llms.providers.contract.objects import (
    FinalAnswer,
    FormBroken,
    FormForeign,
    WrittenCall,
    find_name,
    find_rest,
    find_tool_as_type,
    read_items,
    skip_marks,
)
from vibe_llms.providers.repairs import TextJoiner

_PIECE = re.compile(r'[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]|\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])')
# The quote that ends the content. Models do not always escape quotes within it.
_END = re.compile(r'"\s*(?:\}|,\s*"[^"\\]{0,40}"\s*:)')
_PART_OF_AN_END = re.compile(r'"\s*(?:,\s*(?:"[^"\\]{0,40}(?:"\s*)?)?)?')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", '"': '"', "\\": "\\"}
_MENTION = re.compile(r'"type"\s*:\s*"tool_call"|"tool_calls"\s*:\s*\[')
_ATTEMPT = re.compile(rf"\b(?:{'|'.join((*FINALS, *CALLS, *ARGUMENTS, *NESTED))})\b", re.IGNORECASE)
_QUOTED = 80


class ReplyOutcome(Struct, frozen=True):
    """Result of parsing a complete reply.

    `text` is still to be shown, and `calls` are to be made. If the reply breaks the form, `problem`
    says how, and `text` is the whole reply. `prose` is True if the reply is plain text. `notice` is
    a message for the user.
    """

    text: str = ""
    calls: Sequence[WrittenCall] = ()
    problem: str = ""
    prose: bool = False
    notice: str = ""


class ReplyReading:
    """Incremental parser of one reply."""

    def __init__(self, is_known: IsKnown) -> None:
        self._knows = is_known
        self._raw: list[str] = []
        self._open = ""
        self._state = "open"
        self._content = _Content()

    @property
    def raw(self) -> str:
        """Text of the whole reply, unchanged."""
        return "".join(self._raw)

    @property
    def severed(self) -> str | None:
        """Tool whose call is lost if the reply ends here: empty if unnamed, None if no call."""
        if self._state not in ("form", "content"):
            return None
        hidden = self.raw if self._state == "form" else self._content.rest
        return find_name(hidden, self._knows) or ("" if _MENTION.search(hidden) else None)

    def feed(self, text: str) -> str:
        """Add text and return the part that can be shown now."""
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

    def conclude(self) -> ReplyOutcome:
        """Return the outcome of the complete reply, including its calls."""
        match self._state:
            case "prose":
                return ReplyOutcome(prose=True, notice=self._describe_prose())
            case "content":
                said = self._content.conclude()
                return self._conclude_content(said)
            case "open":
                return ReplyOutcome(self._open, prose=True)
            case _:
                return self._conclude_form()

    def _decide(self) -> str:
        beginning = read_beginning(self._open, self._knows)
        if beginning is OPEN:
            return ""
        text, self._open = self._open, ""
        self._state = beginning.kind
        if beginning is PROSE:
            return text
        return self._content.feed(text[beginning.start :]) if beginning.kind == "content" else ""

    def _conclude_form(self) -> ReplyOutcome:
        raw = self.raw
        try:
            text, calls, late = _split_items(read_items(raw, self._knows))
        except FormForeign:
            return ReplyOutcome(raw, prose=True)
        except FormBroken as error:
            if not (_ATTEMPT.search(raw) or find_tool_as_type(raw, self._knows)):
                return ReplyOutcome(raw, prose=True)
            return ReplyOutcome(raw, problem=str(error))
        return ReplyOutcome(text, calls, notice=_describe_rest(late))

    def _conclude_content(self, said: str) -> ReplyOutcome:
        """Read the objects after the content, which is already shown."""
        rest = self._content.rest
        end = find_rest(rest)
        if end is None:
            return ReplyOutcome(said)
        try:
            # Read strictly: an answer that is read leniently may quote a call.
            items = read_items(self.raw, self._knows)
        except (FormForeign, FormBroken):
            return ReplyOutcome(said, notice=_describe_rest(rest[end:]))
        text, calls, late = _split_items(items[1:])
        return ReplyOutcome(f"{said}\n{text}" if text else said, calls, notice=_describe_rest(late))

    def _describe_prose(self) -> str:
        if not _MENTION.search(self.raw):
            return ""
        return (
            "the model wrote a tool call within other text; it is not run, because a call must be "
            "the whole reply"
        )


class _Content:
    """Content of a final answer: a growing JSON string, read leniently."""

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
        """Return the rest: at most part of a character or escape."""
        return self._joiner.conclude()


def _unescape(piece: str) -> str:
    if piece[0] != "\\" or len(piece) == 1:
        return piece
    if piece[1] == "u":
        return chr(int(piece[2:], 16)) if len(piece) > 2 else piece
    # Unknown escapes are kept: most of them are TeX.
    return _ESCAPES.get(piece[1], piece)


def _split_items(
    items: Sequence[FinalAnswer | WrittenCall],
) -> tuple[str, Sequence[WrittenCall], str]:
    """Split items into text, calls, and text that comes too early: before a call's result."""
    calls = tuple(item for item in items if isinstance(item, WrittenCall))
    first = next((n for n, item in enumerate(items) if isinstance(item, WrittenCall)), len(items))
    said = [item.text for item in items[:first] if isinstance(item, FinalAnswer)]
    late = [item.text for item in items[first:] if isinstance(item, FinalAnswer)]
    return "\n".join(said), calls, "\n".join(late)


def _describe_rest(rest: str) -> str:
    rest = rest.lstrip("}")
    short = rest[skip_marks(rest) :].strip()
    if not short:
        return ""
    short = short if len(short) <= _QUOTED else short[:_QUOTED] + "…"
    return f"text after the call is left out: {short!r}"
