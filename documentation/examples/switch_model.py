import asyncio

from vibe_llms import NoticeEvent, open_session


def show(event: object) -> None:
    match event:
        case NoticeEvent(notice=notice):
            print("note:", notice.text)


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin("scripted/demo")
        await conversation.converse("Please think about it.")
        await conversation.switch("anthropic/claude-sonnet-5-5")
        turn = await conversation.converse("Why is the sky blue?")
        print(turn.text)
        await conversation.switch("scripted/demo")
        print(len(conversation.canisters), "messages, unchanged by the switch")


asyncio.run(main())
