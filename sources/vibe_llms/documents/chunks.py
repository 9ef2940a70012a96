"""Division of a text into chunks, at paragraphs if possible, else at lines, sentences, or words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

#: Separators, best first. A later one is used only for pieces that are still too long.
SEPARATORS = ("\n\n", "\n", ". ", " ", "")
#: Maximum characters of a chunk, and maximum overlap with the chunk before it.
SIZE, OVERLAP = 500, 50


def split_chunks(text: str, size: int = SIZE, overlap: int = OVERLAP) -> list[tuple[int, int]]:
    r"""Return the start and end of each chunk of a text. Together the chunks cover the text.

    A chunk has up to `size` characters. It begins with the last pieces of the chunk before it, if
    they have at most `overlap` characters. Separators belong to the piece before them. Chunks with
    only white space are omitted.

    >>> split_chunks("One. Two.\n\nThree.", 12, 5)
    [(0, 11), (11, 17)]
    """
    found = _split(text, 0, len(text), size, overlap, 0)
    return [(start, end) for start, end in found if not text[start:end].isspace()]


def _split(
    text: str, start: int, end: int, size: int, overlap: int, level: int
) -> Iterator[tuple[int, int]]:
    separator = SEPARATORS[level]
    if not separator:
        yield from _cut(start, end, size, overlap)
        return
    open_pieces: deque[tuple[int, int]] = deque()
    while start < end:
        place = text.find(separator, start, end)
        after = end if place < 0 else place + len(separator)
        if after - start > size:
            if open_pieces:
                yield open_pieces[0][0], open_pieces[-1][1]
                open_pieces.clear()
            yield from _split(text, start, after, size, overlap, level + 1)
        else:
            if open_pieces and after - open_pieces[0][0] > size:
                yield open_pieces[0][0], start
                while open_pieces and (
                    start - open_pieces[0][0] > overlap or after - open_pieces[0][0] > size
                ):
                    open_pieces.popleft()
            open_pieces.append((start, after))
        start = after
    if open_pieces:
        yield open_pieces[0][0], open_pieces[-1][1]


def _cut(start: int, end: int, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    while end - start > size:
        yield start, start + size
        start += size - overlap
    yield start, end
