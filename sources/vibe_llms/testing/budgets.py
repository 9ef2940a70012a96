"""Contract checks for implementations of `BudgetStore`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from vibe_llms.base.configuration import BudgetSettings, RateLimit
from vibe_llms.runs.accounts import Account, Amount, Balance, BudgetStore, Claim
from vibe_llms.testing.limits import require

_Check: TypeAlias = "Callable[[_Stores], Awaitable[None]]"

_LIMIT = 1000
_SECONDS = 600.0
#: Number of tasks that reserve at the same time in two stores.
_RIVALS = 20
_SEQUENCES, _STEPS = 5, 40


async def check_budget_store(open_store: Callable[[], Awaitable[BudgetStore]]) -> None:
    """Raise `AssertionError` if a budget store breaks its contract.

    `open_store` opens the same store each time, as another process would; it is empty at first. All
    stores are closed at the end.
    """
    stores = _Stores(await open_store(), await open_store())
    try:
        for check in _CHECKS:
            stores.user = check.__name__.removeprefix("_check_").replace("_", "-")
            await check(stores)
    finally:
        for store in (stores.one, stores.other):
            await store.close()
            # A second `close` must be harmless.
            await store.close()


class _Stores:
    """One store, opened twice, and a user of the current check only."""

    def __init__(self, one: BudgetStore, other: BudgetStore) -> None:
        self.one, self.other = one, other
        self.user = ""

    def account(self, agent: str = "", tokens: int | None = _LIMIT) -> Account:
        """Return an account of the user."""
        # Like settings read from `[budgets]`, these cannot be hashed.
        return Account(self.user, BudgetSettings(tokens=tokens, period="total"), agent)

    def claim(
        self,
        identity: str,
        *accounts: Account,
        base: int = 100,
        least: int = 10,
        most: int = 100,
        hasty: bool = False,
        limit: RateLimit | None = None,
        requests: int = 1,
    ) -> Claim:
        """Return a claim of the user: on a budget, or only on a limit for a minute."""
        return Claim(
            identity=identity,
            user=self.user,
            accounts=accounts or (() if limit else (self.account(),)),
            limit=limit or RateLimit(),
            requests=requests,
            base=Amount(base, base),
            unit=1,
            least=least,
            most=most,
            hasty=hasty,
        )

    async def read(self, account: Account | None = None) -> Balance:
        """Return the balance of an account of the user."""
        (balance,) = await self.other.read([account or self.account()])
        return balance


async def _check_nothing_is_spent_at_first(stores: _Stores) -> None:
    require(not await stores.one.survey_users(), "an unused account has a balance")
    balance = await stores.read()
    require(
        (balance.spent, balance.reserved) == (Amount(), Amount()), f"the first balance is {balance}"
    )
    require(await stores.one.read([]) == [], "reading no accounts returns balances")
    require(
        not await stores.one.send(stores.user, "unknown"), "a claim that was not reserved is sent"
    )
    await stores.one.record_usage(stores.user, "unknown", Amount(5, 5))
    require((await stores.read()).spent == Amount(), "a claim that was not reserved is charged")


async def _check_what_is_used_is_charged(stores: _Stores) -> None:
    grant = await stores.one.reserve(stores.claim("one"), _SECONDS)
    require(grant.account is None and grant.output == 100, f"a claim that fits gets {grant}")
    require((await stores.read()).reserved == Amount(200, 200), "the worst case is not reserved")
    require(await stores.other.send(stores.user, "one"), "a reserved claim cannot be sent")
    await stores.other.record_usage(stores.user, "one", Amount(70, 30))
    balance = await stores.read()
    require(
        (balance.spent, balance.reserved) == (Amount(70, 30), Amount()),
        f"the balance after the charge is {balance}",
    )
    await stores.one.record_usage(stores.user, "one", Amount(70, 30))
    require((await stores.read()).spent == Amount(70, 30), "a claim is charged twice")
    require(
        stores.user in await stores.other.survey_users(), "the spending of a user is not recorded"
    )
    await stores.one.reserve(stores.claim("two"), _SECONDS)
    await stores.one.record_usage(stores.user, "two", None)
    require((await stores.read()).spent == Amount(70, 30), "a claim that was not sent is charged")
    await stores.one.reserve(stores.claim("three"), _SECONDS)
    await stores.one.send(stores.user, "three")
    await stores.one.record_usage(stores.user, "three", None)
    require(
        (await stores.read()).spent == Amount(270, 230),
        "a claim that was sent and never settled is not charged in full",
    )


async def _check_a_claim_is_granted_once(stores: _Stores) -> None:
    first = await stores.one.reserve(stores.claim("one", most=50), _SECONDS)
    again = await stores.other.reserve(stores.claim("one", most=100), _SECONDS)
    require((first.output, again.output) == (50, 50), f"the grant is {first}, and then {again}")
    require((await stores.read()).reserved == Amount(150, 150), "a claim is reserved twice")


async def _check_reservations_end(stores: _Stores) -> None:
    await stores.one.reserve(stores.claim("held"), 0)
    await stores.one.reserve(stores.claim("sent"), _SECONDS)
    require(await stores.one.send(stores.user, "sent"), "a reserved claim cannot be sent")
    require(
        (await stores.read()).reserved == Amount(200, 200), "an expired claim is still reserved"
    )
    await stores.one.renew(stores.user, ["sent"], _SECONDS)
    # Simulate a process that did not renew it.
    await stores.one.renew(stores.user, ["sent"], -1)
    balance = await stores.read()
    require(
        (balance.spent, balance.reserved) == (Amount(200, 200), Amount()),
        f"after a process is gone, the balance is {balance}",
    )
    for identity in ("held", "sent"):
        require(
            not await stores.one.send(stores.user, identity), f"{identity} is sent after its end"
        )
    await stores.one.renew(stores.user, ["sent"], _SECONDS)
    await stores.one.record_usage(stores.user, "sent", Amount(1, 1))
    require((await stores.read()).spent == Amount(200, 200), "a claim is settled after it expired")


async def _check_agents_have_their_own(stores: _Stores) -> None:
    small, other = stores.account("small", 150), stores.account("other")
    both = (stores.account(), small)
    grant = await stores.one.reserve(stores.claim("one", *both), _SECONDS)
    require(grant.output == 50, f"beyond the budget of an agent, the grant is {grant}")
    await stores.one.send(stores.user, "one")
    await stores.one.record_usage(stores.user, "one", Amount(120, 120))
    spent = [one.spent.tokens for one in await stores.other.read([*both, other])]
    require(spent == [120, 120, 0], f"{spent} are spent")
    refused = await stores.one.reserve(stores.claim("two", *both), _SECONDS)
    require(refused.account == small and not refused.busy, f"a claim over the limit gets {refused}")
    require((await stores.read()).reserved == Amount(), "a claim that is refused is reserved")


async def _check_users_are_apart(stores: _Stores) -> None:
    user = stores.user
    await stores.one.reserve(stores.claim("one"), _SECONDS)
    stores.user = f"not-{user}"
    balance = await stores.read()
    require(balance.reserved == Amount(), "a claim is reserved for another user too")
    require(not await stores.one.send(stores.user, "one"), "another user sends a claim")
    await stores.one.renew(stores.user, ["one"], -1)
    await stores.one.record_usage(stores.user, "one", Amount(9, 9))
    stores.user = user
    require((await stores.read()).reserved == Amount(200, 200), "another user settles a claim")


async def _check_rivals_never_spend_more(stores: _Stores) -> None:
    async def spend(number: int) -> int:
        store = (stores.one, stores.other)[number % 2]
        identity = f"claim-{number}"
        grant = await store.reserve(stores.claim(identity, least=100), _SECONDS)
        if grant.account is not None:
            require(grant.busy, "a claim is refused although it fits beside what is spent")
            return 0
        await store.send(stores.user, identity)
        return 1

    granted = sum(await asyncio.gather(*map(spend, range(_RIVALS))))
    require(granted == _LIMIT // 200, f"{granted} claims of 200 fit into {_LIMIT}")
    require(
        (await stores.read()).reserved == Amount(_LIMIT, _LIMIT),
        "not all granted claims are reserved",
    )


async def _check_a_minute_has_no_more_requests(stores: _Stores) -> None:
    limit = RateLimit(requests_per_minute=7)

    async def reserve(number: int) -> bool:
        store = (stores.one, stores.other)[number % 2]
        grant = await store.reserve(stores.claim(f"claim-{number}", limit=limit), _SECONDS)
        if grant.refused:
            require(grant.rate is not None, "a refusal does not tell the use of the minute")
            wait = grant.rate.wait if grant.rate else None
            require(
                wait is not None and 30 < wait <= 60 and not grant.busy,
                f"a claim has to wait for {wait} s until a minute is over",
            )
        return not grant.refused

    granted = sum(await asyncio.gather(*map(reserve, range(_RIVALS))))
    require(granted == 7, f"{granted} requests fit into a limit of 7")
    more = stores.claim("more", limit=limit, requests=0)
    grant = await stores.one.reserve(more, _SECONDS)
    require(not grant.refused, "a claim that counts as no request is refused")
    (state,) = await stores.other.read_rates({stores.user: limit})
    require(state.requests == 7, f"{state.requests} requests are counted")
    (state,) = await stores.other.read_rates({f"not-{stores.user}": limit})
    require(state.requests == 0, "a request counts for another user too")


async def _check_a_minute_has_no_more_tokens(stores: _Stores) -> None:
    limit = RateLimit(tokens_per_minute=1000)
    claims = [stores.claim(f"claim-{number}", limit=limit) for number in range(_RIVALS)]
    found = await asyncio.gather(*(stores.one.reserve(one, _SECONDS) for one in claims))
    granted = [one for one, grant in zip(claims, found, strict=True) if not grant.refused]
    require(len(granted) == 5, f"{len(granted)} claims of 200 fit into a limit of 1000")
    refused = [grant for grant in found if grant.refused]
    require(all(one.busy for one in refused), "a claim does not wait for running requests")
    again = await stores.other.reserve(granted[0], _SECONDS)
    require(again.output == 100 and not again.refused, f"a known claim gets {again}")

    async def fits(identity: str, base: int) -> bool:
        claim = stores.claim(identity, base=base, most=10, limit=limit)
        grant = await stores.other.reserve(claim, _SECONDS)
        return not grant.refused

    await stores.one.record_usage(stores.user, granted[0].identity, Amount(50))
    (state,) = await stores.other.read_rates({stores.user: limit})
    require((state.tokens, state.reserved) == (850, 800), f"the minute after the usage has {state}")
    require(not await fits("large", 141), "more tokens fit than were given back")
    require(await fits("small", 140), "the usage of a request does not correct its estimate")
    await stores.one.record_usage(stores.user, granted[0].identity, Amount(1))
    await stores.one.record_usage(stores.user, granted[1].identity, None)
    require(not await fits("other", 0), "a request without usage gives tokens back")
    await stores.one.record_usage(stores.user, granted[2].identity, None, sent=False)
    require(await fits("last", 190), "a request that was not sent does not give tokens back")


async def _check_a_claim_fits_the_budget_and_the_limit(stores: _Stores) -> None:
    limit = RateLimit(requests_per_minute=1)
    own = stores.account()
    grant = await stores.one.reserve(stores.claim("one", own, limit=limit), _SECONDS)
    require(not grant.refused and grant.rate is not None, f"a claim that fits gets {grant}")
    grant = await stores.one.reserve(stores.claim("two", own, limit=limit), _SECONDS)
    require(grant.limited and grant.account is None, f"a claim over the limit gets {grant}")
    large = stores.claim("three", own, base=_LIMIT, limit=RateLimit(requests_per_minute=2))
    grant = await stores.one.reserve(large, _SECONDS)
    require(grant.account == own and not grant.limited, f"a claim over the budget gets {grant}")
    require(
        (await stores.read()).reserved == Amount(200, 200), "a claim that is refused is reserved"
    )
    await stores.one.renew(stores.user, ["one"], -1)
    grant = await stores.one.reserve(stores.claim("one", own, limit=limit), _SECONDS)
    require(not grant.refused, "a claim whose reservation has ended is in its own way")
    require((await stores.read()).reserved == Amount(200, 200), "it is not reserved again")
    (state,) = await stores.other.read_rates({stores.user: limit})
    require(state.requests == 1, f"{state.requests} of 1 granted requests are counted")


async def _check_no_sequence_exceeds_a_budget(stores: _Stores) -> None:
    user = stores.user
    for seed in range(_SEQUENCES):
        stores.user = f"{user}-{seed}"
        await _spend_at_random(stores, random.Random(seed))  # noqa: S311


async def _spend_at_random(stores: _Stores, chance: random.Random) -> None:
    open_: dict[str, tuple[int, bool]] = {}
    charged = 0
    for number in range(_STEPS):
        store = chance.choice([stores.one, stores.other])
        action = chance.choice(["reserve", "reserve", "send", "settle", "leave", "die"])
        name = chance.choice([*open_, ""])
        if action == "reserve":
            wanted = stores.claim(
                str(number),
                base=chance.randint(0, 120),
                least=chance.randint(1, 40),
                most=chance.randint(40, 90),
                hasty=chance.random() < 0.5,
            )
            grant = await store.reserve(wanted, _SECONDS)
            if grant.account is None:
                require(
                    wanted.least <= grant.output <= wanted.most, f"of {wanted}, it grants {grant}"
                )
                open_[wanted.identity] = wanted.measure(grant.output).tokens, False
        elif name and action == "send":
            require(await store.send(stores.user, name), "a reserved claim cannot be sent")
            open_[name] = open_[name][0], True
        elif name:
            worst, sent = open_.pop(name)
            used = chance.randint(0, worst) if sent else 0
            if action == "settle":
                await store.record_usage(stores.user, name, Amount(used, used))
            elif action == "leave":
                await store.record_usage(stores.user, name, None)
            else:
                await store.renew(stores.user, [name], -1)
            charged += used if action == "settle" else worst * sent
        balance = await stores.read()
        reserved = sum(worst for worst, _ in open_.values())
        require(
            (balance.spent.tokens, balance.reserved.tokens) == (charged, reserved),
            f"{charged} are spent and {reserved} reserved, and not {balance}",
        )
        require(charged + reserved <= _LIMIT, f"{charged + reserved} of {_LIMIT} are spent")


#: The first check must run before any user has spent something.
_CHECKS: Sequence[_Check] = (
    _check_nothing_is_spent_at_first,
    _check_what_is_used_is_charged,
    _check_a_claim_is_granted_once,
    _check_reservations_end,
    _check_agents_have_their_own,
    _check_users_are_apart,
    _check_rivals_never_spend_more,
    _check_a_minute_has_no_more_requests,
    _check_a_minute_has_no_more_tokens,
    _check_a_claim_fits_the_budget_and_the_limit,
    _check_no_sequence_exceeds_a_budget,
)
