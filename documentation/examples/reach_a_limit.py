import asyncio

from vibe_llms import open_session
from vibe_llms.base.exceptions import LimitExceeded


async def main() -> None:
    async with open_session(configuration={"limits": {"requests-per-minute": 2}}) as session:
        conversation = await session.begin("scripted/demo")
        try:
            for _ in range(3):
                await conversation.converse("Hello!")
                print("answered")
        except LimitExceeded as error:
            print("fits within a minute:", (error.retry_after or 0) <= 60)


asyncio.run(main())
