import asyncio
from pathlib import Path

from vibe_llms import FileContent, open_session

REPORT = FileContent(Path("harbour.pdf").read_bytes(), "application/pdf", "harbour.pdf")


async def main() -> None:
    async with open_session() as session:
        documents = session.access_documents()
        text = await documents.read(REPORT)
        print(f"{text.title}: {text.pages} pages, {len(text.text)} characters")
        for found in await documents.find("Who keeps the lighthouse?", [REPORT]):
            print(f"{found.name}, {found.place}: {found.text[:40]!r} …")


asyncio.run(main())
