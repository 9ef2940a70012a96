import asyncio
import readline  # noqa: F401  (arrow keys edit the line)
import sys
from pathlib import Path

from vibe_llms import Conversation, Session, VibeLlmsError, open_session

MODEL = "anthropic/claude-sonnet-5-5"
RULES = "Answer from the documents only. After each statement, name the document and the page."


async def begin(session: Session, folder: Path) -> Conversation:
    collection = folder.name
    done = await session.access_documents().add(collection, [folder])
    print(f"{collection}: {len(done.read)} read, {done.unchanged} unchanged, {done.removed} gone")
    for path, problem in done.problems.items():
        print(f"not read: {path}: {problem}")
    return await session.begin(MODEL, collections=[collection], supervisor=RULES)


async def main(folder: Path) -> None:
    async with open_session() as session:
        conversation = await begin(session, folder)
        while question := input("> ").strip():  # noqa: ASYNC250  (nothing else runs)
            try:
                async for text in conversation.stream(question).text():
                    print(text, end="", flush=True)
            except VibeLlmsError as error:
                print(f"[{error}]", end="")
            print()


if len(sys.argv) != 2:
    sys.exit("usage: python chat_with_pdfs.py FOLDER")
try:
    asyncio.run(main(Path(sys.argv[1]).resolve()))
except (EOFError, KeyboardInterrupt):
    print()
except VibeLlmsError as error:
    sys.exit(str(error))
