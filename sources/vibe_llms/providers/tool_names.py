"""Names of tools on the wire, by a rule that needs no table for the names in a history."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from vibe_llms.invocation.invokers import Invoker

# Hosted interfaces accept ^[a-zA-Z0-9_-]{1,64}$; ours have a slash after the ensemble.
_LONGEST_NAME = 64
_SEPARATOR = "__"
_UNCHANGED = re.compile(r"[a-zA-Z0-9_-]+(?:(?<!_)/(?!_)[a-zA-Z0-9_-]+)?")


def nativize_name(name: str) -> str:
    """Return the name on the wire: `ensemble__tool`, with a hash if it is too long or ambiguous.

    No two names become one: if characters that the wire does not allow are replaced, the hash of
    the whole name distinguishes them.

    >>> nativize_name("time/now")
    'time__now'
    """
    native = re.sub(r"[^a-zA-Z0-9_-]", "_", name.replace("/", _SEPARATOR))
    if len(native) <= _LONGEST_NAME and _UNCHANGED.fullmatch(name) and _SEPARATOR not in name:
        return native
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{native[: _LONGEST_NAME - 13]}_{digest}"


def assimilate_names(invokers: Iterable[Invoker]) -> dict[str, str]:
    """Map names on the wire to canonical names, for the tools that are offered."""
    return {nativize_name(invoker.name): invoker.name for invoker in invokers}
