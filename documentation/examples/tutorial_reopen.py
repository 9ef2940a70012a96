import asyncio

from vibe_llms import AssistantCanister, UserCanister, open_session


async def main() -> None:
    async with open_session() as session:
        for summary in await session.survey_conversations():
            print(summary.name, summary.messages)
        conversation = await session.resume("privacy")
        for canister in conversation.canisters:
            match canister:
                case UserCanister():
                    print("you:", canister.text)
                case AssistantCanister():
                    print("model:", canister.text.splitlines()[0])


asyncio.run(main())
