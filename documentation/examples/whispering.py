from __future__ import annotations

from collections.abc import Iterator

from vibe_llms.documents import Part, Place, ReaderNotice, Source, register_reader


def read_whispering(source: Source) -> Iterator[Part | ReaderNotice]:
    """A page for each line of the file, in lower case."""
    lines = source.file.read().decode().splitlines()
    yield ReaderNotice(title="Whispers", pages=len(lines))
    for number, line in enumerate(lines, 1):
        yield Part(line.lower() + source.settings.get("ending", ""), Place(number))


register_reader("whispering", read_whispering)
