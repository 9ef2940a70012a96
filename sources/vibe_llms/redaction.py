"""Removes keys from all text that leaves the library: known keys, and text that looks like one.

Every error of the library passes through here when it is created; for log records see
`credentials`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType

REDACTED = "[secret]"
#: No key is longer than this, so that none is cut before it can be removed.
LONGEST_KEY = 4_000
#: Shorter keys are not secrets, and removing them would garble text.
_SHORTEST = 6
_KNOWN: dict[str, tuple[str, ...]] = {}
#: The keys of the block at hand, such as a request: what others say is none of their concern. Tasks
#: and threads that copy its context share the table, which is emptied at the end.
_PASSING: ContextVar[Mapping[str, tuple[str, ...]]] = ContextVar(
    "passing_keys", default=MappingProxyType({})
)

#: Text that is a key anywhere, even if the library never saw it: in a URL's query, before its host,
#: in a header, in a connection string of libpq, or in the format of several providers' keys.
_SHAPES = r"""(?ix)
      (?P<query> [?&] [\w.-]* (?:key|token|secret) = ) [^&\s"'<>]+
    | (?P<host> :// [^\s:/@?#"']* : ) [^\s/@?#"']+ (?= @ )
    | (?P<header> \b (?: bearer | x-api-key ["']? \s* [:,=] ) \s+ ["']? ) [\w.~+/=-]{6,}
    | (?P<pair> \b password \s* = \s* ) (?: ' (?: [^'\\] | \\. )* ' | [^\s"'&]+ )
    | \b sk- [\w-]{12,}
    """


def remember(key: str) -> None:
    """Remove this key from now on."""
    if len(key) >= _SHORTEST and key not in _KNOWN and key not in _PASSING.get():
        _KNOWN[key] = _forms(key)


@contextmanager
def remembered(key: str) -> Iterator[None]:
    """Remove this key from the texts of the block, and of its tasks and threads until it ends."""
    held = dict(_PASSING.get())
    if len(key) >= _SHORTEST:
        held[key] = _forms(key)
    token = _PASSING.set(held)
    try:
        yield
    finally:
        _PASSING.reset(token)
        held.clear()


def redact(text: str) -> str:
    """The text without keys, in whatever form a server or a library wrote them.

    >>> redact("GET https://example.org/?key=abc&n=1")
    'GET https://example.org/?key=[secret]&n=1'
    """
    # Longest first, so nothing remains of a key that contains another.
    known = {**_KNOWN, **passing} if (passing := _PASSING.get()) else _KNOWN
    for key in sorted(known, key=len, reverse=True):
        for form in known[key]:
            if form in text:
                text = text.replace(form, REDACTED)
    return _shapes().sub(_replace, text)


def quote(data: bytes | str, length: int = 80) -> str:
    """Return the beginning of what a server sent, in quotation marks and without keys.

    >>> print(quote(b"the key sk-abcdefghijklmnop is wrong", 16))
    'the key [secret]'
    """
    text = data[: length + LONGEST_KEY]
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return repr(redact(words)[:length])


@cache
def _shapes() -> re.Pattern[str]:
    # Not compiled on import, to keep the start of the command fast.
    return re.compile(_SHAPES)


def _replace(found: re.Match[str]) -> str:
    kept = found["query"] or found["host"] or found["header"] or found["pair"] or ""
    return kept + REDACTED


def _forms(key: str) -> tuple[str, ...]:
    """The key as it is, and as JSON, Python and URLs write it; longest first."""
    quoted = "".join(c if c.isalnum() or c in "-._~" else f"%{ord(c):02X}" for c in key)
    slashed = key.replace("\\", "\\\\").replace('"', '\\"')
    forms = {key, slashed, slashed.replace("/", "\\/"), repr(key)[1:-1], quoted, quoted.lower()}
    return tuple(sorted(forms, key=len, reverse=True))
