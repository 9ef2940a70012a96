"""What one turn reserves, sends, and settles with `Budgets`, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vibe_llms.base.configuration import Budget, BudgetSettings
from vibe_llms.base.exceptions import BudgetExceeded
from vibe_llms.messages.canisters import Usage
from vibe_llms.providers.usages import MOST_TOKENS
from vibe_llms.runs.accounts import Account, Amount, Balance, Claim
from vibe_llms.runs.budgets import Budgets, RequestSpending
from vibe_llms.runs.sqlite_budgets import SqliteBudgetStore

USER = "anna"
SONNET: Any = SimpleNamespace(provider="anthropic", name="claude-sonnet-4-5")


@asynccontextmanager
async def opened(
    tmp_path: Path, *, listed: str = "anthropic", lease_seconds: float = 60.0, **settings: Any
) -> AsyncIterator[tuple[Budgets, RequestSpending]]:
    budgets = Budgets(
        SqliteBudgetStore(tmp_path / "runs.sqlite"),
        BudgetSettings(**{"period": "total", "wait_seconds": 0, **settings}),
        lambda _: listed,
        user=USER,
        lease_seconds=lease_seconds,
    )
    spending = budgets.produce_spending({})
    try:
        yield budgets, spending
    finally:
        await spending.close()
        await budgets.close()


async def read(budgets: Budgets) -> Balance:
    own = Account(USER, Budget(tokens=1, period="total"))
    (balance,) = await budgets.store.read([own])
    return balance


async def test_the_next_request_of_a_turn_releases_what_the_last_one_reserved(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, tokens=1000) as (budgets, spending):
        assert await spending.reserve(SONNET, 100, 300, least=None) == 300
        assert await spending.reserve(SONNET, 100, 800, least=None) == 800
        assert (await read(budgets)).reserved == Amount(900)
        await spending.close()
        assert await read(budgets) == Balance()


async def test_a_request_that_was_sent_and_never_settled_is_charged_by_the_next(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, tokens=10_000) as (budgets, spending):
        await spending.reserve(SONNET, 100, 300, least=None)
        await spending.send()
        await spending.reserve(SONNET, 100, 500, least=None)
        assert await read(budgets) == Balance(Amount(400), Amount(600))
        await spending.send()
        await spending.record_usage(Usage(60, output_tokens=40))
        assert await read(budgets) == Balance(Amount(500))


async def test_each_attempt_reserves_what_the_first_was_granted(tmp_path: Path) -> None:
    async with opened(tmp_path, tokens=1000) as (budgets, spending):
        assert await spending.reserve(SONNET, 100, 2000, least=300) == 900
        await spending.send()
        await spending.record_usage(Usage())
        await spending.send()
        assert (await read(budgets)).reserved == Amount(1000)
        await spending.record_usage(Usage(1))
        with pytest.raises(BudgetExceeded, match="1 of 1,000 tokens are spent") as caught:
            await spending.send()
        assert caught.value.retry_after is None
        assert (await read(budgets)).reserved == Amount()


async def test_a_short_reply_is_refused_only_below_the_least_that_is_wanted(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, tokens=1000, least_output_tokens=50) as (_, spending):
        assert await spending.reserve(SONNET, 950, 400, least=None) == 50
        with pytest.raises(BudgetExceeded):
            await spending.reserve(SONNET, 951, 400, least=None)
        # Fewer than the least were asked for.
        assert await spending.reserve(SONNET, 990, 10, least=None) == 10
        assert await spending.reserve(SONNET, 999, 400, least=1) == 1


async def test_a_reply_that_has_waited_in_vain_is_shortened_rather_than_refused(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, tokens=1000) as (budgets, spending):
        other = budgets.produce_spending({})
        await other.reserve(SONNET, 100, 500, least=None)
        assert await spending.reserve(SONNET, 100, 500, least=None) == 300
        with pytest.raises(BudgetExceeded, match="other requests have reserved"):
            await spending.reserve(SONNET, 101, 500, least=300)
        await other.close()


async def test_input_is_reserved_at_the_dearest_price_that_it_may_have(tmp_path: Path) -> None:
    async with opened(tmp_path, money=1.0) as (budgets, spending):
        # 3 $ a million plain, 0.30 $ from the cache, 6 $ into it for an hour; the output 15 $.
        await spending.reserve(SONNET, 1000, 100, least=None)
        assert (await read(budgets)).reserved == Amount(1100, 6_000_000 + 1_500_000)


@pytest.mark.parametrize("classes", [(3, 2, 1), (1, 3, 2), (1, 2, 3)])
def test_whichever_class_of_input_is_dearest_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: tuple[int, ...]
) -> None:
    def find_money(self: Budgets, model: Any, usage: Usage) -> int:
        kinds = (usage.uncached_input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        return sum(price * count for price, count in zip(classes, kinds, strict=True))

    monkeypatch.setattr(Budgets, "find_money", find_money)
    budgets = Budgets(
        SqliteBudgetStore(tmp_path / "x"), BudgetSettings(), lambda _: "", lease_seconds=1
    )
    priced = Account(USER, Budget(money=1))
    assert budgets.produce_claim((priced,), SONNET, 10, 5, None).base == Amount(10, 30)
    assert budgets.produce_claim((priced,), SONNET, 10, 2**63, None).most == MOST_TOKENS


async def test_money_is_rounded_up_so_that_nothing_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decimal import Decimal

    from vibe_llms.runs import budgets as module

    # A ten-billionth of a dollar for each token.
    monkeypatch.setattr(
        module, "find_price", lambda usage, *_: Decimal(usage.total_tokens) / 10**10
    )
    async with opened(tmp_path, money=1.0) as (budgets, spending):
        assert budgets.find_money(SONNET, Usage(1)) == 1
        assert budgets.find_money(SONNET, Usage(10)) == 1
        assert budgets.find_money(SONNET, Usage(11)) == 2
        account = Account(USER, Budget(money=1))
        assert budgets.produce_claim((account,), SONNET, 1, 5, None).unit == 1
        await spending.reserve(SONNET, 1, 5, least=None)
        await spending.send()
        await spending.record_usage(Usage(11))
        assert (await read(budgets)).spent == Amount(11, 2)


async def test_reservations_are_renewed_while_there_are_any_and_no_longer(tmp_path: Path) -> None:
    async with opened(tmp_path, tokens=1000, lease_seconds=0.003) as (budgets, spending):
        renew, renewed = budgets.store.renew, asyncio.Event()
        open_: list[set[str]] = []

        async def watch(user: str, identities: Any, seconds: float) -> None:
            open_.append({*identities})
            await renew(user, identities, 60)
            renewed.set()

        budgets.store.renew = watch  # type: ignore[method-assign]
        for _ in range(2):
            renewed.clear()
            await spending.reserve(SONNET, 1, 5, least=None)
            async with asyncio.timeout(30):
                await renewed.wait()
                assert budgets._renewal is not None
                await spending.close()
                # It ends once nothing is left to renew, and begins again with the next.
                await budgets._renewal
    assert all(len(one) <= 1 for one in open_)


async def test_a_refused_claim_is_not_renewed(tmp_path: Path) -> None:
    async with opened(tmp_path, tokens=10, lease_seconds=0.003) as (budgets, spending):
        with pytest.raises(BudgetExceeded):
            await spending.reserve(SONNET, 11, 5, least=None)
        assert budgets._renewal is not None
        async with asyncio.timeout(30):
            await budgets._renewal


async def test_those_who_wait_ask_one_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path, tokens=1000, wait_seconds=60) as (budgets, spending):
        await spending.reserve(SONNET, 900, 100, least=None)
        reserve = budgets.store.reserve
        asked: list[str] = []
        both = asyncio.Event()

        async def watch(claim: Claim, seconds: float) -> Any:
            asked.append(claim.identity)
            if len(asked) == 6:
                both.set()
            return await reserve(claim, seconds)

        budgets.store.reserve = watch  # type: ignore[method-assign]
        others = [budgets.produce_spending({}) for _ in range(2)]
        waiting = [
            asyncio.ensure_future(one.reserve(SONNET, 900, 100, least=None)) for one in others
        ]
        async with asyncio.timeout(30):
            await both.wait()
            # Both have asked once; then only the first, again and again.
            assert len({*asked[2:]}) == 1
            await spending.close()
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in others:
                await one.close()
            await asyncio.gather(*waiting)
            for one in others:
                await one.close()


async def test_how_long_a_budget_is_exceeded_depends_on_its_period(tmp_path: Path) -> None:
    async with opened(tmp_path, tokens=1000, period="hour") as (_, spending):
        await spending.reserve(SONNET, 500, 100, least=None)
        await spending.send()
        await spending.record_usage(Usage(900))
        with pytest.raises(BudgetExceeded, match="the hour ends at 20") as caught:
            await spending.reserve(SONNET, 500, 100, least=None)
        assert 0 <= (caught.value.retry_after or -1) <= 3600
        with pytest.raises(BudgetExceeded, match="the request alone exceeds it") as caught:
            await spending.reserve(SONNET, 1000, 100, least=None)
        assert caught.value.retry_after is None


async def test_dollars_are_told_where_dollars_are_short(tmp_path: Path) -> None:
    async with opened(tmp_path, money=0.002) as (_, spending):
        with pytest.raises(BudgetExceeded) as caught:
            await spending.reserve(SONNET, 500, 100, least=100)
    assert str(caught.value) == (
        "the budget of the user 'anna' is exceeded: 0.0000 of 0.0020 dollars are spent, "
        "and this request may need 0.0045; "
        "the request alone exceeds it; shorten the request, or raise the budget"
    )


async def test_a_store_that_others_use_stays_open(tmp_path: Path) -> None:
    store = SqliteBudgetStore(tmp_path / "runs.sqlite")
    closed: list[bool] = []

    async def close() -> None:
        closed.append(True)

    store.close, ends = close, store.close  # type: ignore[method-assign]
    for owns in (True, False):
        one = Budgets(
            store, BudgetSettings(), lambda _: "", user=USER, owns_store=owns, lease_seconds=1
        )
        await one.close()
        assert len(closed) == 1
    await ends()


async def test_a_reservation_that_ended_meanwhile_is_made_again_before_it_is_sent(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, tokens=1000) as (budgets, spending):
        await spending.reserve(SONNET, 100, 300, least=None)
        claim = spending._claim
        assert claim is not None
        await budgets.store.renew(USER, [claim.identity], -1)
        await spending.send()
        # The same claim, so that it counts once in a limit.
        assert spending._claim == claim
        assert (await read(budgets)).reserved == Amount(400)
        await spending.record_usage(None)
        assert (await read(budgets)).spent == Amount(400)
