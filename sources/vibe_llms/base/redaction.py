"""Removes keys from all text that leaves the library: known keys, and text in the form of a key.

Every error of the library is redacted when it is created; `credentials` redacts log records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType

REDACTED = "[secret]"
#: Upper bound on the length of a key, so that a cut text does not contain part of one.
LONGEST_KEY = 4_000
#: Least length of a key. Shorter keys are not secrets, and removing them would garble text.
_SHORTEST = 6
_KNOWN: dict[str, tuple[str, ...]] = {}
#: Keys of the current block, such as a request, which other blocks don't see. Tasks and threads
#: that copy its context share the table, which is emptied at the end.
_PASSING: ContextVar[Mapping[str, tuple[str, ...]]] = ContextVar(
    "passing_keys", default=MappingProxyType({})
)

#: Forms of unknown keys: in the query or the user info of a URL, in a header, in a connection
#: string of libpq, or in the format of several providers' keys.
_SHAPES = r"""(?ix)
      (?P<query> [?&] [\w.-]* (?:key|token|secret) = ) [^&\s"'<>]+
    | (?P<host> :// [^\s:/@?#"']* : ) [^\s/@?#"']+ (?= @ )
    | (?P<header> \b (?: bearer | x-api-key ["']? \s* [:,=] ) \s+ ["']? ) [\w.~+/=-]{6,}
    | (?P<pair> \b password \s* = \s* ) (?: ' (?: [^'\\] | \\. )* ' | [^\s"'&]+ )
    | \b sk- [\w-]{12,}
    | \b (?: ABSK | bedrock-api-key- ) [\w+/=-]{12,}
    | \b eyJ [\w-]{10,} \. [\w-]+ \. [\w-]*
    """


def remember(key: str) -> None:
    """Redact this key from now on."""
    if len(key) >= _SHORTEST and key not in _KNOWN and key not in _PASSING.get():
        _KNOWN[key] = _forms(key)


@contextmanager
def remembered(key: str) -> Iterator[None]:
    """Redact this key in the block, and in its tasks and threads until it ends."""
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
    """Return the text without keys, in all forms that servers and libraries write.

    >>> redact("GET https://example.org/?key=abc&n=1")
    'GET https://example.org/?key=[secret]&n=1'
    """
    # Longest first, so no part of a key that contains another key remains.
    known = {**_KNOWN, **passing} if (passing := _PASSING.get()) else _KNOWN
    for key in sorted(known, key=len, reverse=True):
        for form in known[key]:
            if form in text:
                text = text.replace(form, REDACTED)
    return _shapes().sub(_replace, text)


def quote(data: bytes | str, length: int = 80) -> str:
    """Quote the beginning of a server's response, without keys.

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
    """Return the key as it is, and as JSON, Python, and URLs write it; longest first."""
    quoted = "".join(c if c.isalnum() or c in "-._~" else f"%{ord(c):02X}" for c in key)
    slashed = key.replace("\\", "\\\\").replace('"', '\\"')
    forms = {key, slashed, slashed.replace("/", "\\/"), repr(key)[1:-1], quoted, quoted.lower()}
    return tuple(sorted(forms, key=len, reverse=True))
