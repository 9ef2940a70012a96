import asyncio
from pathlib import Path

from vibe_llms.base.configuration import load_configuration
from vibe_llms.documents import DocumentReader


async def main() -> None:
    async with DocumentReader(load_configuration()) as reader:
        document = await reader.read(Path("notes.txt"))
        print(document.format, len(document.text), document.notices)
        async for item in reader.stream(b"<h1>Duck</h1><p>A bird.", "duck.html"):
            print(item)


asyncio.run(main())
