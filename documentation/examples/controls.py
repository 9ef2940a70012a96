import asyncio

from vibe_llms import Controls, open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin(
            "anthropic/claude-sonnet-5-5", controls=Controls(effort="low", output_tokens=2000)
        )
        turn = await conversation.converse("Why is the sky blue?", controls=Controls(effort="high"))
        print(turn.text)
        print(await conversation.preview("And at night?"))


asyncio.run(main())
