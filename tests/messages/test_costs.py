"""What replies cost, by lists of prices that others keep."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Ending,
    InvocationCanister,
    Provenance,
    StopReason,
    Usage,
    UserCanister,
)
from vibe_llms.messages.costs import estimate_cost

MODEL = "claude-sonnet-4-5"
WHEN = datetime(2026, 6, 1, tzinfo=UTC)


def reply(usage: Usage | None, *, row: str = "anthropic", model: str = MODEL) -> AssistantCanister:
    return AssistantCanister(
        (),
        provenance=Provenance("module", row, model),
        ending=Ending(StopReason.FINISHED, usage=usage),
        created=WHEN,
    )


def list_of(row: str) -> str:
    return {"anthropic": "anthropic"}.get(row, "")


def test_every_class_of_tokens_has_its_price() -> None:
    """By the list of 2026-06: 3 $, 15 $, 0.30 $ and 3.75 $ a million."""
    for usage, dollars in (
        (Usage(uncached_input_tokens=1000), "0.003"),
        (Usage(output_tokens=1000), "0.015"),
        (Usage(reasoning_tokens=1000), "0.015"),
        (Usage(cache_read_tokens=1000), "0.0003"),
        (Usage(cache_write_tokens=1000), "0.00375"),
        (Usage(cache_write_tokens=1000, hour_write_tokens=1000), "0.006"),
        (Usage(cache_write_tokens=1000, hour_write_tokens=400), "0.00465"),
        (Usage(1000, 1000, 1000, 1000, 1000), "0.03705"),
    ):
        cost = estimate_cost([reply(usage)], list_of)
        assert (cost.dollars, cost.unpriced) == (Decimal(dollars), 0), usage
    assert cost.source.startswith("genai-prices 0.")


def test_replies_are_summed_and_those_without_a_price_are_counted() -> None:
    usage = Usage(1000, output_tokens=100)
    cost = estimate_cost(
        [
            UserCanister.from_text("Hello"),
            reply(usage),
            InvocationCanister(name="f"),
            reply(usage, row="ollama"),
            reply(usage, model="no-such-model"),
            reply(None),
            reply(usage),
        ],
        list_of,
    )
    assert (cost.dollars, cost.unpriced) == (Decimal("0.009"), 2)


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[prices\]'"):
        estimate_cost([], list_of)
