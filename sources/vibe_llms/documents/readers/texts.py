"""Reader of plain text, Markdown, JSON, and source code."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.packages import import_package

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Declaration of an encoding in HTML and XML.
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
#: A page in these encodings could not declare them in ASCII, or they are slow encodings of names.
_REFUSED = (b"utf-16", b"utf-32", b"utf-7", b"idna", b"punycode")
#: Characters after which a long text is split at the next paragraph.
_PART_CHARACTERS = 100_000
#: Bytes of the sample for guessing an encoding.
_SAMPLE_BYTES = 256 * 1024


def decode(data: bytes) -> str:
    """Return a text file's text with line feeds. The encoding is guessed if necessary."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "")
    try:
        text = data.decode(encoding or "utf-8", "replace" if encoding else "strict")
    except UnicodeDecodeError:
        text = data.decode(_guess(data), "replace")
        if text.count("\ufffd") > len(text) // 10:
            raise DocumentUnreadable(
                "it is not text in any known encoding; convert it to UTF-8"
            ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decode_page(data: bytes) -> str:
    """Return the text of an HTML or XML file, decoded as it declares."""
    if not data.startswith(tuple(mark for mark, _ in _MARKS)):
        declared = _DECLARED.search(data[:2048])
        if declared and not declared[1].lower().startswith(_REFUSED):
            with suppress(LookupError, UnicodeDecodeError):
                return data.decode(declared[1].decode("ascii"))
    return decode(data)


def _guess(data: bytes) -> str:
    package = import_package(
        "charset_normalizer", "charset-normalizer", "reading text that is not UTF-8"
    )
    found = list(package.from_bytes(data[:_SAMPLE_BYTES]))
    if not found:
        return "utf-8"
    # Of equally good encodings, that of Western Europe is by far the most common.
    likely = [one for one in found if one.chaos <= found[0].chaos + 0.02]
    best = max(likely, key=lambda one: (one.coherence, one.encoding == "cp1252"))
    return str(best.encoding)


def read_text(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the text as it is, in parts of moderate size."""
    text = decode(source.file.read())
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > _PART_CHARACTERS:
            found = text.find("\n\n", start + _PART_CHARACTERS)
            end = found + 2 if found >= 0 else end
        yield Part(text[start:end])
        start = end


def read_markdown(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the text as it is, in a part for each heading."""
    yield from split_headings(decode(source.file.read()))


register("text", read_text)
register("markdown", read_markdown)
