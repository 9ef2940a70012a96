import asyncio
import csv
import sys
from pathlib import Path

from vibe_llms import Conversation, VibeLlmsError, open_session

MODEL = "anthropic/claude-sonnet-5-5"
RULES = """\
Translate each message from English to German. Reply with the translation only.
Use these terms, inflected as the sentence needs:
"""


def read_glossary(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8") as file:
        return dict(csv.reader(file))


async def translate(conversation: Conversation, text: str, glossary: dict[str, str]) -> str:
    turn = await conversation.converse(text)
    terms = [(en, de) for en, de in glossary.items() if en.lower() in text.lower()]
    # The stem, because German words are inflected.
    missed = [f"{en} = {de}" for en, de in terms if de[:-2].lower() not in turn.text.lower()]
    if missed:
        turn = await conversation.converse(f"Translate it again, with: {'; '.join(missed)}")
        print(f"(asked again for {', '.join(missed)})", file=sys.stderr)
    return turn.text


async def main(name: str, text: str, glossary: dict[str, str]) -> None:
    rules = RULES + "\n".join(f"- {en} = {de}" for en, de in glossary.items())
    async with open_session() as session:
        conversation = await session.begin(MODEL, supervisor=rules, name=name)
        # Later paragraphs see the earlier ones, so that names and tone stay the same.
        for paragraph in text.split("\n\n"):
            print(await translate(conversation, paragraph.strip(), glossary), end="\n\n")


if len(sys.argv) != 3:
    sys.exit("usage: python translate.py FILE GLOSSARY")
try:
    glossary = read_glossary(Path(sys.argv[2]))
    source = Path(sys.argv[1])
    asyncio.run(main(f"translation of {source.name}", source.read_text("utf-8"), glossary))
except (OSError, ValueError, VibeLlmsError) as error:
    sys.exit(f"{error}")
