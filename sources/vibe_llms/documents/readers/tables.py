"""Reader of CSV and TSV files, and conversion of tables to parts of a document."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import draw_table
from vibe_llms.documents.readers.texts import decode

#: Rows per part. A longer table becomes several parts, each with the table's heading.
_PART_ROWS = 500
_SAMPLE = 16 * 1024
_DELIMITERS = ",;\t|"
_LARGEST_CELL = 2**31 - 1


def read_csv(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the rows as a Markdown table, with the delimiter that fits the first lines best."""
    text = decode(source.file.read())
    csv.field_size_limit(_LARGEST_CELL)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_find_delimiter(text, source.name))
    try:
        yield from draw_parts(rows, Place())
    except csv.Error as error:
        raise DocumentUnreadable(f"it is not a valid CSV file ({error})") from error


def _find_delimiter(text: str, name: str) -> str:
    """Return the delimiter with the most columns in the most lines."""
    lines = text[:_SAMPLE].splitlines()[:50]
    if len(text) > _SAMPLE and len(lines) > 1:
        lines.pop()
    best, usual = (0, 0), "\t" if name.lower().endswith((".tsv", ".tab")) else ","
    found = usual
    for delimiter in (usual, *_DELIMITERS):
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        width = max(set(widths), key=widths.count, default=1)
        if width > 1 and (widths.count(width), width) > best:
            best, found = (widths.count(width), width), delimiter
    return found


def split_blocks(rows: Iterable[list[str]]) -> Iterator[Iterator[list[str]]]:
    """Yield the runs of nonempty rows one by one."""
    rows = iter(rows)
    for row in rows:
        if any(row):
            rest = iter(rows)

            def run(
                first: list[str] = row, rest: Iterator[list[str]] = rest
            ) -> Iterator[list[str]]:
                yield first
                for following in rest:
                    if not any(following):
                        return
                    yield following

            yield run()


def draw_parts(rows: Iterable[Sequence[str]], place: Place) -> Iterator[Part]:
    """Yield rows as parts with Markdown tables. A single cell becomes plain text."""
    rows = (row for row in rows if any(cell.strip() for cell in row))
    head = next(rows, None)
    if head is None:
        return
    block = list(islice(rows, _PART_ROWS))
    if not block and sum(1 for cell in head if cell.strip()) == 1:
        yield Part("".join(head).strip(), place)
        return
    yield Part(_draw(head, block), place)
    while block := list(islice(rows, _PART_ROWS)):
        yield Part(_draw(head, block), place)


def _draw(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table without the empty columns on its left."""
    every = [head, *rows]
    first = min(next((index for index, cell in enumerate(row) if cell), len(row)) for row in every)
    return draw_table(row[first:] for row in every)


register("csv", read_csv)
