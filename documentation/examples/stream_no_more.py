import asyncio

from vibe_llms import AssistantCanister, MessageProgressEvent, open_session

SLOWLY = {"providers": {"scripted": {"pace-seconds": 0.02}}}


async def main() -> None:
    async with open_session(configuration=SLOWLY) as session:
        conversation = await session.begin("scripted/demo")
        words = 0
        async with conversation.stream("What can you do?") as events:
            async for event in events:
                words += isinstance(event, MessageProgressEvent)
                if words == 5:
                    break
        for canister in conversation.canisters[1:]:
            if isinstance(canister, AssistantCanister) and canister.ending is not None:
                print(canister.text, canister.ending.reason, sep="... ")


asyncio.run(main())
