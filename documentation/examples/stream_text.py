import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
        async for text in conversation.stream("Please think about it.").text():
            print(text, end="", flush=True)


asyncio.run(main())
