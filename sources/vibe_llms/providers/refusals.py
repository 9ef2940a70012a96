"""What all providers read in an answer that is no success: how long to wait, what else it says."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz

from vibe_llms.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestTooLarge,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.redaction import redact

#: NAME stands for the provider's row.
_ADVICE: dict[type[ProviderError], str] = {
    CredentialRefused: " (set another key: vibe-llms keys set NAME)",
    ModelUnavailable: " (list the models: vibe-llms models NAME; is base-url right?)",
    RequestTooLarge: " (go on in a fork of an earlier point, or leave pictures and files out)",
    RateLimited: "; try again later",
    ProviderOverloaded: "; try again later",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
#: More of what a server says of an error does not help.
_LONGEST_WORDS = 4_000
#: No key is longer than this, so that none is cut before it can be taken out.
_LONGEST_KEY = 4_000


def advise(kind: type[ProviderError], provider: str) -> str:
    """What to do about an error, in words that end its message; perhaps nothing."""
    return _ADVICE.get(kind, "").replace("NAME", provider)


def clear_words(text: str) -> str:
    """What a server says of an error, as it may be shown and looked through: cut, without keys."""
    cleared = redact(repair_text(text[: _LONGEST_WORDS + _LONGEST_KEY]))
    return cleared if len(cleared) <= _LONGEST_WORDS else f"{cleared[:_LONGEST_WORDS]}…"


def describe_answer(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """An answer that has no message of its own, in words."""
    text = body[:200].decode("utf-8", "replace").strip()
    if "html" in headers.get("content-type", "") or text[:1] == "<":
        return f"the server answered with status {status} and a web page"
    return f"the server answered with status {status}" + (f": {redact(text)!r}" if text else "")


def refuse_redirect(provider: str, status: int, headers: Mapping[str, str]) -> ReplyMalformed:
    """The error of an answer that sends us elsewhere."""
    target = headers.get("location", "elsewhere")
    return ReplyMalformed(
        f"the server redirects to {redact(target)}; no key is sent there. Mend base-url.",
        provider=provider,
        status=status,
    )


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that an answer asks us to wait: a number or a date of `retry-after`."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "")
        try:
            seconds = float(text) * scale
        except ValueError:
            seconds = _until(text)
        if 0 <= seconds < math.inf:
            return seconds
    return None


def _until(text: str) -> float:
    """Seconds until a date as headers have it; infinity where it is none."""
    date = parsedate_tz(text)
    try:
        return math.inf if date is None else max(mktime_tz(date) - time.time(), 0.0)
    except (ValueError, OverflowError):
        return math.inf


def read_reset(headers: Mapping[str, str]) -> float | None:
    """The seconds until the limits that are used up are so no more: `x-ratelimit-reset-…`.

    Only those whose `x-ratelimit-remaining-…` is 0 count; the last of them decides.
    """
    waits = [
        wait
        for name, text in headers.items()
        if name.startswith("x-ratelimit-reset-")
        and headers.get(name.replace("-reset-", "-remaining-"), "").strip() == "0"
        and (wait := read_span(text)) is not None
    ]
    return max(waits, default=None)


def read_span(text: str) -> float | None:
    """A span of time as servers write it, in seconds; `None` where it is none.

    >>> [read_span(text) for text in ("6m0s", "20ms", "1.5s", "7", "soon")]
    [360.0, 0.02, 1.5, 7.0, None]
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    seconds, place = 0.0, 0
    while found := _SPAN.match(text, place):
        seconds += float(found[1]) * _UNITS[found[2]]
        place = found.end()
    return seconds if place and place == len(text) else None
