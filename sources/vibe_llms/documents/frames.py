"""What the process that reads documents is asked, and the frames that it answers with."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.documents.settings import ReadingLimits
from vibe_llms.registries import Row

#: The kind of a frame and the length of its body.
HEAD = struct.Struct(">BI")
#: The longest body of a frame; readers give parts that are far smaller.
LONGEST_BODY = 256 * 1024 * 1024


class Kind(IntEnum):
    """The kinds of frames: each has a body of one type."""

    REQUEST = 0
    PART = 1
    REMARK = 2
    FAILURE = 3
    END = 4


class Request(Struct, frozen=True, array_like=True):
    """A document to read; its file comes with the frame as a descriptor.

    A single row reads any file: callers have chosen it. `paths` are where modules are found.
    """

    name: str
    mimetype: str
    password: str
    rows: tuple[Row, ...]
    limits: ReadingLimits
    paths: tuple[str, ...]


class Failure(Struct, frozen=True, array_like=True):
    """An error of a reader, by the class that the caller gets.

    `message` is the purpose if a package is missing. `place` is the file, the table and the key of
    a registration.
    """

    kind: Literal["unreadable", "password", "damaged", "package", "registration"]
    message: str
    package: str = ""
    command: str = ""
    place: tuple[str, str, str] = ("", "", "")


class End(Struct, frozen=True, array_like=True):
    """The end of a document; `reusable` if the process can read another one."""

    reusable: bool


def pack(kind: Kind, body: object) -> bytes:
    """A frame."""
    packed = msgspec.msgpack.encode(body)
    return HEAD.pack(kind, len(packed)) + packed
