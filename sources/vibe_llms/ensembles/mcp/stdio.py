"""A server as a child process that speaks over its standard streams.

The official package's own transport bounds no message and scans the growing line anew with every
chunk (50 MB on one line took it 39 s); this one splits in linear time and gives up a server whose
message is too long. The server gets a session of its own, a small environment, and its end is
waited for: standard input closed, then SIGTERM to its group, then SIGKILL to all that descends from
it. Its parent is a guardian, a small program that sees to that also if we are killed ourselves.
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

from vibe_llms.ensembles.mcp import guardian
from vibe_llms.exceptions import EnsembleFailed
from vibe_llms.messages.codecs import repair_escapes
from vibe_llms.redaction import redact

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
GRACE_SECONDS = 2.0
_READ_BYTES = 64 * 1024
_TAIL_LINES = 20
_TAIL_BYTES = 8 * 1024
_POLL_SECONDS = 0.01


class MessageTooLong(Exception):
    """A line of the server has more bytes than a message may have."""


class LineSplitter:
    """Splits a stream into lines, each byte looked at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are whole now; `MessageTooLong` where one is beyond the limit."""
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
    """A server while it runs; `complaints` are the last lines that it wrote to standard error."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        # The guardian, which ends as the server did.
        self._process = process
        self._control = control
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._tasks: list[asyncio.Future[None]] = []
        self._draining: asyncio.Future[None] | None = None

    @property
    def complaints(self) -> str:
        """What the server wrote to standard error last, in one line; perhaps nothing."""
        return redact(" ".join(" ".join(self._tail).split()))[-_TAIL_BYTES:]

    @property
    def status(self) -> int | None:
        """Its exit status; `None` while it runs."""
        return self._process.returncode

    async def confirm(self) -> None:
        """Wait until the server has been started; `OSError` where it cannot be."""
        told = await asyncio.get_running_loop().sock_recv(self._control, 16)
        if told != b"0":
            number = int(told or 0)
            raise OSError(number, os.strerror(number) if number else "its guardian did not start")

    def serve(self, *works: Awaitable[None]) -> None:
        """Carry streams for as long as the process lives."""
        self._draining = asyncio.ensure_future(self._drain_errors())
        self._tasks += [self._draining, *map(asyncio.ensure_future, works)]

    async def write(self, data: bytes) -> None:
        """Send bytes to the server; `OSError` where it does not take them any more."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def read(self) -> bytes:
        """Some bytes of the server; none at its end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(_READ_BYTES)

    async def end(self) -> None:
        """End the process and all that it has started."""
        assert self._process.stdin is not None
        # Closed in any case: then the guardian kills all that is left, and ends.
        with self._control:
            if self.status is None:
                # A guardian that was stopped would not notice any of this.
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
            # What it said last tells why it ended.
            await asyncio.wait([self._draining], timeout=GRACE_SECONDS / 4)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What could not be killed may hold a pipe; we do not wait for it.
        transport: Any = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    async def wait(self, seconds: float) -> bool:
        """Whether the process ends within so many seconds."""
        # asyncio's `wait()` waits for the end of the pipes too, which a descendant may hold.
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
    """What a server's process gets: a few harmless variables of ours, and what its row declares."""
    inherited = {
        name: value
        for name in INHERITED
        # A function of the shell is code.
        if (value := os.environ.get(name)) is not None and not value.startswith("()")
    }
    return {**inherited, **given}


@asynccontextmanager
async def start_process(
    ensemble: str, command: tuple[str, ...], environment: Mapping[str, str], folder: str
) -> AsyncIterator[ServerProcess]:
    """A server's process; `EnsembleFailed` where it cannot be started."""
    control, given = socket.socketpair()
    control.setblocking(False)
    with control:
        try:
            with given:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", guardian.__file__),
                    *(str(given.fileno()), str(os.getpid()), *command),
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
    server: ServerProcess, limit: int, tell: Callable[[Exception], None]
) -> AsyncIterator[Any]:
    """The streams of messages that the official client wants, over a server's process.

    `tell` hears why the streams ended where the server is to blame.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError)

    async def receive() -> None:
        splitter = LineSplitter(limit)
        with suppress(*gone):
            async with arriving:
                while chunk := await server.read():
                    try:
                        lines = splitter.feed(chunk)
                    except MessageTooLong as error:
                        tell(error)
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
