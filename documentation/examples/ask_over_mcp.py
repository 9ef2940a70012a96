import asyncio
import os

from mcp import Client, StdioServerParameters

SERVER = StdioServerParameters(command="vibe-llms", args=["mcp", "serve"], env=dict(os.environ))


async def main() -> None:
    async with Client(SERVER) as client:
        asked = await client.call_tool("chat", {"message": "Hello!", "model": "scripted/demo"})
        reply = asked.structured_content
        print(reply["status"], reply["text"])
    # Another connection, another day.
    async with Client(SERVER) as client:
        conversation = reply["conversation"]
        await client.call_tool("chat", {"message": "Thanks.", "conversation": conversation})
        read = await client.call_tool("read_conversation", {"conversation": conversation})
        for message in read.structured_content["messages"]:
            print(message["role"], message["text"][:6])


asyncio.run(main())
