import asyncio

from vibe_llms import open_session, read_document


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5")
        report = read_document("harbour.pdf")
        turn = await conversation.converse([report, "When does the blue ferry leave?"])
        print(turn.text)


asyncio.run(main())
