"""Contract checks for implementations of `BudgetStore`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from vibe_llms.base.configuration import BudgetSettings
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
    ) -> Claim:
        """Return a claim of the user."""
        return Claim(
            identity=identity,
            user=self.user,
            accounts=accounts or (self.account(),),
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
    _check_no_sequence_exceeds_a_budget,
)
