import asyncio

from vibe_llms import Event, MessageProgressEvent, TextChunk, TurnEndedEvent, open_session


def show(event: Event) -> None:
    match event:
        case MessageProgressEvent(chunk=TextChunk(text)):
            print(text, end="", flush=True)
        case TurnEndedEvent(reason=reason):
            print(f"--- {reason}")


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.resume("tutorial")
        await conversation.converse("How are things stored?")


asyncio.run(main())
