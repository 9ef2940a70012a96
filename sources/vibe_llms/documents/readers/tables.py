"""The reader of CSV and TSV files, and tables as parts of a document."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.readers.markup import draw_table
from vibe_llms.documents.readers.texts import decode
from vibe_llms.documents.texts import Part, Place
from vibe_llms.exceptions import DocumentUnreadable

#: A longer table is several parts, each with the heading of the table.
_PART_ROWS = 500
_SAMPLE = 16 * 1024
_DELIMITERS = ",;\t|"
_LARGEST_CELL = 2**31 - 1


def read_csv(source: Source) -> Iterator[Part | Remark]:
    """The rows as a Markdown table; the delimiter is the one that the first lines agree on."""
    text = decode(source.file.read())
    csv.field_size_limit(_LARGEST_CELL)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_find_delimiter(text, source.name))
    try:
        yield from draw_parts(rows, Place())
    except csv.Error as error:
        raise DocumentUnreadable(f"it is not a valid CSV file ({error})") from error


def _find_delimiter(text: str, name: str) -> str:
    """The delimiter with the most columns in the most lines."""
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
    """The runs of rows that are not empty, one after the other."""
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
    """Rows as parts with Markdown tables; a single cell is plain text."""
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
    """A table without the columns that are empty on its left."""
    every = [head, *rows]
    first = min(next((index for index, cell in enumerate(row) if cell), len(row)) for row in every)
    return draw_table(row[first:] for row in every)


register("csv", read_csv)
