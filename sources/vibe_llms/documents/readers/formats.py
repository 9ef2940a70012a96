"""Choice of the reader by the given MIME type, else by the bytes, else by the suffix."""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Sequence
from pathlib import PurePath
from typing import BinaryIO

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.base.registries import Row

_HEAD_BYTES = 8192
_OOXML = "application/vnd.openxmlformats-officedocument."
#: MIME types of files in Microsoft's ZIP format, by the folder of their main part.
_PARTS = {
    "word/": f"{_OOXML}wordprocessingml.document",
    "xl/": f"{_OOXML}spreadsheetml.sheet",
    "ppt/": f"{_OOXML}presentationml.presentation",
}
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_EXCEL = "application/vnd.ms-excel"
_TEXT, _BYTES = "text/plain", "application/octet-stream"
#: Types that tell little, so the suffix is used too.
_VAGUE = frozenset({"", "application/zip", "application/x-ole-storage"})
#: Types whose files are never text.
_BINARY = ("application/pdf", "application/vnd.", "application/epub")
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")
#: Control characters that do not occur in text files; tab, LF, FF, CR, and escape do.
_CONTROLS = frozenset(range(32)) - {9, 10, 12, 13, 27}


def choose_row(rows: Sequence[Row], file: BinaryIO, name: str, mimetype: str) -> Row:
    """Return the row that reads a file. Of several, the last wins, such as a user's own row.

    Raises `DocumentUnreadable` if none does.
    """
    given = mimetype.partition(";")[0].strip().lower()
    found = find_type(file)
    if found and (given.startswith("text/") or given == _BYTES):
        # Servers send these types for unknown files.
        given = given if found == "text/html" and given != _BYTES else ""
    for kind in (given, found):
        if kind and (row := _find_row(rows, "types", kind)) is not None:
            return row
    # A suffix does not overrule the bytes.
    text = not found and is_text(file)
    free = [row for row in rows if _may_read(row, found, text=text)]
    if (row := _find_row(free, "suffixes", PurePath(name).suffix.lower())) is not None:
        return row
    if text and (row := _find_row(rows, "types", _TEXT)) is not None:
        return row
    what = f"of the type {found}" if found else "of an unknown format"
    raise DocumentUnreadable(
        f"it is {what}, which cannot be read; convert it to PDF, DOCX, HTML or text"
    )


def _may_read(row: Row, found: str, *, text: bool) -> bool:
    types = row.settings.get("types", ())
    if text:
        return not any(one.startswith(_BINARY) for one in types)
    if any(one.startswith("text/") for one in types):
        return False
    return found in _VAGUE or not types


def _find_row(rows: Sequence[Row], key: str, value: str) -> Row | None:
    fitting = [row for row in rows if value in row.settings.get(key, ())]
    return fitting[-1] if fitting else None


def find_type(file: BinaryIO) -> str:
    """Return the MIME type that a file's bytes show, or "" if they are text or unknown."""
    head = _read_head(file)
    if b"%PDF-" in head[:1024]:
        return "application/pdf"
    if head.startswith(b"PK\x03\x04"):
        return _find_zip_type(file)
    if head.startswith(_COMPOUND):
        return _find_compound_type(file)
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()[:512].lower()
    if start.startswith(b"<?xml"):
        start = start.partition(b"?>")[2].lstrip()
    if start.startswith(_HTML):
        return "text/html"
    if is_text(file):
        return ""
    import filetype

    guess: str | None = filetype.guess_mime(head)
    return guess or ""


def is_text(file: BinaryIO) -> bool:
    """Return True if the bytes of a file look like text in some encoding."""
    head = _read_head(file)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return True
    return sum(byte in _CONTROLS for byte in head) <= max(4, len(head) // 20)


def _read_head(file: BinaryIO) -> bytes:
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    return head


def _find_zip_type(file: BinaryIO) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if "mimetype" in names:
                with archive.open("mimetype") as declared:
                    return declared.read(100).decode("ascii", "replace").strip()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise DocumentUnreadable(f"it is a damaged or incomplete ZIP file ({error})") from error
    finally:
        file.seek(0)
    if "[Content_Types].xml" in names:
        for folder, kind in _PARTS.items():
            if any(one.startswith(folder) for one in names):
                return kind
    return "application/zip"


def _find_compound_type(file: BinaryIO) -> str:
    """Return the type of a file in Microsoft's older format, by the names of its streams."""
    data = file.read()
    file.seek(0)
    if _encode("EncryptedPackage") in data:
        raise DocumentUnreadable(
            "it is encrypted; open it with its password, and save it without one"
        )
    if _encode("Workbook") in data or _encode("Book") in data:
        return _EXCEL
    if _encode("WordDocument") in data:
        return "application/msword"
    if _encode("PowerPoint Document") in data:
        return "application/vnd.ms-powerpoint"
    return "application/x-ole-storage"


def _encode(name: str) -> bytes:
    return name.encode("utf-16-le")
