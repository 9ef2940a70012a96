"""`Budgets`: a user's budgets, reserved before each request and charged after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import ROUND_CEILING

from msgspec.structs import replace

from vibe_llms.base.configuration import LOCAL, Budget, BudgetSettings, LimitSettings
from vibe_llms.base.exceptions import (
    BudgetExceeded,
    LimitExceeded,
    LimitTooLow,
    RequestError,
    StorageError,
)
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
from vibe_llms.runs.rates import WINDOW_SECONDS, report_rates
from vibe_llms.runs.stores import BUDGET_STORES
from vibe_llms.storage.backends import Backend

_POLL_SECONDS = 0.05
#: Seconds between attempts of a turn that waits for its user's minute; others may end earlier.
_PATIENT_SECONDS = 1.0
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
        limits: LimitSettings = LimitSettings(),
        owns_store: bool = True,
        lease_seconds: float,
    ) -> None:
        """Create budgets whose reservations expire `lease_seconds` after the process stops."""
        self.limit = limits.find(user)
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
            hour = Usage(cache_write_tokens=tokens, hour_write_tokens=tokens)
            classes = (Usage(tokens), Usage(0, tokens), Usage(0, 0, tokens), hour)
            money = max(self.find_money(model, usage) for usage in classes)
            # Output after a long input may also cost more per token.
            whole = self.find_money(model, Usage(tokens, output_tokens=_MILLION))
            unit = -(-(whole - self.find_money(model, Usage(tokens))) // _MILLION)
        most = min(most, MOST_TOKENS)
        if least is None:
            least = min(most, self.settings.least_output_tokens)
        if (limit := self.limit.tokens_per_minute) is not None:
            if tokens + least > limit:
                raise self._refuse_large(tokens + least, limit)
            most = min(most, limit - tokens)
        return Claim(
            identity=produce_identity(),
            user=self.user,
            limit=self.limit,
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
        """Reserve a claim, waiting for other requests if needed; return the output tokens.

        A claim that counts as no request belongs to a turn that has begun. It waits for the user's
        minute too.
        """
        if claim.accounts:
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
        if grant.limited and not claim.requests:
            with suppress(TimeoutError):
                async with asyncio.timeout(WINDOW_SECONDS):
                    while grant.limited:
                        await asyncio.sleep(_PATIENT_SECONDS)
                        grant = await self.store.reserve(claim, self._lease_seconds)
        if grant.rate is not None:
            report_rates(grant.rate)
        if grant.refused:
            self._open.discard(claim.identity)
            raise self._refuse(claim, grant) if grant.account else self._refuse_now(claim, grant)
        return grant.output

    async def record_usage(self, claim: Claim, used: Amount | None, *, sent: bool) -> None:
        """End a reservation, even if the task is cancelled."""
        bounded = claim.accounts or claim.limit.tokens_per_minute is not None
        if not bounded and (sent or not claim.requests):
            # The request is counted already.
            return
        try:
            await finish(self.store.record_usage(claim.user, claim.identity, used, sent=sent))
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

    def _refuse_now(self, claim: Claim, grant: Grant) -> LimitExceeded:
        state, least = grant.rate, claim.measure(claim.least).tokens
        assert state is not None
        assert state.wait is not None
        reasons: list[str] = []
        if state.request_wait is not None:
            reasons.append(f"{state.requests:,} of {claim.limit.requests_per_minute:,} requests")
        if state.token_wait is not None:
            used = f"{state.tokens:,} of {claim.limit.tokens_per_minute:,} tokens"
            held = f", {state.reserved:,} of them for running requests" if state.reserved else ""
            reasons.append(f"{used}{held}, and this request may need {least:,}")
        retry = min(state.wait, self.settings.wait_seconds) if grant.busy else state.wait
        return LimitExceeded(
            f"the limit of the user {self.user!r} is reached: the last minute has "
            f"{'; '.join(reasons)}",
            user=self.user,
            retry_after=retry,
        )

    def _refuse_large(self, need: int, limit: int) -> LimitTooLow:
        return LimitTooLow(
            f"the limit of the user {self.user!r} is {limit:,} tokens per minute, and this request "
            f"alone may need {need:,}; shorten it, ask for a shorter reply, or raise "
            "tokens-per-minute",
            user=self.user,
        )

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
        self._sent = False
        #: Requests that the next reservation counts: 1 until the turn has sent something.
        self._requests = 1

    @property
    def bounded(self) -> bool:
        """True if tokens or money are limited; see `Spending`."""
        return bool(self._accounts) or self._budgets.limit.tokens_per_minute is not None

    async def reserve(
        self, model: Model, input_tokens: int, output_tokens: int, *, least: int | None
    ) -> int:
        """Reserve the worst-case cost of a request; see `Spending`."""
        await self.close()
        claim = self._budgets.produce_claim(
            self._accounts, model, input_tokens, output_tokens, least
        )
        claim = replace(claim, requests=self._requests)
        granted = await self._reserve(claim)
        # The granted amount is sent; retries must reserve exactly the same.
        self._claim, self._model = replace(claim, most=granted, least=granted), model
        return granted

    async def send(self) -> None:
        """Record that an attempt is being sent."""
        assert self._claim is not None, "the request was not reserved"
        while not (self._open and await self._send(self._claim)):
            # A reservation that has ended before it was sent is made again.
            identity = self._claim.identity if self._open else produce_identity()
            again = replace(self._claim, identity=identity, requests=self._requests)
            await self._reserve(again)
        # The other requests of this turn count with their tokens only.
        self._sent, self._requests = True, 0

    async def _send(self, claim: Claim) -> bool:
        # Without budgets, nothing is charged when the process dies.
        return not self._accounts or await self._budgets.store.send(claim.user, claim.identity)

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
        await self._budgets.record_usage(self._claim, used, sent=self._sent)

    async def close(self) -> None:
        """Release the reservation if it was not sent, or charge it if it was not settled."""
        if self._open and self._claim is not None:
            self._open = False
            await self._budgets.record_usage(self._claim, None, sent=self._sent)

    async def _reserve(self, claim: Claim) -> int:
        # Set before the grant, so that a cancelled claim is released too.
        self._claim, self._open, self._sent = claim, True, False
        if not (self.bounded or claim.requests):
            return claim.most
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
        limits=backend.configuration.limits,
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
