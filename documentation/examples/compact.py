import asyncio

from vibe_llms import DigestCanister, Event, NoticeEvent, UserCanister, open_session


def show(event: Event) -> None:
    if isinstance(event, NoticeEvent) and event.notice.subject == "context":
        print("notice:", event.notice.text)


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin("scripted/script_sailor.toml")
        for day in range(1, 13):
            await conversation.converse(f"Day {day}: how do I sail around the island?")
        digests = [one for one in conversation.canisters if isinstance(one, DigestCanister)]
        print(len(conversation.canisters), "messages,", len(digests), "of them a digest:")
        print(digests[0].text)
        said = [one.text for one in conversation.canisters if isinstance(one, UserCanister)]
        print("still stored:", said[0])


asyncio.run(main())
