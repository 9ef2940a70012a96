import asyncio

from vibe_llms import FunctionEnsemble, open_session

sums = FunctionEnsemble("sums")


@sums.register(aliases=["plus"], llm_format="the sum is {0}".format)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    print((await sums.invoke("plus", '{"a": 1, "b": 2}')).text)
    print(sums.export()[0]["function"]["name"])
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", ensembles=[sums])
        print((await conversation.converse("Add 2 and 3.")).text)


asyncio.run(main())
