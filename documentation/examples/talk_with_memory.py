import asyncio

from vibe_llms import DocumentCanister, open_session


async def main() -> None:
    async with open_session() as session:
        first = await session.begin("anthropic/claude-sonnet-5-5", memory=True)
        await first.converse("My cat is called Tom.")
        await session.background.wait()

        second = await session.begin("anthropic/claude-sonnet-5-5", memory=True)
        turn = await second.converse("What is my cat called?")
        recalled = [one for one in turn.canisters if isinstance(one, DocumentCanister)]
        print(len(recalled), "document was recalled:", turn.text)


asyncio.run(main())
