import asyncio

from vibe_llms import Event, NoticeEvent, open_session

SETTINGS = {"providers": {"scripted": {"requests-per-minute": 1}}}


def show(event: Event) -> None:
    if isinstance(event, NoticeEvent):
        print(event.notice.subject, "-", event.notice.text)


async def main() -> None:
    async with open_session(configuration=SETTINGS, event_handler=show) as session:
        one = await session.begin("scripted/demo")
        other = await session.begin("scripted/demo")
        print((await one.converse("Hello!")).text)
        try:
            async with asyncio.timeout(3):
                await other.converse("Hello!")
        except TimeoutError:
            print("Another time.")


asyncio.run(main())
