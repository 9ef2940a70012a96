import asyncio
import csv
import sys
from dataclasses import asdict, dataclass, fields
from datetime import date
from decimal import Decimal
from pathlib import Path

from vibe_llms import VibeLlmsError, open_session, read_document
from vibe_llms.base.exceptions import OutputCut, OutputInvalid

MODEL = "anthropic/claude-sonnet-5-5"


@dataclass
class Line:
    """One line of an invoice."""

    delivered: date
    article: str
    quantity: int
    price: Decimal


async def extract(path: str) -> list[Line]:
    async with open_session() as session:
        conversation = await session.begin(MODEL, save=False)
        wish = "List all lines of this invoice, with the price of one."
        turn = await conversation.converse([read_document(path), wish], output=list[Line])
        return turn.output


def write(lines: list[Line], path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Line)])
        table.writeheader()
        table.writerows(asdict(line) for line in lines)


if len(sys.argv) != 2:
    sys.exit("usage: python extract_table.py FILE")
source = sys.argv[1]
target = Path(source).with_suffix(".csv")
try:
    lines = asyncio.run(extract(source))
except OutputCut:
    sys.exit("the table is too long for one reply; set the control output_tokens, or split it")
except OutputInvalid as error:
    sys.exit(f"no table was found: {error}")
except VibeLlmsError as error:
    sys.exit(str(error))
write(lines, target)
print(f"{target}: {len(lines)} lines,", sum(line.quantity * line.price for line in lines), "in all")
