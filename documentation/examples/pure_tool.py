import asyncio

from vibe_llms import invoker, open_session


@invoker(pure=True)
def population(city: str) -> int:
    """Look up how many people live in a city."""
    print(f"looking up {city}")
    return {"Oslo": 709_000}[city]


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", invokers=[population])
        for _ in range(2):
            print((await conversation.converse('Tell the population of "Oslo".')).text)


asyncio.run(main())
