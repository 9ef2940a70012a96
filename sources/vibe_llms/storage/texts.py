"""Texts of messages for lists and searches: titles, words, and excerpts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from vibe_llms.messages.canisters import (
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
)
from vibe_llms.messages.contents import Reference, TextualContent, repair_text

_TITLE_LENGTH = 60
_INDEXED_CHARACTERS = 200_000
_EXCERPT_LENGTH = 60
#: Characters of scripts without spaces between words, or with suffixes attached to words.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def title_of(text: str) -> str:
    """Return the start of the first line, shown as the title of a conversation without a name."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"


def spread(text: str) -> str:
    """Return the text with spaces around each character of a script without spaces."""
    return text if text.isascii() else re.sub(UNSPACED, r" \g<0> ", text)


def text_of(canister: Canister, read: Callable[[Reference], str]) -> str:
    """Return the searchable text of a canister, using `read` for separately stored contents."""
    parts: list[str] = []
    match canister:
        case DigestCanister():
            # The messages that it summarizes are found themselves.
            return ""
        case InvocationCanister(name=name, arguments=arguments):
            parts += [name, arguments]
        case DocumentCanister(title=title, source=source):
            parts += [title, source]
    for content in canister.contents:
        if isinstance(content, TextualContent):
            data = content.data
            parts.append(data if isinstance(data, str) else read(data))
    return repair_text("\n".join(part for part in parts if part)[:_INDEXED_CHARACTERS])


def words_of(text: str) -> Sequence[str]:
    """Return the words of a search, without those that are only punctuation."""
    return [word for word in repair_text(text).split() if any(map(str.isalnum, word))]


def excerpt_of(text: str, words: Sequence[str]) -> str:
    """Return the part of a text around the first match, with matching words in brackets."""
    flat = re.sub(r"\s+", " ", text)
    bare = (re.sub(r"^\W+|\W+$", "", word) for word in words)
    pattern = re.compile("|".join(_whole(word) for word in bare), re.IGNORECASE)
    found = pattern.search(flat)
    start = max((found.start() if found else 0) - _EXCERPT_LENGTH, 0)
    end = (found.end() if found else 0) + _EXCERPT_LENGTH
    marked = pattern.sub(lambda match: f"[{match[0]}]", flat[start:end])
    return f"{'…' if start else ''}{marked}{'…' if end < len(flat) else ''}"


def _whole(word: str) -> str:
    escaped = re.escape(word)
    return escaped if re.search(UNSPACED, word) else rf"\b{escaped}\b"
