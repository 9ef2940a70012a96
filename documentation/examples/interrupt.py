import asyncio

from vibe_llms import AssistantCanister, open_session

SLOWLY = {"providers": {"scripted": {"pace-seconds": 0.02}}}


async def main() -> None:
    async with open_session(configuration=SLOWLY) as session:
        conversation = await session.begin("scripted/demo")
        task = asyncio.create_task(conversation.converse("What can you do?"))
        await asyncio.sleep(0.5)
        await conversation.cancel()
        turn = await task
        print(turn.stop_reason)

        try:
            async with asyncio.timeout(0.5):
                await conversation.converse("What can you do?")
        except TimeoutError:
            print("too slow")

        for canister in conversation.canisters:
            if isinstance(canister, AssistantCanister) and canister.ending is not None:
                print("kept, interrupted:", canister.ending.interrupted)


asyncio.run(main())
