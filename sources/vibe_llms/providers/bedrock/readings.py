"""Readers of what Bedrock reports of a reply: its usage, its sources, and why it ended."""

from __future__ import annotations

from msgspec import Raw, UnsetType

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Citation, repair_text
from vibe_llms.providers.bedrock.events import CITATION, CitedPlace, TokenUsage
from vibe_llms.providers.repairs import parse_object, parse_value, says_something
from vibe_llms.providers.usages import subtract


def read_citation(raw: bytes) -> Citation:
    """Return a citation in our terms; its offsets are in Bedrock's units."""
    reported = CITATION.decode(raw)
    kind, place = next(iter((reported.location or {}).items()), ("", CitedPlace()))
    unit = {"documentChar": "character", "documentPage": "page"}.get(kind, "block" if kind else "")
    return Citation(
        quote="".join(one.text or "" for one in reported.source_content or ()),
        title=reported.title or "",
        source=place.url or place.domain or reported.source or "",
        start=place.start,
        end=place.end,
        unit=unit if place.start is not None else "",
    )


def read_usage(usage: TokenUsage, *, inclusive: bool = False) -> Usage:
    """Return the usage in classes that do not overlap.

    `inputTokens` leaves out what was read from the cache or written to it, unless the total says
    that it includes them. With `inclusive`, it does so where it can: streams of OpenAI's models
    count them twice (maximhq/bifrost#6942, 2026-09).
    """
    read, written = usage.cache_read_input_tokens or 0, usage.cache_write_input_tokens or 0
    given, output = usage.input_tokens or 0, usage.output_tokens or 0
    if (inclusive or usage.total_tokens == given + output) and given >= read + written:
        given = subtract(given, read, written)
    hour = sum(one.input_tokens or 0 for one in usage.cache_details or () if one.ttl == "1h")
    return Usage(
        uncached_input_tokens=given,
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=output,
        hour_write_tokens=hour,
    )


def read_stop(fields: Raw | UnsetType) -> str:
    """Return the stop sequence, if the request asked for it."""
    try:
        told = parse_object(bytes(fields)) if says_something(fields) else {}
    except ValueError:
        return ""
    word = told.get("stop_sequence")
    return repair_text(word) if isinstance(word, str) else ""


def describe_findings(trace: bytes) -> str:
    """Name what a guardrail blocked, without the words that it found."""
    found: dict[str, None] = {}

    def search(value: object) -> None:
        if isinstance(value, dict):
            named = value.get("name") or value.get("type")
            if value.get("action") == "BLOCKED":
                found[named if isinstance(named, str) else "a word"] = None
            for inner in value.values():
                search(inner)
        elif isinstance(value, list):
            for inner in value:
                search(inner)

    try:
        search(parse_value(trace))
    except ValueError:
        return ""
    return repair_text(f"blocked: {', '.join(found)}") if found else ""
