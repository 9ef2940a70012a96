import asyncio
import sys

from vibe_llms import ElicitationAnswer, ElicitationRequest, open_session

ROWS = {
    "tables": {
        "module": "vibe_llms.ensembles.mcp",
        "command": [sys.executable, "table_server.py"],
        "open-seconds": 60,
    }
}


async def answer(request: ElicitationRequest) -> ElicitationAnswer:
    print(f"{request.ensemble} asks: {request.message}")
    for field in request.fields:
        print(f"- {field.title or field.name}: {field.kind}, default {field.default}")
    return ElicitationAnswer("accept", {"name": "Ada", "seats": 3})


async def main() -> None:
    async with open_session(configuration={"ensembles": ROWS}, elicitor=answer) as session:
        conversation = await session.begin("scripted/demo", ensembles=["tables"])
        print((await conversation.converse("Book a table!")).text)


asyncio.run(main())
