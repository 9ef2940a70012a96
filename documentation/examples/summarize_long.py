import asyncio
import sys
from pathlib import Path

from vibe_llms import Session, VibeLlmsError, open_session

MODEL = "anthropic/claude-haiku-5-5"
FINAL_MODEL = "anthropic/claude-sonnet-5-5"
PIECE_CHARACTERS = 40_000
PARALLEL = 4


def cut(text: str, size: int) -> list[str]:
    """Cut between paragraphs; a longer paragraph stays whole."""
    pieces = [""]
    for paragraph in text.split("\n\n"):
        if pieces[-1] and len(pieces[-1]) + len(paragraph) > size:
            pieces.append("")
        pieces[-1] += paragraph + "\n\n"
    return pieces


async def ask(session: Session, model: str, instructions: str, text: str) -> str:
    conversation = await session.begin(model, supervisor=instructions, save=False)
    return (await conversation.converse(text)).text


async def main(path: Path, size: int) -> None:
    slots = asyncio.Semaphore(PARALLEL)
    async with open_session() as session:
        document = await session.access_documents().reader.read(path)
        pieces = cut(document.text, size)

        async def summarize(number: int, piece: str) -> str:
            async with slots:
                part = f"part {number} of {len(pieces)} of {document.title or path.name}"
                rule = f"Summarize {part} in at most 100 words. Keep names, numbers and dates."
                summary = await ask(session, MODEL, rule, piece)
                print(f"({part}: {len(piece):,} characters)", file=sys.stderr)
                return f"[Part {number}]\n{summary}"

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(summarize(number, piece))
                for number, piece in enumerate(pieces, 1)
            ]
        rule = "These are summaries of the parts of one document, in order. Summarize the whole."
        print(await ask(session, FINAL_MODEL, rule, "\n\n".join(task.result() for task in tasks)))


if len(sys.argv) not in (2, 3):
    sys.exit("usage: python summarize_long.py FILE [CHARACTERS]")
try:
    asyncio.run(
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else PIECE_CHARACTERS)
    )
except* (OSError, VibeLlmsError) as group:
    sys.exit(f"{group.exceptions[0]}")
