"""Files compressed with Zstandard, which Python itself reads from 3.14 on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.base.files import open_regular

#: First bytes of a compressed file.
ZSTANDARD = b"\x28\xb5\x2f\xfd"


def open_zstandard(path: Path) -> BinaryIO:
    """Open a compressed file to be read; raises `PackageMissing` if nothing can read it."""
    try:
        import zstandard
    except ImportError as error:
        raise PackageMissing(
            "reading compressed sessions (.zst)",
            package="zstandard",
            command="pip install 'vibe-llms[import]'",
        ) from error
    file = os.fdopen(open_regular(path), "rb")
    opened: BinaryIO = zstandard.open(file, "rb", closefd=True)
    return opened
