"""The endpoint `/api/budgets`: spending limits and spent amounts of a user."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from vibe_llms.runs.budget_states import BudgetState, describe_budgets, survey_accounts
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace


class BudgetList(Struct):
    """Budgets of a user, and of agents that the user may ask."""

    budgets: list[BudgetState]


async def list_budgets(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List budgets, with amounts spent, reserved, and left."""
    accounts = survey_accounts(space.session.configuration, [space.user])
    # Without budgets, no file is created.
    balances = await space.session.access_budgets().store.read(accounts) if accounts else ()
    await exchange.reply(msgspec.json.encode(BudgetList([*describe_budgets(accounts, balances)])))
