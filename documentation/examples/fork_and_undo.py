import asyncio

from vibe_llms import open_session
from vibe_llms.base.exceptions import ForkPointInvalid


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", name="sums", invokers=[add])
        await conversation.converse("Hello!")
        await conversation.converse("Please add 2 and 3.")
        print(len(conversation.canisters), "messages in", conversation.name)

        whole = await conversation.fork(name="a fork")
        start = await conversation.fork(at=1)
        print(len(whole.canisters), "and", len(start.canisters), "messages in the forks")

        try:
            await conversation.fork(at=3)
        except ForkPointInvalid as error:
            print("cannot fork there;", len(error.nearest), "valid points are near")

        shorter = await conversation.undo()
        print(len(shorter.canisters), "messages in", shorter.name)
        again = await shorter.regenerate()
        turn = await again.converse()
        print(turn.text)


asyncio.run(main())
