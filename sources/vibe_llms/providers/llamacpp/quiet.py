"""Redirection of llama.cpp's and its package's terminal output to a logger."""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ERROR = 4  # GGML_LOG_LEVEL_ERROR of `ggml.h`; the package's own table of levels differs
#: Logger of llama.cpp's messages, which are discarded unless a program adds a handler.
LOGGER = logging.getLogger("vibe_llms.providers.llamacpp")
LOGGER.addHandler(logging.NullHandler())
# The functions that are swapped belong to the whole process.
_SWAPPING = threading.Lock()


class Log:
    """Receiver of llama.cpp's messages that logs them and remembers the last errors."""

    def __init__(self) -> None:
        self.recent: deque[str] = deque(maxlen=20)
        self._callback: Any = None
        self._package: Any = None

    @property
    def reason(self) -> str:
        """First of the recent errors of llama.cpp."""
        reported = [text for text in self.recent if "error" in text.lower()] or list(self.recent)
        return reported[0].rpartition("error loading model: ")[2] if reported else ""

    def attach(self, package: Any) -> None:
        """Receive this package's messages from now on; calling it again does nothing."""
        if self._package is package:
            return
        # Kept until the process ends: llama.cpp may log until then.
        self._callback = package.llama_log_callback(self._hear)
        package.llama_log_set(self._callback, ctypes.c_void_p(0))
        self._package = package

    def _hear(self, level: int, text: bytes, _: object) -> None:
        words = text.decode("utf-8", "replace").strip()
        if not words:
            return
        if level == _ERROR:
            self.recent.append(words)
        LOGGER.log(logging.ERROR if level == _ERROR else logging.DEBUG, "%s", words)


LOG = Log()


class _LeftAlone:
    """Replacement for the package's context manager that discards all output of the process."""

    def __init__(self, disable: bool = True) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def leave_output_alone(package: Any) -> Iterator[None]:
    """Keep the package from discarding all output of the process while it loads.

    Without `verbose` it redirects the descriptors 1 and 2, `sys.stdout`, and `sys.stderr` to the
    null device during that time, for all threads. llama.cpp's messages go to our logger.
    """
    name = "suppress_stdout_stderr"
    homes = [home for home in (package.llama, package._internals) if hasattr(home, name)]
    with _SWAPPING:
        before = [getattr(home, name) for home in homes]
        for home in homes:
            setattr(home, name, _LeftAlone)
        try:
            yield
        finally:
            for home, kept in zip(homes, before, strict=True):
                setattr(home, name, kept)


@contextmanager
def catch_words() -> Iterator[list[str]]:
    """Capture what C writes to standard error, the only way to get these messages."""
    words: list[str] = []
    with _SWAPPING, tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield words
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            words.append(file.read().decode("utf-8", "replace"))
