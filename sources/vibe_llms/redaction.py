"""Removes keys from all text that leaves the library: known keys, and text that looks like one.

Every error of the library passes through here when it is created; for log records see
`credentials`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

REDACTED = "[secret]"
#: Shorter keys are not secrets, and removing them would garble text.
_SHORTEST = 6
_KNOWN: dict[str, tuple[str, ...]] = {}
#: How many blocks know a key that is forgotten after the last of them.
_PASSING: Counter[str] = Counter()

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
    if len(key) >= _SHORTEST and key not in _KNOWN:
        _KNOWN[key] = _forms(key)


@contextmanager
def remembered(key: str) -> Iterator[None]:
    """Remove this key within the block, and forget it then unless it was known before."""
    passing = key not in _KNOWN or key in _PASSING
    if passing:
        _PASSING[key] += 1
        remember(key)
    try:
        yield
    finally:
        if passing:
            _PASSING[key] -= 1
            if not _PASSING[key]:
                del _PASSING[key]
                _KNOWN.pop(key, None)


def redact(text: str) -> str:
    """The text without keys, in whatever form a server or a library wrote them.

    >>> redact("GET https://example.org/?key=abc&n=1")
    'GET https://example.org/?key=[secret]&n=1'
    """
    # Longest first, so nothing remains of a key that contains another.
    for key in sorted(_KNOWN, key=len, reverse=True):
        for form in _KNOWN[key]:
            if form in text:
                text = text.replace(form, REDACTED)
    return _shapes().sub(_replace, text)


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
