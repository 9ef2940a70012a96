import asyncio

from vibe_llms import open_session


async def main() -> None:
    async with open_session() as session:
        report = await session.import_agents(["summarize.yaml", "grammar-genie.md"])
        for one in report.agents:
            print(f"{one.status}: {one.name}", *one.reasons)


asyncio.run(main())
