import asyncio

from pydantic import BaseModel, Field

from vibe_llms import MessageProgressEvent, open_session


class Person(BaseModel):
    name: str
    born: int = Field(description="the year")


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5")
        turn = await conversation.converse("Who wrote the first program?", output=Person)
        print(repr(turn.output))
        async with conversation.stream("And who built the machine?", output=Person) as events:
            async for event in events:
                if isinstance(event, MessageProgressEvent):
                    print(events.partial)


asyncio.run(main())
