"""How much of the words of other tools' Markdown the readers find: `document_reading.py FOLDER`.

`document_reading.py --pages 1000` reads a PDF of so many pages instead, and says how long it takes.

FOLDER has a folder for each format, with `sources/NAME` and `groundtruth/NAME.md` (or, as some
tools write it, the name without its suffix), such as the test data of docling. The last line is
the median share of the words. A word that occurs several times counts as often.
"""

from __future__ import annotations

import asyncio
import random
import re
import resource
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.documents.making import make_pdf  # noqa: E402

from vibe_llms.base.configuration import load_configuration  # noqa: E402
from vibe_llms.base.exceptions import DocumentUnreadable  # noqa: E402
from vibe_llms.conversations.document_texts import Part  # noqa: E402
from vibe_llms.documents.reading import DocumentReader  # noqa: E402

#: What the tool writes of itself, and how it escapes.
_OWN = re.compile(r"<!--.*?-->|&[a-z]+;|\\(?=[_*#])", re.DOTALL)
_WORD = re.compile(r"[^\W_]+")


async def main(folder: Path) -> None:
    shares: list[float] = []
    print(f"{'share':>5}  {'words':>6}  file")
    async with DocumentReader(load_configuration()) as reader:
        for path in sorted(folder.glob("*/sources/*")):
            truth = path.parents[1] / "groundtruth"
            found = [truth / f"{path.name}.md", truth / f"{path.stem}.md"]
            expected = next((one for one in found if one.exists()), None)
            if expected is None:
                continue
            words = count_words(_OWN.sub(" ", expected.read_text("utf-8")))
            try:
                text = await reader.read(path)
                ours, remark = count_words(text.text), " ".join(text.notices)
            except DocumentUnreadable as error:
                ours, remark = Counter(), str(error)
            share = (words & ours).total() / words.total() if words else 1.0
            shares.append(share)
            print(f"{share:5.3f}  {words.total():6}  {path.parents[1].name}/{path.name}  {remark}")
            if "--words" in sys.argv and share < 0.97:
                print("       missing:", *list((words - ours).elements())[:40])
    below = sum(share < 0.9 for share in shares)
    print(f"{len(shares)} files, {below} below 0.90")
    print(f"median {statistics.median(shares):.3f}")


async def measure(count: int) -> None:
    """The time of a PDF's pages, with the start of the process."""
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
    lines = ["\n".join(" ".join(chance.choices(words, k=13)) for _ in range(45))] * count
    data = make_pdf(lines)
    for _ in range(3):
        used = sum_cpu()
        async with DocumentReader(load_configuration()) as reader:
            begun, pages, first = time.perf_counter(), 0, 0.0
            async for item in reader.stream(data, "pages.pdf"):
                pages += isinstance(item, Part)
                if pages == 50 and not first:
                    first = time.perf_counter() - begun
            elapsed = time.perf_counter() - begun
        print(
            f"first 50 pages {first:.2f} s, {pages} pages {elapsed:.2f} s, "
            f"of both processes {sum_cpu() - used:.2f} s of CPU time"
        )


def sum_cpu() -> float:
    """The CPU time of this process and of those that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def count_words(text: str) -> Counter[str]:
    return Counter(word.lower() for word in _WORD.findall(text))


if __name__ == "__main__":
    if sys.argv[1] == "--pages":
        asyncio.run(measure(int(sys.argv[2])))
    else:
        asyncio.run(main(Path(sys.argv[1])))
