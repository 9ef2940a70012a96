import asyncio

from vibe_llms import MessageProgressEvent, TextChunk, open_session


def show(event: object) -> None:
    match event:
        case MessageProgressEvent(chunk=TextChunk(text)):
            print(text, end="", flush=True)


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5", supervisor="Be brief.")
        await conversation.converse("Why is the sky blue?")
        other = await conversation.fork()
        await other.converse("Explain it to a child.")


asyncio.run(main())
