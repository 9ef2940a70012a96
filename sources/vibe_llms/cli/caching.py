"""Display of what prompt caches held of a conversation's requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vibe_llms.messages.caching import RequestCaching, measure_caching, summarize_caching
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.hidden import visible


def encode_caching(canisters: Sequence[Canister]) -> str:
    """Encode the caching of each request, and the sums, as JSON."""
    requests = [*measure_caching(canisters)]
    summary = summarize_caching(requests)
    encoded: dict[str, Any] = {
        "requests": [_describe(one) for one in requests],
        "summary": {
            **msgspec.to_builtins(summary),
            "rewrite_factor": round(summary.rewrite_factor, 2),
        },
    }
    return msgspec.json.encode(encoded).decode()


def draw_caching(canisters: Sequence[Canister]) -> Iterator[str]:
    """Yield a line for each request, and one for all of them."""
    requests = [*measure_caching(canisters)]
    for number, one in enumerate(requests, 1):
        reason = f", cache broken: {one.reason}" if one.reason else ""
        yield (
            f"{number}. {visible(one.model)}: {one.input_tokens:,} tokens in, "
            f"{one.read_tokens:,} from the cache; paid {one.paid_tokens:,} for "
            f"{one.new_tokens:,} new{reason}"
        )
    yield draw_summary(requests) or "no reply of this conversation has a token usage"


def draw_summary(requests: Sequence[RequestCaching]) -> str:
    """Return a line for all requests, or an empty text without any."""
    if not requests:
        return ""
    summary = summarize_caching(requests)
    return (
        f"in total: {summary.paid_tokens:,} tokens did not come from the cache, and "
        f"{summary.new_tokens:,} were new (ratio {summary.rewrite_factor:.1f})"
        f"{_describe_breaks(summary.breaks)}"
    )


def _describe(one: RequestCaching) -> dict[str, Any]:
    return {
        "reply": one.reply,
        "model": one.model,
        "input_tokens": one.input_tokens,
        "read_tokens": one.read_tokens,
        "new_tokens": one.new_tokens,
        "paid_tokens": one.paid_tokens,
        "rewrite_factor": round(one.rewrite_factor, 2),
        "reason": one.reason,
    }


def _describe_breaks(breaks: Mapping[str, int]) -> str:
    said = ", ".join(f"{count} {reason}" for reason, count in breaks.items())
    return f"; the cache broke: {said}" if said else ""
