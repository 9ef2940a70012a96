"""Converts files, URLs, and standard input to contents and documents."""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from msgspec.structs import replace

from vibe_llms.base.exceptions import AttachmentUnreadable
from vibe_llms.base.files import describe_size, read_beneath, read_file, walk_files
from vibe_llms.messages.canisters import DocumentCanister
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    VideoContent,
)
from vibe_llms.messages.images import REPAIR, find_damage

LONGEST_BYTES = 64 * 1024 * 1024
#: Most files in an attached folder; more should be a collection.
MOST_FILES = 500
# Paths that a shell opened for process substitution, `-f <(git diff)`; zsh uses the second form.
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})", re.ASCII)

# Types with different names in the package filetype and in the providers' APIs.
_SYNONYMS = {"audio/x-wav": "audio/wav", "image/x-icon": "image/vnd.microsoft.icon"}
_SUFFIXES = {
    ".csv": "text/csv",
    ".htm": "text/html",
    ".html": "text/html",
    ".md": "text/markdown",
    ".svg": "image/svg+xml",
}
_REMOTE_SUFFIXES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".webp": "image/webp",
    ".m4a": "audio/mp4",
    ".mp3": "audio/mpeg",
    ".wav": "audio/wav",
    ".mov": "video/quicktime",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
#: Hosts whose pages are films for the providers that read them.
_FILMS = frozenset({"youtube.com", "www.youtube.com", "m.youtube.com", "youtu.be"})
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Formats that consist of plain text but are not meant to be read as text.
_MARKED_FORMATS = (b"%PDF-", b"{\\rtf")
UNKNOWN_TYPE = "application/octet-stream"
_MIMETYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;.*)?", re.ASCII)


def read_attachment(source: str, mimetype: str = "") -> Content:
    """Return the content of a file, or of an http(s) URL, which the provider downloads.

    The MIME type is detected from the bytes unless it is given. Raises `AttachmentUnreadable` if
    the source cannot be read or its type is unknown.
    """
    if is_address(source):
        known = mimetype or _find_remote_type(source)
        if not known:
            raise AttachmentUnreadable(f"{source}: unknown type; set it: --at {source} image/png")
        return _produce_content(Location(source), known, "")
    return produce_attachment(read_bytes(Path(source)), Path(source).name, mimetype)


def produce_attachment(data: bytes, name: str, mimetype: str = "") -> Content:
    """Return the content of bytes; `name` is for display and to detect the type of text."""
    if not data:
        raise AttachmentUnreadable(f"{name}: it is empty")
    mimetype = mimetype or detect_type(data, name)
    text = read_text(data) if _is_textual(mimetype) else None
    return _produce_content(data if text is None else text.encode(), mimetype, name)


def read_document(source: str, *, trusted: bool = False, folder: str = "") -> DocumentCanister:
    """Return a document from a file: its text, or the file itself if it is not text.

    An http(s) URL works too; the provider downloads it. With `trusted`, the user vouches for its
    text: it does not make tools that may send data out ask. With `folder`, the file must be in it
    and is not read through a link.
    """
    if is_address(source):
        contents = (read_attachment(source),)
        return DocumentCanister(contents, title=source, source=source, trusted=trusted)
    path = Path(source)
    document = produce_document(read_bytes(path, folder), path.name, str(path))
    return replace(document, trusted=True) if trusted else document


def find_documents(source: str) -> Sequence[str]:
    """Return the sorted files of a source: a file, a whole folder, or a pattern with `*`.

    Hidden files, and those with names that begin with `~$`, are not included in folders. Raises
    `AttachmentUnreadable` if no files are found, or more than `MOST_FILES`.
    """
    if is_address(source):
        return [source]
    path = Path(source).expanduser()
    if path.is_dir():
        walked = (found for found, _ in walk_files(path, follow_links=True))
        found = sorted(one for one in walked if not os.path.basename(one).startswith("~$"))
    elif is_pattern(source):
        found = sorted(one for one in glob(str(path), recursive=True) if os.path.isfile(one))
    else:
        return [source]
    if not found:
        raise AttachmentUnreadable(f"{source}: no files found")
    if len(found) > MOST_FILES:
        raise AttachmentUnreadable(
            f"{source}: {len(found)} files are too many to attach, at most {MOST_FILES}; make a "
            "collection of them: vibe-llms index add NAME PATH"
        )
    return found


def is_pattern(source: str) -> bool:
    """Return True if a source is a pattern such as `*.pdf`, and not the name of a file."""
    pattern = bool(set(source) & set("*?[")) and not is_address(source)
    return pattern and not Path(source).expanduser().exists()


def find_folder(source: str) -> str:
    """Return the folder that contains the files of a folder or pattern; empty for one file.

    >>> find_folder("notes/2026/*/a*.txt"), find_folder("*.txt"), find_folder("missing.txt")
    ('notes/2026', '.', '')
    """
    path = Path(source).expanduser()
    if is_address(source) or path.is_dir():
        return "" if is_address(source) else str(path)
    if path.exists() or not set(source) & set("*?["):
        return ""
    while set(str(path)) & set("*?["):
        path = path.parent
    return str(path)


def produce_document(data: bytes, title: str, source: str = "") -> DocumentCanister:
    """Return a document from bytes: their text, or the bytes themselves if they are not text."""
    try:
        mimetype = detect_type(data, title)
    except AttachmentUnreadable:
        # A document reader may recognize it.
        mimetype = UNKNOWN_TYPE
    content = produce_attachment(data, title, mimetype)
    text = read_text(data)
    if text is not None and isinstance(content, FileContent) and _is_textual(content.mimetype):
        content = TextualContent(text, content.mimetype)
    return DocumentCanister((content,), title=title, source=source)


def is_address(source: str) -> bool:
    """Return True if a source is a URL rather than the path of a file."""
    return source[:8].lower().startswith(("http://", "https://"))


def read_bytes(path: Path, folder: str = "") -> bytes:
    """Read a file up to the size limit; with a `folder`, not through links below it."""
    try:
        if found := _DESCRIPTOR.fullmatch(str(path)):
            data = _read_descriptor(int(found[1]))
        elif folder:
            data = read_beneath(folder, path, LONGEST_BYTES)
        else:
            data = read_file(path.expanduser(), LONGEST_BYTES)
    except OSError as error:
        raise AttachmentUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:
        raise AttachmentUnreadable(f"{path}: not a valid file path: {error}") from error
    if not data:
        raise AttachmentUnreadable(f"{path}: it is empty")
    return data


def _read_descriptor(number: int) -> bytes:
    with open(number, "rb", closefd=False) as file:
        data = file.read(LONGEST_BYTES + 1)
    if len(data) > LONGEST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {describe_size(LONGEST_BYTES)}")
    return data


def read_text(data: bytes) -> str | None:
    """Decode text in UTF-8 or with a byte order mark; return None if the bytes are not text."""
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def detect_type(data: bytes, name: str) -> str:
    """Return the MIME type of bytes; raises `AttachmentUnreadable` if it cannot be detected."""
    text = None if data.startswith(_MARKED_FORMATS) else read_text(data)
    if text is not None:
        if text.lstrip()[:5].lower() in ("<svg ", "<svg>"):
            return "image/svg+xml"
        return _SUFFIXES.get(_suffix_of(name), "text/plain")
    import filetype

    guess: str | None = filetype.guess_mime(data)
    if guess is None:
        raise AttachmentUnreadable(
            f"{name}: unknown type; set it with --at, or convert the file to UTF-8"
        )
    return _SYNONYMS.get(guess, guess)


def _suffix_of(source: str) -> str:
    try:
        path = urlsplit(source).path if is_address(source) else source
    except ValueError as error:
        raise AttachmentUnreadable(f"{source}: not a valid URL: {error}") from error
    return PurePath(path).suffix.lower()


def _find_remote_type(source: str) -> str:
    """Return the MIME type of what is at a URL, or an empty text."""
    suffix = _suffix_of(source)
    return "video/mp4" if urlsplit(source).hostname in _FILMS else _REMOTE_SUFFIXES.get(suffix, "")


def _is_textual(mimetype: str) -> bool:
    return mimetype.startswith("text/")


def _produce_content(data: bytes | Location, mimetype: str, name: str) -> Content:
    if not _MIMETYPE.fullmatch(mimetype):
        raise AttachmentUnreadable(
            f"{name}: {mimetype!r} is not a MIME type; use one such as image/png"
        )
    match mimetype.partition("/")[0]:
        case "image":
            if isinstance(data, bytes) and (damage := find_damage(data)):
                raise AttachmentUnreadable(f"{name}: {damage}; {REPAIR}")
            return ImageContent(data, mimetype)
        case "audio":
            return AudioContent(data, mimetype)
        case "video":
            return VideoContent(data, mimetype)
        case _:
            return FileContent(data, mimetype, name)
