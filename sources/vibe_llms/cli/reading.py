"""The command `read`: prints the text of a document as Markdown while it is read."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import click
from msgspec import Struct

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.cli.completion import complete_paths
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.conversations.document_texts import BREAK, Part
from vibe_llms.documents.extracts import PAGE
from vibe_llms.documents.readers.interfaces import ReaderNotice
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.documents.settings import read_document_settings

_STANDARD_INPUT = "-"
_INPUT_NAME = "standard input"
#: Exit status for a text that ends early, as for a cut answer.
_INCOMPLETE = 65


class _Asked(Struct, frozen=True):
    """A document to print, or one page of it."""

    source: Path | bytes
    name: str
    page: int
    password: str
    reader: str


@click.command("read")
@click.argument("file", metavar="FILE", shell_complete=complete_paths)
@click.option("--page", type=click.IntRange(min=1), help="Print one page only.")
@click.option("--password-stdin", is_flag=True, help="Read the file's password from stdin.")
@click.option("--reader", default="", metavar="NAME", help="Use this reader of the configuration.")
@json_option
def read(file: str, page: int | None, password_stdin: bool, reader: str, as_json: bool) -> int:
    """Print the text of a document as Markdown.

    Reads PDF, Word, Excel, PowerPoint, OpenDocument, HTML, EPUB, mail, CSV and text; - is stdin. In
    a document without pages, a page is 10,000 characters. The status is 65 if the text ends early.
    """
    configuration = load_configuration()
    if file == _STANDARD_INPUT:
        if password_stdin:
            raise click.UsageError("--password-stdin and - exclude each other.")
        limit = read_document_settings(configuration).limits.file_bytes
        asked = _Asked(sys.stdin.buffer.read(limit + 1), _INPUT_NAME, page or 0, "", reader)
    else:
        password = sys.stdin.readline().rstrip("\r\n") if password_stdin else ""
        asked = _Asked(Path(file), Path(file).name, page or 0, password, reader)

    async def work() -> bool:
        async with DocumentReader(configuration) as documents:
            try:
                if as_json:
                    return await _print_json(documents, asked)
                return await _print(documents, asked)
            except DocumentUnreadable as error:
                if not error.password:
                    raise
                raise DocumentUnreadable(f"{error}; give it with --password-stdin") from error

    return 0 if asyncio.run(work()) else _INCOMPLETE


COMMANDS: dict[str, click.Command] = {"read": read}


async def _print(documents: DocumentReader, asked: _Asked) -> bool:
    """Print the text as it is read; return True if it is complete."""
    complete, printed = True, False
    async with aclosing(_stream(documents, asked)) as items:
        async for item in items:
            if isinstance(item, Part):
                text = item.text.strip("\n")
                write(sys.stdout, shown(f"{BREAK if printed else ''}{text}"))
                printed = True
                continue
            complete = complete and item.complete
            if item.problem:
                note(f"note: {item.problem}")
    if printed:
        write(sys.stdout, "\n")
    return complete


async def _print_json(documents: DocumentReader, asked: _Asked) -> bool:
    parts: list[dict[str, str | int]] = []
    about = ReaderNotice(title=asked.name)
    notices: list[str] = []
    async with aclosing(_stream(documents, asked)) as items:
        async for item in items:
            if isinstance(item, Part):
                place = item.place
                parts.append(
                    {
                        "text": item.text.strip("\n"),
                        "page": place.page,
                        "sheet": place.sheet,
                        "heading": place.heading,
                    }
                )
                continue
            about = ReaderNotice(
                title=item.title or about.title,
                pages=item.pages or about.pages,
                format=item.format or about.format,
                complete=item.complete and about.complete,
            )
            notices += filter(None, [item.problem])
    described = {
        "title": about.title,
        "format": about.format,
        "pages": about.pages,
        "complete": about.complete,
        "notices": notices,
        "parts": parts,
    }
    write_json(json.dumps(described, ensure_ascii=False))
    return about.complete


async def _stream(
    documents: DocumentReader, asked: _Asked
) -> AsyncGenerator[Part | ReaderNotice, None]:
    """Yield the wanted parts of a document; raise `DocumentUnreadable` if the page is missing."""
    start = (asked.page - 1) * PAGE
    end = start + PAGE
    pages = offset = 0
    found = not asked.page
    name = "" if isinstance(asked.source, Path) else asked.name
    items = documents.stream(asked.source, name, password=asked.password, reader=asked.reader)
    async with aclosing(items):
        async for item in items:
            if isinstance(item, ReaderNotice):
                pages = item.pages or pages
                if 0 < pages < asked.page:
                    break
                yield item
            elif not asked.page:
                yield item
            elif item.place.page:
                pages = max(pages, item.place.page)
                if item.place.page > asked.page:
                    break
                if item.place.page == asked.page:
                    found = True
                    yield item
            else:
                text = item.text.strip("\n")
                if piece := text[max(0, start - offset) : max(0, end - offset)]:
                    found = True
                    yield Part(piece, item.place)
                offset += len(text) + len(BREAK)
                if offset >= end:
                    break
    if not found:
        pages = pages or -(-offset // PAGE)
        count = "1 page" if pages == 1 else f"{pages:,} pages"
        problem = f"it has {count}" if pages < asked.page else "it has no text; it may be a scan"
        raise DocumentUnreadable(f"{asked.name}: page {asked.page} not found: {problem}")
