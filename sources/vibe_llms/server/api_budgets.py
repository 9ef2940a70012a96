"""The endpoint `/api/budgets`: what a user may spend, and has spent."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from vibe_llms.runs.budget_states import BudgetState, describe_budgets, survey_accounts
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.spaces import UserSpace


class BudgetList(Struct):
    """The budgets of a user, and of agents that the user may ask."""

    budgets: list[BudgetState]


async def list_budgets(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """List budgets: what was spent, is reserved and is left."""
    accounts = survey_accounts(space.session.configuration, [space.user])
    # Without budgets, no file of them is made.
    balances = await space.session.access_budgets().store.read(accounts) if accounts else ()
    await exchange.reply(msgspec.json.encode(BudgetList([*describe_budgets(accounts, balances)])))
