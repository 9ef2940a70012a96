"""The system calls of the storage layer: counted, observed, and made to fail on demand.

Functions of the module `os` are replaced while a `SystemCalls` is open. Only calls that come from
`vibe_llms.storage`, directly or through the standard library, are touched.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

#: Every function of `os` that the storage layer reaches, `close` left out: on a local disk it has
#: nothing to report once the bytes are synchronised.
NAMES = (
    "chmod",
    "copy_file_range",
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "pwrite",
    "read",
    "rename",
    "rmdir",
    "scandir",
    "stat",
    "unlink",
    "utime",
    "write",
)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
_DEPTH = 8


class Observer(Protocol):
    """Sees every call before it is made, and what it gave."""

    def before(self, name: str, arguments: Sequence[Any], options: dict[str, Any], /) -> object: ...

    def after(
        self,
        name: str,
        arguments: Sequence[Any],
        options: dict[str, Any],
        result: Any,
        seen: Any,
        /,
    ) -> None: ...


class SystemCalls:
    """Counts the calls while it is open; `names` are those that were made, in order.

    The call number `fail_at`, from 0, fails with `error` instead of being made. With `short_writes`
    every write takes at most so many bytes. With `syncing=False` no synchronisation is carried out,
    which only saves time. Calls of those `modules` count, of the storage layer if none are named.
    """

    def __init__(
        self,
        *,
        fail_at: int | None = None,
        error: int = errno.EIO,
        short_writes: int | None = None,
        syncing: bool = True,
        observer: Observer | None = None,
        modules: tuple[str, ...] = ("vibe_llms.storage", "vibe_llms.base"),
    ) -> None:
        self.names: list[str] = []
        self.failed = ""
        self._fail_at = fail_at
        self._error = error
        self._short_writes = short_writes
        self._syncing = syncing
        self._observer = observer
        self._modules = modules
        self._originals: dict[str, Callable[..., Any]] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        for name in NAMES:
            original = getattr(os, name)
            self._originals[name] = original
            setattr(os, name, self._replacement(name, original))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)

    def count(self, name: str) -> int:
        """How often a call was made."""
        return self.names.count(name)

    def _replacement(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not _comes_from(self._modules):
                return original(*arguments, **options)
            with self._lock:
                return self._call(name, original, arguments, options)

        return call

    def _call(
        self,
        name: str,
        original: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        number = len(self.names)
        self.names.append(name)
        if number == self._fail_at:
            self.failed = name
            raise OSError(self._error, os.strerror(self._error))
        if name == "write" and self._short_writes is not None:
            arguments = (arguments[0], arguments[1][: self._short_writes])
        seen = self._observer and self._observer.before(name, arguments, options)
        if name in ("fsync", "fdatasync") and not self._syncing:
            result = None
        else:
            result = original(*arguments, **options)
        if self._observer is not None:
            self._observer.after(name, arguments, options, result, seen)
        return result


def _comes_from(modules: tuple[str, ...]) -> bool:
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        module = frame.f_globals.get("__name__", "")
        if module.startswith(modules):
            return True
        if module.startswith(("tests.", "vibe_llms.", "_pytest")) or frame.f_back is None:
            return False
        frame = frame.f_back
    return False
