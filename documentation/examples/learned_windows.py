import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session() as session:
        model = await session.access_model("anthropic/claude-haiku-5-5")
        print(await session.windows.window_of(model))
        for one in await session.windows.survey():
            print(one.address, one.tokens, one.created, one.words)


asyncio.run(main())
