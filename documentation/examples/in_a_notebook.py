import asyncio

from vibe_llms.synchronous import open_session


async def cell() -> None:
    # In a notebook a loop runs already, as in this function.
    opened = open_session()
    session = opened.__enter__()
    conversation = session.begin("scripted/demo")
    print(conversation.converse("Hello!").text)
    opened.__exit__(None, None, None)


asyncio.run(cell())
