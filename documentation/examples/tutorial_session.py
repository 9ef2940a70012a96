import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", name="tutorial")
        turn = await conversation.converse("Hello!")
        print(turn.text)
        print(turn.stop_reason, turn.usage.output_tokens)


asyncio.run(main())
