"""Files that no reader expects: each put in the place of a good one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

SPARSE_BYTES = 200 * 1024**3
_HUGE_BYTES = 100 * 1024**2


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # The path of a socket is short.
    folder = os.open(path.parent, os.O_RDONLY)
    before = os.open(".", os.O_RDONLY)
    try:
        os.fchdir(folder)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.fchdir(before)
        os.close(folder)
        os.close(before)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES)


def _deep_arrays(path: Path) -> None:
    path.write_bytes(b"value = " + b"[" * 100_000)


def _deep_keys(path: Path) -> None:
    path.write_bytes(b"a." * 200_000 + b"a = 1\n")


def _deep_tables(path: Path) -> None:
    path.write_bytes(b"a = " + b"{a = " * 90 + b"1" + b"}" * 90)


def _deep_json(path: Path) -> None:
    path.write_bytes(b'{"role":' + b"[" * 1_000_000 + b"\n")


def _huge_line(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(_HUGE_BYTES // 1024**2):
            file.write(b"x" * 1024**2)
        file.write(b"\n")


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _vanished(path: Path) -> None:
    """Nothing is there any more."""


def _locked(path: Path) -> None:
    path.write_bytes(b"secret")
    path.chmod(0)


#: How each is made, at a path where nothing is.
ODD_FILES: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {
        "pipe": _pipe,
        "socket": _socket,
        "device": _device,
        "folder": Path.mkdir,
        "sparse": _sparse,
        "deep-arrays": _deep_arrays,
        "deep-keys": _deep_keys,
        "deep-tables": _deep_tables,
        "deep-json": _deep_json,
        "huge-line": _huge_line,
        "dangling": _dangling,
        "loop": _loop,
        "vanished": _vanished,
        "locked": _locked,
    }
)


def put_in_place(kind: str, path: Path) -> None:
    """An odd file where a good one was."""
    path.unlink(missing_ok=True)
    ODD_FILES[kind](path)
