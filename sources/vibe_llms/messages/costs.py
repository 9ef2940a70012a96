"""Estimated costs of replies, from the price lists of the package `genai-prices`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache

from msgspec import Struct

from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Cost,
    DigestCanister,
    InvocationCanister,
    Usage,
)

#: Number of tokens that unit prices are computed from; longer requests may cost more per token.
_UNIT = 1_000


class ModelPrices(Struct, frozen=True):
    """Prices of a model in US dollars per million tokens, for requests of usual length."""

    input: Decimal
    cache_read: Decimal
    output: Decimal


def estimate_cost(canisters: Iterable[Canister], access_list: Callable[[str], str]) -> Cost:
    """Estimate the cost of replies and digests, at the prices of their days.

    `access_list` returns the name of a row's price list; if it is empty, the replies count as
    unpriced. Raises `PackageMissing` if `genai-prices` is not installed.
    """
    _require_package()
    dollars, unpriced = Decimal(0), 0
    for canister in canisters:
        if not isinstance(canister, AssistantCanister | InvocationCanister | DigestCanister):
            continue
        usage = canister.ending.usage if canister.ending is not None else None
        if usage is None or canister.provenance is None:
            continue
        listed = access_list(canister.provenance.row)
        price = find_price(usage, canister.provenance.model, listed, canister.created)
        if price is None:
            unpriced += 1
        else:
            dollars += price
    return Cost(dollars, unpriced, _source())


def find_price(usage: Usage, model: str, listed: str, when: datetime) -> Decimal | None:
    """Return the price of a model's usage in US dollars, or None if the price list lacks it.

    Raises `PackageMissing` if `genai-prices` is not installed.
    """
    if not listed:
        return None
    _require_package()
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    try:
        return calc_price(
            PricedUsage(**_count(usage)),
            model,
            provider_id=listed,
            genai_request_timestamp=when,
        ).total_price
    except LookupError:
        return None


# A call takes about 2 ms, and a provider may list hundreds of models.
@lru_cache(4096)
def find_prices(model: str, listed: str, day: date) -> ModelPrices | None:
    """Return the prices of a model on a day, or None if the price list lacks it.

    Raises `PackageMissing` if `genai-prices` is not installed.
    """
    when = datetime.combine(day, time(), UTC)
    prices = [
        find_price(usage, model, listed, when)
        for usage in (
            Usage(uncached_input_tokens=_UNIT),
            Usage(cache_read_tokens=_UNIT),
            Usage(output_tokens=_UNIT),
        )
    ]
    found = [price * 1_000_000 / _UNIT for price in prices if price is not None]
    return ModelPrices(*found) if len(found) == len(prices) else None


def _count(usage: Usage) -> dict[str, int]:
    """Convert our token classes, which do not overlap, to the totals that the lists use."""
    return {
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_write_1h_tokens": min(usage.hour_write_tokens, usage.cache_write_tokens),
        "output_tokens": usage.output_tokens + usage.reasoning_tokens,
    }


def _require_package() -> None:
    try:
        import genai_prices  # noqa: F401
    except ImportError as error:
        raise PackageMissing(
            "an estimate of the cost",
            package="genai-prices",
            command="python -m pip install 'vibe-llms[prices]'",
        ) from error


def _source() -> str:
    from importlib.metadata import version

    return f"genai-prices {version('genai-prices')}"
