import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session(configuration={"context": {"mode": "off"}}) as session:
        conversation = await session.begin("scripted/script_sailor.toml", supervisor="Be brief.")
        for day in range(1, 8):
            await conversation.converse(f"Day {day}: how do I sail around the island?")
        use = await conversation.measure_context()
        print(
            f"{use.tokens:,} of {use.window:,} tokens:", {k: v for k, v in use.parts.items() if v}
        )

        turn = await conversation.compact("keep the hours of the tide")
        print(turn.stop_reason, "-", turn.usage.total_tokens, "tokens for the summary")
        use = await conversation.measure_context()
        print(
            f"{use.tokens:,} of {use.window:,} tokens:", {k: v for k, v in use.parts.items() if v}
        )


asyncio.run(main())
