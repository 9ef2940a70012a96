import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session() as session:
        conversation = await session.resume("tutorial")
        other = await conversation.fork(at=1, name="privacy")
        await other.converse("What about privacy?")
        print(len(conversation.canisters), "messages in", conversation.name)
        print(len(other.canisters), "messages in", other.name)


asyncio.run(main())
