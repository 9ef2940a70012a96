import asyncio

from vibe_llms import Invoker, open_session

# From another library or a file, for example.
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def look_up(city: str) -> str:
    return f"{city} lies by the sea."


async def main() -> None:
    find = Invoker.from_schema(
        "find", SCHEMA, look_up, description="Find a city.", timeout_seconds=20
    )
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", invokers=[find])
        print((await conversation.converse("Find Oslo.")).text)


asyncio.run(main())
