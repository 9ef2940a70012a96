import asyncio
import sys

from vibe_llms import open_session


def temperature(city: str) -> int:
    """Return the temperature in a city, in degrees Celsius."""
    return {"Oslo": -4}.get(city, 20)


async def main(questions: list[str]) -> None:
    async with open_session() as session:
        conversation = await session.begin(
            "openai/gpt-6.1-sol", supervisor="Be brief.", invokers=[temperature]
        )
        for question in questions:
            async for text in conversation.stream(question).text():
                print(text, end="", flush=True)
            print()


asyncio.run(main(sys.argv[1:]))
