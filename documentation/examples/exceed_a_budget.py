import asyncio

from vibe_llms import open_session
from vibe_llms.base.exceptions import BudgetExceeded


async def main() -> None:
    async with open_session(configuration={"budgets": {"tokens": 1000}}) as session:
        conversation = await session.begin("scripted/demo")
        try:
            await conversation.converse("Hello!")
        except BudgetExceeded as error:
            print("refused for the user", error.user)


asyncio.run(main())
