import asyncio

from vibe_llms import MessageProgressEvent, ReasoningChunk, TextChunk, open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
        async with conversation.stream("Please think about it.") as events:
            async for event in events:
                match event:
                    case MessageProgressEvent(chunk=ReasoningChunk(text)):
                        print(f"({text.strip()})", end=" ")
                    case MessageProgressEvent(chunk=TextChunk(text)):
                        print(text, end="", flush=True)
        if events.turn is not None:
            print("tokens written:", events.turn.usage.output_tokens)


asyncio.run(main())
