"""A server as a child process that uses its standard streams.

The official package's transport does not limit messages and scans the growing line again with every
chunk (50 MB on one line took it 39 s). This one splits in linear time and drops a server whose
message is too long. The server gets its own session and a small environment, and its end is
awaited: standard input is closed, then SIGTERM goes to its group, then SIGKILL to all its
descendants. Its parent is a guardian, a small program that does this even if we are killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.base.redaction import redact
from vibe_llms.ensembles.mcp import guardian
from vibe_llms.messages.codecs import repair_escapes

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
GRACE_SECONDS = 2.0
_READ_BYTES = 64 * 1024
_TAIL_LINES = 20
_TAIL_BYTES = 8 * 1024
_POLL_SECONDS = 0.01


class MessageTooLong(Exception):
    """Raised when a message of the server exceeds the size limit."""


class StdioLineSplitter:
    """A splitter of a stream into lines that looks at each byte once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add bytes and return the completed lines; raise `MessageTooLong` if one is too long."""
        *whole, rest = chunk.split(b"\n")
        lines: list[bytes] = []
        for piece in whole:
            self._take(piece)
            lines.append(b"".join(self._parts))
            self._parts, self._size = [], 0
        self._take(rest)
        return lines

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._parts.clear()
            raise MessageTooLong(f"a message of the server has more than {self._limit:,} bytes")
        if piece:
            self._parts.append(piece)


class ServerProcess:
    """A running server and its guardian."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        # Process of the guardian, which exits with the server's status.
        self._process = process
        self._control = control
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._tasks: list[asyncio.Future[None]] = []
        self._draining: asyncio.Future[None] | None = None

    @property
    def complaints(self) -> str:
        """Last output of the server on standard error, in one line; may be empty."""
        return redact(" ".join(" ".join(self._tail).split()))[-_TAIL_BYTES:]

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.returncode

    async def confirm(self) -> None:
        """Wait until the server has started; raise `OSError` if that fails."""
        reported = await asyncio.get_running_loop().sock_recv(self._control, 16)
        if reported != b"0":
            number = int(reported or 0)
            raise OSError(number, os.strerror(number) if number else "its guardian did not start")

    def serve(self, *works: Awaitable[None]) -> None:
        """Carry the streams while the process lives."""
        self._draining = asyncio.ensure_future(self._drain_errors())
        self._tasks += [self._draining, *map(asyncio.ensure_future, works)]

    async def write(self, data: bytes) -> None:
        """Send bytes to the server; raise `OSError` if it no longer accepts them."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def read(self) -> bytes:
        """Read some bytes from the server; empty at its end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(_READ_BYTES)

    async def end(self) -> None:
        """End the process and all of its descendants."""
        assert self._process.stdin is not None
        # Closing it makes the guardian kill all remaining processes and exit.
        with self._control:
            if self.status is None:
                # A stopped guardian would not notice any of this.
                with suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGCONT)
            with suppress(OSError):
                self._process.stdin.close()
            if not await self.wait(GRACE_SECONDS):
                with suppress(OSError):
                    self._control.send(guardian.TERMINATE)
                await self.wait(GRACE_SECONDS)
        await self.wait(guardian.END_SECONDS + GRACE_SECONDS)
        if self._draining is not None:
            # Its last output explains why it ended.
            await asyncio.wait([self._draining], timeout=GRACE_SECONDS / 4)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # An unkillable process may hold a pipe; don't wait for it.
        transport: Any = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    async def wait(self, seconds: float) -> bool:
        """Wait for the process to end; return True if it does within the given seconds."""
        # asyncio's `wait()` also waits for the pipes to close, which a descendant may hold.
        until = asyncio.get_running_loop().time() + seconds
        while self._process.returncode is None:
            if asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def _drain_errors(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(_READ_BYTES):
            *lines, rest = (rest + chunk[-_TAIL_BYTES:]).split(b"\n")
            rest = rest[-_TAIL_BYTES:]
            self._tail.extend(line.decode(errors="replace") for line in lines[-_TAIL_LINES:])
        self._tail.append(rest.decode(errors="replace"))


def produce_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment: a few harmless variables and those of its row."""
    inherited = {
        name: value
        for name in INHERITED
        # An exported shell function is code.
        if (value := os.environ.get(name)) is not None and not value.startswith("()")
    }
    return {**inherited, **given}


@asynccontextmanager
async def start_process(
    ensemble: str, command: tuple[str, ...], environment: Mapping[str, str], folder: str
) -> AsyncIterator[ServerProcess]:
    """Start a server's process, or raise `EnsembleFailed`."""
    control, given = socket.socketpair()
    control.setblocking(False)
    with control:
        try:
            with given:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-I",
                    "-S",
                    guardian.__file__,
                    str(given.fileno()),
                    str(os.getpid()),
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=produce_environment(environment),
                    cwd=folder or None,
                    pass_fds=(given.fileno(),),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise _refuse(ensemble, command, error) from error
        server = ServerProcess(process, control)
        try:
            try:
                await server.confirm()
            except OSError as error:
                raise _refuse(ensemble, command, error) from error
            yield server
        finally:
            await server.end()


def _refuse(ensemble: str, command: tuple[str, ...], error: Exception) -> EnsembleFailed:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return EnsembleFailed(
        f"the command {command[0]!r} cannot be started: {reason}",
        ensemble=ensemble,
        phase="opening",
    )


@asynccontextmanager
async def connect_process(
    server: ServerProcess, limit: int, notify: Callable[[Exception], None]
) -> AsyncIterator[Any]:
    """Open the message streams that the official client needs, over a server's process.

    `notify` receives the error if the streams end because of the server.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError)

    async def receive() -> None:
        splitter = StdioLineSplitter(limit)
        with suppress(*gone):
            async with arriving:
                while chunk := await server.read():
                    try:
                        lines = splitter.feed(chunk)
                    except MessageTooLong as error:
                        notify(error)
                        return
                    for line in lines:
                        if not line.strip():
                            continue
                        text = repair_escapes(line).decode(errors="replace")
                        try:
                            message = jsonrpc_message_adapter.validate_json(text, by_name=False)
                        except ValueError as error:
                            await arriving.send(error)
                        else:
                            await arriving.send(SessionMessage(message))

    async def send() -> None:
        with suppress(*gone):
            async with leaving:
                async for one in leaving:
                    text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                    try:
                        await server.write(text.encode("utf-8", "replace") + b"\n")
                    except OSError:
                        await arriving.aclose()
                        return

    server.serve(receive(), send())
    try:
        yield incoming, outgoing
    finally:
        await incoming.aclose()
        await outgoing.aclose()
