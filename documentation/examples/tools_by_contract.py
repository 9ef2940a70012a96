import asyncio

from vibe_llms import Event, MessageProgressEvent, ResultCanister, TextChunk, open_session


def temperature(city: str) -> int:
    """The temperature in a city, in degrees Celsius."""
    return {"Oslo": -4}.get(city, 20)


def show(event: Event) -> None:
    match event:
        case MessageProgressEvent(chunk=TextChunk(text)):
            print(text, end="", flush=True)


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin(
            "scripted/script_contract.toml", invokers=[temperature], tool_mode="contract"
        )
        turn = await conversation.converse("What shall I wear in Oslo?")
        print()
        for canister in turn.canisters:
            print("-", type(canister).__name__)
            if isinstance(canister, ResultCanister):
                print("  ", canister.text)


asyncio.run(main())
