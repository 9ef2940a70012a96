import asyncio

from vibe_llms.synchronous import open_session


async def cell() -> None:
    # A notebook already runs an event loop, as this function does.
    opened = open_session()
    session = opened.__enter__()
    conversation = session.begin("scripted/demo")
    print(conversation.converse("Hello!").text)
    opened.__exit__(None, None, None)


asyncio.run(cell())
