from __future__ import annotations

from collections.abc import Iterator

from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.texts import Part, Place


def read_whispering(source: Source) -> Iterator[Part | Remark]:
    """A page for each line of the file, in lower case."""
    lines = source.file.read().decode().splitlines()
    yield Remark(title="Whispers", pages=len(lines))
    for number, line in enumerate(lines, 1):
        yield Part(line.lower() + source.settings.get("ending", ""), Place(number))


register("whispering", read_whispering)
