"""Token usage and cost in words."""

from __future__ import annotations

from vibe_llms.messages.canisters import Cost, Usage


def describe_usage(usage: Usage, cost: Cost | None = None) -> str:
    """Describe token usage and cost as text."""
    cached = f" ({usage.cache_read_tokens:,} from the cache)" if usage.cache_read_tokens else ""
    thought = f" + {usage.reasoning_tokens:,} of reasoning" if usage.reasoning_tokens else ""
    paid = ""
    if cost is not None:
        unpriced = f", {cost.unpriced} replies not counted" if cost.unpriced else ""
        paid = f"; about ${cost.dollars:.4f} ({cost.source}{unpriced})"
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out{thought}{paid}"
