"""The interpreter's settings: the limits of code, and the number of kernels."""

from __future__ import annotations

from msgspec import Struct

_MEGABYTE = 1024 * 1024
#: Enough to stop a call and to read its files.
_SPARE_CPU_SECONDS = 10.0


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of the kernels.

    `call_seconds` limits a call, and `cpu_seconds` the CPU time of all processes of a kernel from
    the start of one call to the next. Unless given, it is 10 s more than `call_seconds`: a call of
    one thread is interrupted and keeps its state, before the kernel is ended for its CPU time.
    `memory_bytes` applies to all processes of a kernel together, `output_bytes` to the output of a
    call, and `file_bytes` to the files that it returns. With more than `kernels`, the least
    recently used one is ended; so is any that has not been used for `idle_seconds`.
    """

    call_seconds: float = 30.0
    cpu_seconds: float | None = None
    grace_seconds: float = 2.0
    start_seconds: float = 25.0
    memory_bytes: int = 512 * _MEGABYTE
    disk_bytes: int = 128 * _MEGABYTE
    output_bytes: int = _MEGABYTE
    file_bytes: int = 4 * _MEGABYTE
    processes: int = 64
    kernels: int = 4
    idle_seconds: float = 1800.0

    @property
    def most_cpu_seconds(self) -> float:
        """CPU time in effect, in seconds."""
        given = self.cpu_seconds
        return self.call_seconds + _SPARE_CPU_SECONDS if given is None else given
