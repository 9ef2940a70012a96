"""Files compressed with Zstandard, which Python itself reads from 3.14 on."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.base.files import open_regular

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: First bytes of a compressed file.
ZSTANDARD = b"\x28\xb5\x2f\xfd"
#: Bytes that are unpacked at once: they become at most 32 MiB.
_PART_BYTES = 1024


def open_zstandard(path: Path) -> BinaryIO:
    """Open a compressed file to be read; raises `PackageMissing` if nothing can read it."""
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise PackageMissing(
            "reading compressed sessions (.zst)",
            package="zstandard",
            command="pip install 'vibe-llms[import]'",
        ) from error
    return cast("BinaryIO", io.BufferedReader(_Unpacked(path)))


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a file; damage and an early end are errors."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._file = os.fdopen(open_regular(path), "rb")
        self._ready = b""
        self._place = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer; return 0 at the end."""
        if self._place == len(self._ready):
            self._ready, self._place = self._unpack(), 0
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._ready) - self._place)
        target[:size] = self._ready[self._place : self._place + size]
        self._place += size
        return size

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _unpack(self) -> bytes:
        # Another frame may follow.
        while part := self._frame.unused_data or self._file.read(_PART_BYTES):
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            try:
                if ready := self._frame.decompress(part):
                    return ready
            except self._error as error:
                raise OSError(errno.EIO, str(error)) from error
        if not self._frame.eof:
            raise OSError(errno.EIO, "it ends early")
        return b""
