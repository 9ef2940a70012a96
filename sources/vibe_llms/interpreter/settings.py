"""What the interpreter allows: the limits of code, and how many kernels there are."""

from __future__ import annotations

from msgspec import Struct

_MEGABYTE = 1024 * 1024


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of the kernels.

    `call_seconds` bounds a call, `cpu_seconds` what all processes of a kernel compute from the
    beginning of one call to that of the next. `memory_bytes` is for all processes of a kernel,
    `output_bytes` for what a call prints and shows, `file_bytes` for the files that it gives back.
    The kernel that was used longest ago is ended for one more than `kernels`, and any that has not
    been used for `idle_seconds`.
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
