"""Keys taken out of whatever words leave this library: those in use, and what looks like one.

Every error of ours passes through here when it is made; for log records see `credentials`.
"""

from __future__ import annotations

import re
from functools import cache

REDACTED = "[secret]"
#: A shorter key is no secret, and taking it out would garble words.
_SHORTEST = 6
_KNOWN: dict[str, tuple[str, ...]] = {}

#: What is a key wherever it stands, also one that never went through our hands: in the query of an
#: address, before its host, in a header, or by the shape that several providers give their keys.
_SHAPES = r"""(?ix)
      (?P<query> [?&] [\w.-]* (?:key|token|secret) = ) [^&\s"'<>]+
    | (?P<host> :// [^\s:/@?#"']* : ) [^\s/@?#"']+ (?= @ )
    | (?P<header> \b (?: bearer | x-api-key ["']? \s* [:,=] ) \s+ ["']? ) [\w.~+/=-]{6,}
    | \b sk- [\w-]{12,}
    """


def remember(key: str) -> None:
    """From now on this key is taken out."""
    if len(key) >= _SHORTEST and key not in _KNOWN:
        _KNOWN[key] = _forms(key)


def redact(text: str) -> str:
    """The text without keys, in whatever form a server or a library wrote them.

    >>> redact("GET https://example.org/?key=abc&n=1")
    'GET https://example.org/?key=[secret]&n=1'
    """
    # The longest first: of a key that holds another one, nothing may be left.
    for key in sorted(_KNOWN, key=len, reverse=True):
        for form in _KNOWN[key]:
            if form in text:
                text = text.replace(form, REDACTED)
    return _shapes().sub(_replace, text)


@cache
def _shapes() -> re.Pattern[str]:
    # Not compiled on import, which every start of the command pays.
    return re.compile(_SHAPES)


def _replace(found: re.Match[str]) -> str:
    kept = found["query"] or found["host"] or found["header"] or ""
    return kept + REDACTED


def _forms(key: str) -> tuple[str, ...]:
    """The key as it is, and as JSON, Python and addresses write it; the longest first."""
    quoted = "".join(c if c.isalnum() or c in "-._~" else f"%{ord(c):02X}" for c in key)
    slashed = key.replace("\\", "\\\\").replace('"', '\\"')
    forms = {key, slashed, slashed.replace("/", "\\/"), repr(key)[1:-1], quoted, quoted.lower()}
    return tuple(sorted(forms, key=len, reverse=True))
