import asyncio

from vibe_llms import open_session
from vibe_llms.importing import ImportProgress


def show(progress: ImportProgress) -> None:
    one = progress.conversation
    print(f"{one.status}: {one.title}", *one.reasons)


async def main() -> None:
    async with open_session() as session:
        report = await session.import_conversations("conversations.json", progress=show)
        print(report.messages, "messages")


asyncio.run(main())
