import asyncio

from vibe_llms import Location, VideoContent, open_session, read_attachment


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("gemini/gemini-3.8-flash")
        turn = await conversation.converse([read_attachment("door.mp4"), "What happens here?"])
        print(turn.text)
        film = VideoContent(Location("https://www.youtube.com/watch?v=aqz-KE-bpKQ"))
        turn = await conversation.converse([film, "And in this one?"])
        print(turn.text)


asyncio.run(main())
