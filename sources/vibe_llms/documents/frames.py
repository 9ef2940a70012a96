"""Request to the process that reads documents, and the frames of its answer."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.base.registries import Row
from vibe_llms.documents.settings import ReadingLimits

#: Kind of a frame, and length of its body in bytes.
HEAD = struct.Struct(">BI")
#: Maximum size of a frame's body in bytes. Readers yield much smaller parts.
LONGEST_BODY = 256 * 1024 * 1024


class FrameKind(IntEnum):
    """Kind of a frame. Each kind has a body of one type."""

    REQUEST = 0
    PART = 1
    NOTICE = 2
    FAILURE = 3
    END = 4


class ReadingRequest(Struct, frozen=True, array_like=True):
    """A document to read. The file is sent with the frame as a descriptor.

    A single row reads any file, because the caller has chosen it. `paths` are searched for modules.
    """

    name: str
    mimetype: str
    password: str
    rows: tuple[Row, ...]
    limits: ReadingLimits
    paths: tuple[str, ...]


class ReadingFailure(Struct, frozen=True, array_like=True):
    """An error of a reader, by the class of exception for the caller.

    If a package is missing, `message` is its purpose. `place` is the file, the table, and the key
    of a registration.
    """

    kind: Literal["unreadable", "password", "damaged", "package", "registration"]
    message: str
    package: str = ""
    command: str = ""
    place: tuple[str, str, str] = ("", "", "")


class End(Struct, frozen=True, array_like=True):
    """The end of a document. `reusable` is True if the process can read another one."""

    reusable: bool


def pack(kind: FrameKind, body: object) -> bytes:
    """Return a frame."""
    packed = msgspec.msgpack.encode(body)
    return HEAD.pack(kind, len(packed)) + packed
