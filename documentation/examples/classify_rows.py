import asyncio
import csv
import sys
from pathlib import Path
from typing import Literal

from vibe_llms import Session, VibeLlmsError, open_session
from vibe_llms.base.exceptions import OutputInvalid

MODEL = "anthropic/claude-haiku-5-5"
LIMITS = {"providers": {"anthropic": {"requests-per-minute": 50, "tokens-per-minute": 40_000}}}
RULES = "You sort messages to a ferry company. A complaint about money is billing."

Label = Literal["billing", "timetable", "lost property", "other"]


async def classify(session: Session, text: str) -> Label | Literal["unclear"]:
    # A conversation for each row: no row sees another, and nothing is stored.
    conversation = await session.begin(MODEL, supervisor=RULES, save=False)
    try:
        turn = await conversation.converse(text, output=Label)
    except OutputInvalid:
        return "unclear"
    label: Label = turn.output
    return label


def read_done(target: Path) -> set[str]:
    """Return the ids that an earlier start has written."""
    if not target.exists():
        return set()
    with target.open(newline="") as file:
        return {row["id"] for row in csv.DictReader(file)}


async def main(source: Path, target: Path) -> None:
    done = read_done(target)
    with source.open(newline="") as file:
        waiting = [row for row in csv.DictReader(file) if row["id"] not in done]
    print(f"{len(done)} done, {len(waiting)} to do")
    with target.open("a", newline="") as file:
        if not done:
            csv.writer(file).writerow(["id", "label"])
        async with open_session(configuration=LIMITS) as session:

            async def work(row: dict[str, str]) -> None:
                label = await classify(session, row["text"])
                csv.writer(file).writerow([row["id"], label])
                file.flush()

            async with asyncio.TaskGroup() as group:
                for row in waiting:
                    group.create_task(work(row))


if len(sys.argv) != 3:
    sys.exit("usage: python classify_rows.py SOURCE TARGET")
try:
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
except* (OSError, VibeLlmsError) as group:
    sys.exit(f"{group.exceptions[0]}; start again to go on")
