import asyncio
import subprocess

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

SERVE = ("vibe-llms", "serve", "--port", "8665", "--quiet")


async def main(key: str) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
        url = "http://127.0.0.1:8665/mcp?read_only=true"
        async with Client(streamable_http_client(url, http_client=http)) as client:
            for tool in (await client.list_tools()).tools:
                print(tool.name)


with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    _, key_line = next(server.stdout), next(server.stdout)
    asyncio.run(main(key_line.strip().partition("=")[2]))
    server.terminate()
