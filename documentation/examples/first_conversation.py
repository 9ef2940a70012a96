import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5", supervisor="Be brief.")
        async for text in conversation.stream("Why is the sky blue?").text():
            print(text, end="", flush=True)
        fork = await conversation.fork()
        turn = await fork.converse("Explain it to a child.")
        print(turn.text)


asyncio.run(main())
