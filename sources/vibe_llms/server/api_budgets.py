"""The endpoint `/api/budgets`: budgets, limits, and their use by a user."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from vibe_llms.runs.budget_states import BudgetState, read_budgets
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace


class BudgetList(Struct):
    """Budgets and limits of a user, and budgets of agents that the user may ask."""

    budgets: list[BudgetState]


async def list_budgets(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List budgets and limits, with amounts spent, reserved, and left."""
    store, configuration = space.session.access_budgets().store, space.session.configuration
    states = await read_budgets(configuration, [space.user], store)
    await exchange.reply(msgspec.json.encode(BudgetList([*states])))
