import asyncio
import tempfile
from pathlib import Path

from vibe_llms.memory import Memory, Scope


async def main() -> None:
    memory = Memory(Path(tempfile.mkdtemp()))
    ada = Scope.of_user("ada")
    await memory.add("Her train leaves at seven.", scope=ada, topics=("travel",))
    for found in await memory.search("When do trains leave?", scopes=[ada]):
        print(found.entry.content)
    await memory.close()


asyncio.run(main())
