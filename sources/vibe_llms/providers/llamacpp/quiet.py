"""What llama.cpp and its package say to the terminal: taken to a logger, and kept from the user."""

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

_ERROR = 4  # GGML_LOG_LEVEL_ERROR of `ggml.h`; the package's own table of levels is another one
#: Where llama.cpp's own words go: nowhere, unless a program listens to this logger.
LOGGER = logging.getLogger("vibe_llms.providers.llamacpp")
LOGGER.addHandler(logging.NullHandler())
# What is swapped for a while belongs to the whole process.
_SWAPPING = threading.Lock()


class Log:
    """Takes llama.cpp's words from the terminal to a logger, and remembers its last complaints."""

    def __init__(self) -> None:
        self.recent: deque[str] = deque(maxlen=20)
        self._callback: Any = None
        self._package: Any = None

    @property
    def reason(self) -> str:
        """What llama.cpp complained of last."""
        reported = [text for text in self.recent if "error" in text.lower()] or list(self.recent)
        return reported[0].rpartition("error loading model: ")[2] if reported else ""

    def attach(self, package: Any) -> None:
        """Take the words of this package from now on; done once is done."""
        if self._package is package:
            return
        # Kept for as long as the process lives: llama.cpp may speak until its end.
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
    """In the place of the package's context that sends all output of the process to nowhere."""

    def __init__(self, disable: bool = True) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def leave_output_alone(package: Any) -> Iterator[None]:
    """Keep the package from closing the terminal to the whole process while it loads.

    Without `verbose` it points the descriptors 1 and 2, `sys.stdout` and `sys.stderr` to nowhere
    for as long as that takes, also for all other threads. What llama.cpp says goes to our logger.
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
    """What C writes to the standard error while this lasts: there is no other way to get it."""
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
