"""The reader of DOCX files, with mammoth."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

from vibe_llms.documents.readers.archives import opened_zip, parse_xml
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import Remark, Source, register
from vibe_llms.documents.readers.markup import draw_markdown, parse_html
from vibe_llms.documents.readers.packages import import_package
from vibe_llms.documents.texts import Part

_BODY = "word/document.xml"
_PROPERTIES = "docProps/core.xml"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
#: The texts in a run of a formula, which mammoth leaves out, and the elements around them.
_FORMULA_TEXT = re.compile(rb"<m:t(?: [^<>]*)?>([^<]*)</m:t>")
_FORMULA_MARK = re.compile(rb"</?m:[^<>]*>")
_STYLES = "comment-reference => sup"


def read_word(source: Source) -> Iterator[Part | Remark]:
    """The text with headings, lists, tables and comments, as Markdown."""
    package = import_package("mammoth", "mammoth", "reading DOCX files")
    with opened_zip(source.file) as archive:
        title = ""
        if _PROPERTIES in archive.namelist():
            title = parse_xml(archive.read(_PROPERTIES)).findtext(_TITLE) or ""
        file = _write_formulas(archive, source.file)
    if title.strip():
        yield Remark(title=" ".join(title.split()))
    page = package.convert_to_html(
        file,
        style_map=_STYLES,
        convert_image=package.images.img_element(lambda _: {}),
        include_embedded_style_map=False,
    ).value
    root = parse_html(page).body
    if root is not None:
        yield from split_headings(draw_markdown(root))


def _write_formulas(archive: zipfile.ZipFile, file: BinaryIO) -> BinaryIO:
    """The file with its formulas as plain text."""
    body = archive.read(_BODY)
    if b"<m:oMath" not in body:
        # Mammoth uses the name of an open file, and this one has none.
        file.seek(0)
        return io.BytesIO(file.read())
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as written:
        for name in archive.namelist():
            content = archive.read(name)
            if name == _BODY:
                content = _FORMULA_MARK.sub(b"", _write_runs(content))
            written.writestr(name, content)
    copy.seek(0)
    return copy


def _write_runs(content: bytes) -> bytes:
    """The body with the runs of its formulas as runs of text."""
    *runs, rest = content.split(b"</m:r>")
    parts: list[bytes] = []
    for run in runs:
        start = max(run.rfind(b"<m:r>"), run.rfind(b"<m:r "))
        if start < 0:
            parts.append(run)
            continue
        text = b"".join(_FORMULA_TEXT.findall(run, start))
        parts += [run[:start], b'<w:r><w:t xml:space="preserve">%s</w:t></w:r>' % text]
    return b"".join([*parts, rest])


register("word", read_word)
