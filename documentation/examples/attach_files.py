import asyncio

from vibe_llms import ImageContent, Location, open_session, read_attachment


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5")
        picture = read_attachment("sky.png")
        turn = await conversation.converse([picture, "What is in this picture?"])
        print(turn.text)
        turn = await conversation.converse(
            [
                ImageContent(Location("https://example.org/cloud.jpg"), "image/jpeg"),
                read_attachment("https://example.org/report.pdf"),
                "And in these? Nothing of them is downloaded here.",
            ]
        )
        print(turn.text)


asyncio.run(main())
