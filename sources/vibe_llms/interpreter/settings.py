"""The interpreter's settings: the limits of code, and the number of kernels."""

from __future__ import annotations

from msgspec import Struct

_MEGABYTE = 1024 * 1024


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of the kernels.

    `call_seconds` limits a call, and `cpu_seconds` the CPU time of all processes of a kernel from
    the start of one call to the next. `memory_bytes` applies to all processes of a kernel together,
    `output_bytes` to the output of a call, and `file_bytes` to the files that it returns. With more
    than `kernels`, the least recently used one is ended; so is any that has not been used for
    `idle_seconds`.
    """

    call_seconds: float = 30.0
    cpu_seconds: float = 30.0
    grace_seconds: float = 2.0
    start_seconds: float = 25.0
    memory_bytes: int = 512 * _MEGABYTE
    disk_bytes: int = 128 * _MEGABYTE
    output_bytes: int = _MEGABYTE
    file_bytes: int = 4 * _MEGABYTE
    processes: int = 64
    kernels: int = 4
    idle_seconds: float = 1800.0
