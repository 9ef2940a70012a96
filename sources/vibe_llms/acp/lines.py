"""Lines over the standard streams: a thread reads them, and another one writes them.

Threads work with pipes, sockets, terminals and files alike, and the event loop never waits for the
other side.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Callable

#: Bytes read at once.
_CHUNK = 256 * 1024
#: Lines that are read ahead of the event loop.
_LINES_AHEAD = 64
#: Bytes that wait for the other side, from which `drain` waits.
_WAITING_BYTES = 1024 * 1024


def take_streams() -> tuple[int, int]:
    """Return descriptors of standard input and output that nothing else in this process uses.

    From now on, other code reads an empty standard input, and what it prints goes to stderr.
    """
    sys.stdout.flush()
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    empty, end = os.pipe()
    os.close(end)
    os.dup2(empty, 0)
    os.close(empty)
    return incoming, outgoing


class InputLines:
    """Reads lines from a descriptor, and calls back in the event loop.

    `receive` gets each line that is not blank, `refuse` is called for a line of more than `longest`
    bytes, which is dropped, and `end` after the last one.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        receive: Callable[[bytes], object],
        refuse: Callable[[], object],
        end: Callable[[], object],
        longest: int,
    ) -> None:
        self._descriptor = descriptor
        self._receive = receive
        self._refuse = refuse
        self._end = end
        self._longest = longest
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(_LINES_AHEAD)
        # A daemon, because reading cannot be interrupted.
        threading.Thread(target=self._run, name="vibe-llms acp reader", daemon=True).start()

    def _run(self) -> None:
        try:
            self._read()
            self._call(self._end)
        except RuntimeError:
            # The event loop has ended.
            return

    def _read(self) -> None:
        parts: list[bytes] = []
        size, skipping = 0, False
        while data := self._read_some():
            *ended, rest = data.split(b"\n")
            for piece in ended:
                if not skipping:
                    self._pass(b"".join((*parts, piece)))
                parts, size, skipping = [], 0, False
            if skipping or not rest:
                continue
            parts.append(rest)
            size += len(rest)
            if size > self._longest:
                parts, size, skipping = [], 0, True
                self._call(self._refuse)
        if parts:
            # A line without its end was cut off, and is reported as such by its reader.
            self._pass(b"".join(parts))

    def _read_some(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK)
        except OSError:
            return b""

    def _pass(self, line: bytes) -> None:
        if not line or line.isspace():
            return
        self._room.acquire()
        self._call(self._deliver, line)

    def _deliver(self, line: bytes) -> None:
        self._room.release()
        self._receive(line)

    def _call(self, work: Callable[..., object], *values: bytes) -> None:
        self._loop.call_soon_threadsafe(work, *values)


class OutputLines:
    """Writer of lines to a descriptor; calls `fail` in the event loop if the reader has gone."""

    def __init__(self, descriptor: int, fail: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        self._thread = threading.Thread(target=self._run, name="vibe-llms acp writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Write a line, after all earlier ones."""
        self._waiting += len(line)
        if self._waiting > _WAITING_BYTES:
            self._room.clear()
        self._lines.put(line)

    async def drain(self) -> None:
        """Wait while the other side is too far behind."""
        await self._room.wait()

    async def close(self, seconds: float) -> None:
        """Write what is left, for some seconds at most."""
        self._lines.put(None)
        await asyncio.to_thread(self._thread.join, seconds)

    def _run(self) -> None:
        broken = False
        while (line := self._lines.get()) is not None:
            if not broken:
                broken = not self._put(line)
                if broken:
                    self._call(self._fail)
            self._call(self._forget, len(line))

    def _put(self, line: bytes) -> bool:
        view = memoryview(line)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError:
                return False
        return True

    def _forget(self, size: int) -> None:
        self._waiting -= size
        if self._waiting <= _WAITING_BYTES:
            self._room.set()

    def _call(self, work: Callable[..., object], *values: int) -> None:
        try:
            self._loop.call_soon_threadsafe(work, *values)
        except RuntimeError:
            # The event loop has ended.
            return
