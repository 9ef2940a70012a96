import asyncio

from vibe_llms import AssistantCanister, Event, NoticeEvent, open_session


def show(event: Event) -> None:
    if isinstance(event, NoticeEvent):
        print("notice:", event.notice.text)


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin("scripted/script_busy.toml", fallback=["scripted/demo"])
        for _ in range(2):
            turn = await conversation.converse("Which models are there?")
            for canister in turn.canisters:
                if isinstance(canister, AssistantCanister) and canister.provenance:
                    print("answered by", canister.provenance.model)


asyncio.run(main())
