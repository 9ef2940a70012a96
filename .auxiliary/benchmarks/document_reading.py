"""How much of the words of other tools' Markdown the readers find: `document_reading.py FOLDER`.

FOLDER has a folder for each format, with `sources/NAME` and `groundtruth/NAME.md` (or, as some
tools write it, the name without its suffix), such as the test data of docling. The last line is
the median share of the words. A word that occurs several times counts as often.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

from vibe_llms.configuration import load_configuration
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.exceptions import DocumentUnreadable

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


def count_words(text: str) -> Counter[str]:
    return Counter(word.lower() for word in _WORD.findall(text))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
