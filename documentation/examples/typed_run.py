import asyncio

from pydantic import BaseModel

from vibe_llms import open_session


class Person(BaseModel):
    name: str
    born: int


async def start() -> str:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
        run = await session.start(conversation, "'Ada' was born in 1815.", output=Person)
        print(repr((await run.result()).output))
        return run.identity


async def find(identity: str) -> None:
    async with open_session() as session:
        run = await session.access_run(identity)
        print((await run.result()).output)


identity = asyncio.run(start())
asyncio.run(find(identity))
