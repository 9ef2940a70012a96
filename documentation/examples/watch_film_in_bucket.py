import asyncio

from vibe_llms import Location, VideoContent, open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("vertex/gemini-3.8-flash")
        film = VideoContent(Location("gs://my-bucket/door.mp4"))
        turn = await conversation.converse([film, "What happens here?"])
        print(turn.text)


asyncio.run(main())
