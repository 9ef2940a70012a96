import asyncio
import sys

from vibe_llms import UserCanister, open_session
from vibe_llms.ensembles.mcp import McpEnsemble

ROWS = {
    "tables": {
        "module": "vibe_llms.ensembles.mcp",
        "command": [sys.executable, "table_server.py"],
        "open-seconds": 60,
    }
}


async def main() -> None:
    async with open_session(configuration={"ensembles": ROWS}) as session:
        tables = await session.open_ensemble("tables")
        assert isinstance(tables, McpEnsemble)
        for resource in await tables.survey_resources():
            print(resource.uri, "-", resource.description)
        menu = await tables.read_resource("tables://menu")
        order = await tables.read_prompt("order", {"dish": "fish"})
        conversation = await session.begin("scripted/demo")
        turn = await conversation.converse([*menu, *order])
        for canister in turn.canisters:
            if isinstance(canister, UserCanister):
                print(canister.text)


asyncio.run(main())
