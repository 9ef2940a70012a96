"""The reader of plain text, Markdown, JSON and source code."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress

from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.readers.packages import import_package
from vibe_llms.documents.texts import Part
from vibe_llms.exceptions import DocumentUnreadable

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: How HTML and XML name their encoding.
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
#: A page in these could not say so in ASCII, or they are slow encodings of names.
_REFUSED = (b"utf-16", b"utf-32", b"utf-7", b"idna", b"punycode")
#: Long texts are split after a paragraph from here on.
_PART_CHARACTERS = 100_000
#: What the encoding is guessed from.
_SAMPLE_BYTES = 256 * 1024


def decode(data: bytes) -> str:
    """The bytes of a text file as text, with line feeds; the encoding is guessed if need be."""
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
    """The bytes of an HTML or XML file as text; what it says of its encoding counts."""
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
    # Of encodings that fit as well, the one of Western Europe is by far the most usual.
    likely = [one for one in found if one.chaos <= found[0].chaos + 0.02]
    best = max(likely, key=lambda one: (one.coherence, one.encoding == "cp1252"))
    return str(best.encoding)


def read_text(source: Source) -> Iterator[Part | Remark]:
    """The text as it is, in parts of moderate size."""
    text = decode(source.file.read())
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > _PART_CHARACTERS:
            found = text.find("\n\n", start + _PART_CHARACTERS)
            end = found + 2 if found >= 0 else end
        yield Part(text[start:end])
        start = end


def read_markdown(source: Source) -> Iterator[Part | Remark]:
    """The text as it is, in a part for each heading."""
    yield from split_headings(decode(source.file.read()))


register("text", read_text)
register("markdown", read_markdown)
