import asyncio

from vibe_llms import open_session

started = asyncio.Event()


async def forecast(city: str) -> str:
    """Tell the weather of tomorrow."""
    started.set()
    await asyncio.sleep(0.2)
    return f"clear in {city}"


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", invokers=[forecast])
        task = asyncio.create_task(conversation.converse('Make a forecast for "Oslo".'))
        await started.wait()
        await conversation.steer("Say hello, too.")
        mistake = await conversation.steer("Whcih tools do you have?")
        print("queued:", len(conversation.queued))
        await conversation.take_back(mistake)
        for canister in (await task).canisters:
            print(type(canister).__name__, getattr(canister, "text", ""))


asyncio.run(main())
