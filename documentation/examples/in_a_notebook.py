import asyncio

from vibe_llms.synchronous import open_session


async def cell() -> None:
    # A notebook already runs an event loop, as this function does.
    session = open_session()
    conversation = session.begin("scripted/demo")
    print(conversation.converse("Hello!"))


asyncio.run(cell())
