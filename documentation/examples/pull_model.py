import asyncio

from vibe_llms import open_session
from vibe_llms.providers.ollama.model import OllamaModel


async def main() -> None:
    async with open_session() as session:
        model = await session.access_model("ollama/phi4")
        assert isinstance(model, OllamaModel)
        async with model.client.produce_library() as library:
            async for progress in library.pull(model.name):
                print(progress.text)
            print([one.name for one in await library.list()])


asyncio.run(main())
