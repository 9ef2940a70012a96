"""Untrusted ZIP files and XML, read within limits."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.base.files import describe_size

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

#: Maximum total size in bytes of an archive's files when unpacked.
_LARGEST = 1024**3
_MOST_FILES = 20_000
#: Names of attributes, in any namespace, that refer to another file of the same document.
_IDENTITIES = ("id", "embed", "link", "dm")
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, KeyError)


@contextmanager
def opened_zip(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Open a ZIP file of moderate total size, and raise `DocumentUnreadable` for damage."""
    try:
        with zipfile.ZipFile(file) as archive:
            files = archive.infolist()
            if len(files) > _MOST_FILES or sum(one.file_size for one in files) > _LARGEST:
                raise DocumentUnreadable(
                    f"it unpacks to more than {describe_size(_LARGEST)} or {_MOST_FILES:,} files"
                )
            if any(one.flag_bits & 1 for one in files):
                raise DocumentUnreadable(
                    "it is encrypted; open it with its password, and save it without one"
                )
            yield archive
    except _DAMAGE as error:
        raise DocumentUnreadable(f"it is damaged or incomplete ({error})") from error
    finally:
        file.seek(0)


def read_xml(archive: zipfile.ZipFile, name: str) -> Element:
    """Return the tree of an XML file in an archive."""
    return parse_xml(archive.read(name))


def parse_xml(data: bytes) -> Element:
    """Parse XML without external files. Expat limits the expansion of entities."""
    from xml.etree import ElementTree as ET

    try:
        return ET.fromstring(data)  # noqa: S314
    except (ET.ParseError, LookupError, ValueError) as error:
        raise DocumentUnreadable(f"its XML is not valid ({error})") from error


class Relation(NamedTuple):
    """A file of a Microsoft document that another one refers to, and the last word of its type."""

    kind: str
    path: str


def read_relations(archive: zipfile.ZipFile, name: str) -> dict[str, Relation]:
    """Return the files that a file refers to, by the identities that it uses for them."""
    folder, file = posixpath.split(name)
    place = posixpath.join(folder, "_rels", f"{file}.rels")
    names = archive.NameToInfo
    if place not in names:
        return {}
    found = {}
    for element in read_xml(archive, place):
        target = element.get("Target", "")
        path = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
        if element.get("TargetMode") != "External" and path in names:
            kind = element.get("Type", "").rpartition("/")[2]
            found[element.get("Id", "")] = Relation(kind, path)
    return found


def find_relations(relations: Mapping[str, Relation], *kinds: str) -> Sequence[str]:
    """Return the files whose relation is of one of these kinds."""
    return [relation.path for relation in relations.values() if relation.kind in kinds]


def read_identity(element: Element) -> str:
    """Return the identity by which an element refers to another file, or "" without one."""
    for name, value in element.attrib.items():
        if name.startswith("{") and "/relationships}" in name and local_name(name) in _IDENTITIES:
            return value
    return ""


@lru_cache(maxsize=1000)
def local_name(tag: str) -> str:
    """Return the name of an element without its namespace."""
    return tag.rpartition("}")[2]
