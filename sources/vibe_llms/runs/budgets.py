"""`Budgets`: a user's budgets, reserved before each request and charged after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import ROUND_CEILING

from msgspec.structs import replace

from vibe_llms.base.configuration import LOCAL, Budget, BudgetSettings
from vibe_llms.base.exceptions import BudgetExceeded, RequestError, StorageError
from vibe_llms.base.futures import finish
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.costs import find_price
from vibe_llms.messages.identities import produce_identity
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.usages import MOST_TOKENS
from vibe_llms.runs.accounts import (
    NANO,
    Account,
    Amount,
    Balance,
    BudgetStore,
    Claim,
    Grant,
    decide,
    to_nano,
)
from vibe_llms.runs.stores import BUDGET_STORES
from vibe_llms.storage.backends import Backend

_POLL_SECONDS = 0.05
_MILLION = 1_000_000


class Budgets:
    """The budgets of one user in this process; open reservations are renewed automatically."""

    def __init__(
        self,
        store: BudgetStore,
        settings: BudgetSettings,
        access_prices: Callable[[str], str],
        *,
        user: str = LOCAL,
        owns_store: bool = True,
        lease_seconds: float,
    ) -> None:
        """Create budgets whose reservations expire `lease_seconds` after the process stops."""
        self.store = store
        self.user = user
        self.settings = settings
        self._access_prices = access_prices
        self._owns_store = owns_store
        self._lease_seconds = lease_seconds
        self._waiting = asyncio.Lock()
        self._open: set[str] = set()
        self._renewal: asyncio.Task[None] | None = None

    def produce_spending(self, agents: Mapping[str, Budget]) -> RequestSpending:
        """Return spending that counts against the user's budget and the budgets of agents."""
        own = self.settings.find(self.user)
        accounts = [Account(self.user, own)] if own else []
        accounts += [Account(self.user, budget, name) for name, budget in agents.items()]
        return RequestSpending(self, tuple(accounts))

    def produce_claim(
        self, accounts: tuple[Account, ...], model: Model, tokens: int, most: int, least: int | None
    ) -> Claim:
        """Return the claim of a request; `RequestError` if money is limited but has no price."""
        money, unit = 0, 0
        if any(account.budget.money is not None for account in accounts):
            classes = (Usage(tokens), Usage(0, tokens), Usage(0, 0, tokens))
            money = max(self.find_money(model, usage) for usage in classes)
            # Output after a long input may also cost more per token.
            whole = self.find_money(model, Usage(tokens, output_tokens=_MILLION))
            unit = -(-(whole - self.find_money(model, Usage(tokens))) // _MILLION)
        most = min(most, MOST_TOKENS)
        if least is None:
            least = min(most, self.settings.least_output_tokens)
        return Claim(
            identity=produce_identity(),
            user=self.user,
            accounts=accounts,
            base=Amount(tokens, money),
            unit=unit,
            least=least,
            most=most,
        )

    def find_money(self, model: Model, usage: Usage) -> int:
        """Return the price of the usage in billionths of a dollar."""
        listed = self._access_prices(model.provider)
        price = find_price(usage, model.name, listed, datetime.now(UTC))
        if price is None:
            raise RequestError(
                f"{model.provider}/{model.name} has no known price, which a budget of money "
                "needs; limit tokens instead, or set prices in its row"
            )
        return int((price * NANO).to_integral_value(ROUND_CEILING))

    async def reserve(self, claim: Claim) -> int:
        """Reserve a claim, waiting for other requests if needed; return the output tokens."""
        self._open.add(claim.identity)
        self._renew()
        grant = await self.store.reserve(claim, self._lease_seconds)
        if grant.busy:
            try:
                # One task polls at a time, in order of arrival.
                async with asyncio.timeout(self.settings.wait_seconds), self._waiting:
                    while grant.busy:
                        await asyncio.sleep(_POLL_SECONDS)
                        grant = await self.store.reserve(claim, self._lease_seconds)
            except TimeoutError:
                claim = replace(claim, hasty=True)
                grant = await self.store.reserve(claim, self._lease_seconds)
        if grant.account is not None:
            self._open.discard(claim.identity)
            raise self._refuse(claim, grant)
        return grant.output

    async def record_usage(self, claim: Claim, used: Amount | None) -> None:
        """End a reservation, even if the task is cancelled."""
        try:
            await finish(self.store.record_usage(claim.user, claim.identity, used))
        finally:
            self._open.discard(claim.identity)

    async def close(self) -> None:
        """Stop renewing, and close the store unless it is shared."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        if self._owns_store:
            await self.store.close()

    def _renew(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self._keep_renewing())

    async def _keep_renewing(self) -> None:
        while self._open:
            await asyncio.sleep(self._lease_seconds / 3)
            with suppress(StorageError):
                await self.store.renew(self.user, tuple(self._open), self._lease_seconds)

    def _refuse(self, claim: Claim, grant: Grant) -> BudgetExceeded:
        account, balance = grant.account, grant.balance
        assert account is not None
        need, budget = claim.measure(claim.least), account.budget
        retry: float | None = None
        if grant.busy:
            retry, hint = self.settings.wait_seconds, "other requests have reserved the rest"
        elif decide(claim, [Balance()] * len(claim.accounts)).account is not None:
            hint = "the request alone exceeds it; shorten the request, or raise the budget"
        elif balance.ends is None:
            hint = "raise the budget"
        else:
            retry = max((balance.ends - datetime.now(UTC)).total_seconds(), 0)
            hint = f"the {budget.period} ends at {balance.ends:%Y-%m-%d %H:%M} UTC"
        limits = []
        if budget.tokens is not None:
            limits.append(_describe("tokens", need.tokens, balance.spent.tokens, budget.tokens))
        if (money := to_nano(budget.money)) is not None:
            limits.append(_describe("dollars", need.money, balance.spent.money, money))
        return BudgetExceeded(
            f"{account} is exceeded: {'; '.join(limits)}; {hint}",
            user=account.user,
            agent=account.agent,
            retry_after=retry,
        )


class RequestSpending:
    """The `Spending` of one turn, whose requests are made one after the other."""

    def __init__(self, budgets: Budgets, accounts: tuple[Account, ...]) -> None:
        self._budgets = budgets
        self._accounts = accounts
        self._claim: Claim | None = None
        self._model: Model | None = None
        self._open = False

    async def reserve(
        self, model: Model, input_tokens: int, output_tokens: int, *, least: int | None
    ) -> int:
        """Reserve the worst-case cost of a request; see `Spending`."""
        await self.close()
        claim = self._budgets.produce_claim(
            self._accounts, model, input_tokens, output_tokens, least
        )
        granted = await self._reserve(claim)
        # The granted amount is sent; retries must reserve exactly the same.
        self._claim, self._model = replace(claim, most=granted, least=granted), model
        return granted

    async def send(self) -> None:
        """Record that an attempt is being sent."""
        assert self._claim is not None, "the request was not reserved"
        while not (
            self._open and await self._budgets.store.send(self._claim.user, self._claim.identity)
        ):
            await self._reserve(replace(self._claim, identity=produce_identity()))

    async def record_usage(self, usage: Usage | None) -> None:
        """Record the end of an attempt."""
        assert self._claim is not None
        assert self._model is not None
        used: Amount | None = None
        if usage is not None:
            priced = any(account.budget.money is not None for account in self._accounts)
            money = self._budgets.find_money(self._model, usage) if priced else 0
            used = Amount(usage.total_tokens, money)
        self._open = False
        await self._budgets.record_usage(self._claim, used)

    async def close(self) -> None:
        """Release the reservation if it was not sent, or charge it if it was not settled."""
        if self._open and self._claim is not None:
            self._open = False
            await self._budgets.record_usage(self._claim, None)

    async def _reserve(self, claim: Claim) -> int:
        # Set before the grant, so that a cancelled claim is released too.
        self._claim, self._open = claim, True
        try:
            return await self._budgets.reserve(claim)
        except BudgetExceeded:
            self._open = False
            raise


def produce_budgets(
    backend: Backend,
    access_prices: Callable[[str], str],
    *,
    store: BudgetStore | None,
    user: str,
) -> Budgets:
    """Return the budgets of a user, in the given store or else in the backend's."""
    return Budgets(
        store or produce_budget_store(backend),
        backend.configuration.budgets,
        access_prices,
        user=user,
        owns_store=store is None,
        lease_seconds=backend.configuration.runs.lease_seconds,
    )


def produce_budget_store(backend: Backend) -> BudgetStore:
    """Open the store with the budgets of all users."""
    return BUDGET_STORES.produce(backend)


def _describe(kind: str, need: int, spent: int, limit: int) -> str:
    def show(number: int) -> str:
        return f"{number:,}" if kind == "tokens" else f"{number / NANO:.4f}"

    return (
        f"{show(spent)} of {show(limit)} {kind} are spent, and this request may need {show(need)}"
    )
