"""Copies of a document's bytes at one moment, with their hash."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.base.files import describe_size, opened, read_parts

_LONGEST_NAME = 100


class Snapshot:
    """A copy of a document in memory, which later changes of the file do not affect.

    `digest` is the SHA-256 of exactly these bytes, in hexadecimal, and `size` their number. `name`
    is the file's name, for display and for its suffix, and `number` is its device and inode number.
    """

    def __init__(
        self, name: str, parts: Iterable[bytes], number: tuple[int, int] | None = None
    ) -> None:
        self.number = number
        # Only Linux has files in memory. Other systems use unnamed temporary files.
        self._file = (
            os.fdopen(os.memfd_create("document"), "w+b", 0)
            if hasattr(os, "memfd_create")
            else tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        )
        digest = hashlib.sha256()
        with ExitStack() as stack:
            stack.callback(self._file.close)
            for part in parts:
                digest.update(part)
                self._file.write(part)
            stack.pop_all()
        self.name, self.size, self.digest = name, self._file.tell(), digest.hexdigest()

    @property
    def descriptor(self) -> int:
        """Descriptor of the copy's open file."""
        return self._file.fileno()

    def close(self) -> None:
        """Free the copy; safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def take_snapshot(source: Path | bytes, name: str = "", *, limit: int) -> Snapshot:
    """Return a copy of a file or of given bytes, or raise `DocumentUnreadable`.

    A file must be regular. The size must be between 1 and `limit` bytes.
    """
    name = show_name(name or (source.name if isinstance(source, Path) else "document"))
    try:
        if isinstance(source, bytes):
            snapshot = Snapshot(name, [source])
        else:
            with opened(source.expanduser()) as descriptor:
                status = os.fstat(descriptor)
                number = (status.st_dev, status.st_ino)
                snapshot = Snapshot(name, read_parts(descriptor, limit), number)
    except (ValueError, RuntimeError) as error:
        raise DocumentUnreadable(f"{name}: not a valid path: {error}") from error
    except OSError as error:
        raise DocumentUnreadable(f"{name}: cannot be read: {error.strerror}") from error
    if 0 < snapshot.size <= limit:
        return snapshot
    snapshot.close()
    if snapshot.size == 0:
        raise DocumentUnreadable(f"{name}: it is empty")
    raise DocumentUnreadable(
        f"{name}: it is larger than {describe_size(limit)} (file-bytes in [documents.limits])"
    )


def show_name(name: str) -> str:
    r"""Return a file's name on one line, without characters that control a terminal.

    >>> show_name("a\nb\x1b[31m.pdf")
    'a b [31m.pdf'
    """
    words = "".join(one if one.isprintable() else " " for one in name).split()
    text = " ".join(words)
    return text if len(text) <= _LONGEST_NAME else f"{text[:40]}…{text[-40:]}"
