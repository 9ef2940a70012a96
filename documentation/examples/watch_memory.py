import asyncio
import tempfile
from pathlib import Path

from vibe_llms.memory import Memory, watch


async def main() -> None:
    memory = Memory(Path(tempfile.mkdtemp()))
    entry = await memory.add("Ada keeps bees.")
    (path,) = memory.folder.rglob(f"*{entry.identity}.md")
    async with watch(memory) as changes:
        path.write_text(path.read_text().replace("bees", "goats"))
        async for change in changes:
            print(change.scope, change.changed)
            break
    await memory.close()


asyncio.run(main())
