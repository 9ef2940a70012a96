import asyncio
import sys
import textwrap
from itertools import zip_longest

from vibe_llms import Conversation, VibeLlmsError, open_session

MODELS = ("anthropic/claude-sonnet-5-5", "openai/gpt-6.1-sol")
WIDTH = 40


async def answer(conversation: Conversation, model: str) -> str:
    """Ask in a fork, so that neither model sees the other's answer."""
    fork = await conversation.fork(name=f"by {model}")
    try:
        await fork.switch(model)
        turn = await fork.converse()
    except VibeLlmsError as error:
        return f"{model}\n\n[{error}]"
    usage = turn.usage
    return f"{model}\n\n{turn.text}\n\n{usage.input_tokens} + {usage.output_tokens} tokens"


def show(columns: list[str]) -> None:
    wrapped = [
        [line for part in one.splitlines() for line in textwrap.wrap(part, WIDTH) or [""]]
        for one in columns
    ]
    for row in zip_longest(*wrapped, fillvalue=""):
        print(" | ".join(f"{cell:{WIDTH}}" for cell in row).rstrip())


async def main(question: str, resumed: str | None) -> None:
    async with open_session() as session:
        if resumed:
            conversation = await session.resume(resumed)
        else:
            conversation = await session.begin(MODELS[0])
        start = await conversation.fork()
        await start.add(question)
        show(list(await asyncio.gather(*(answer(start, model) for model in MODELS))))


if len(sys.argv) not in (2, 3):
    sys.exit("usage: python compare_models.py QUESTION [CONVERSATION]")
try:
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
except VibeLlmsError as error:
    sys.exit(str(error))
