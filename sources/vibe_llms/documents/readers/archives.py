"""ZIP files and XML that other people made, within limits."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from vibe_llms.exceptions import DocumentUnreadable
from vibe_llms.files import describe_size

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

#: What the files of an archive may take in all when they are unpacked.
_LARGEST = 1024**3
_MOST_FILES = 20_000
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, KeyError)


@contextmanager
def opened_zip(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """A ZIP file whose files have a moderate size in all; damage is a `DocumentUnreadable`."""
    try:
        with zipfile.ZipFile(file) as archive:
            files = archive.infolist()
            if len(files) > _MOST_FILES or sum(one.file_size for one in files) > _LARGEST:
                raise DocumentUnreadable(
                    f"unpacked, it has more than {describe_size(_LARGEST)} or {_MOST_FILES:,} files"
                )
            if any(one.flag_bits & 1 for one in files):
                raise DocumentUnreadable(
                    "it is encrypted; open it with its password, and save it without one"
                )
            yield archive
    except _DAMAGE as error:
        raise DocumentUnreadable(f"it is damaged, or not all of it was copied ({error})") from error
    finally:
        file.seek(0)


def read_xml(archive: zipfile.ZipFile, name: str) -> Element:
    """The tree of an XML file in an archive."""
    return parse_xml(archive.read(name))


def parse_xml(data: bytes) -> Element:
    """A tree of XML; no external file is read, and expat limits how far entities expand."""
    from xml.etree import ElementTree as ET

    try:
        return ET.fromstring(data)  # noqa: S314
    except (ET.ParseError, LookupError, ValueError) as error:
        raise DocumentUnreadable(f"its XML is not valid ({error})") from error


def local_name(tag: str) -> str:
    """The name of an element without its namespace."""
    return tag.rpartition("}")[2]
