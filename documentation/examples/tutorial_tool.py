import asyncio

from vibe_llms import (
    Event,
    InvocationCompletedEvent,
    MessageProgressEvent,
    TextChunk,
    open_session,
)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first one
        b: the second one
    """
    return a + b


def show(event: Event) -> None:
    match event:
        case MessageProgressEvent(chunk=TextChunk(text)):
            print(text, end="", flush=True)
        case InvocationCompletedEvent(invocation=invocation, result=result):
            print(f"\n[{invocation.name} {invocation.arguments} gave {result.text}]")


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.resume("tutorial", invokers=[add])
        turn = await conversation.converse("Please add 2 and 3.")
        print()
        print([type(canister).__name__ for canister in turn.canisters])


asyncio.run(main())
