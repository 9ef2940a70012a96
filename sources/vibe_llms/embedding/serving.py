"""Server process that keeps a model loaded for the user's other processes, behind a Unix socket.

    embedder-DIGEST.sock, mode 0600, in the folder of the user's state

Server and client are processes of one user: each checks the user of the other. A frame is its
length in four bytes and a value in MessagePack. On a connection the server identifies itself, then
answers one request after the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Places
from vibe_llms.base.detaching import detach, has_ended
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelUnavailable,
    ReplyMalformed,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.base.folders import make_folder, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.base.meta import __version__
from vibe_llms.embedding.interfaces import Embedder, InquiringEmbedder, LoadingEmbedder

T = TypeVar("T")

LOG = "embedder.log"
#: Maximum length of a socket's path on all systems, in bytes.
_LONGEST_PATH = 103
#: Maximum bytes of a frame: more than 256 texts of 64 KiB each.
_LARGEST_FRAME = 64 * 1024 * 1024
_MOST_TEXTS = 256
#: Timeout for a client to send its request, and for a server to identify itself.
_GREETING_SECONDS = 5.0
#: Timeout for a started server to create its socket, which it does before loading the model.
_START_SECONDS = 20.0
_POLL_SECONDS = 0.05
#: Pause between starting two servers, even if the first failed.
_PAUSE_SECONDS = 60.0
_CLEAN_ERRORS = (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError, TimeoutError)


class Served(Struct, frozen=True):
    """Version, model, process, and start time of a server."""

    version: str
    model: str
    process: int
    since: datetime
    idle_minutes: float


class _Request(Struct, frozen=True):
    texts: tuple[str, ...]
    question: bool = False


class _Reply(Struct, frozen=True):
    """Vectors as bytes of single floats; or an error, `refused` if the request is to blame."""

    vectors: tuple[bytes, ...] = ()
    error: str = ""
    refused: bool = False


def find_socket(places: Places, model: str) -> Path:
    """Return the path of the socket of a model's server."""
    digest = hashlib.sha256(model.encode()).hexdigest()[:12]
    return places.state / f"embedder-{digest}.sock"


async def find_server(places: Places, model: str) -> Served | None:
    """Return the server of a model, if one answers."""
    try:
        async with _connect(find_socket(places, model), model) as (served, _, _):
            return served
    except _CLEAN_ERRORS:
        return None


class ServedEmbedder:
    """Embedder whose model is loaded in another process, or else in this one.

    With `keep_minutes` such a process is started if there is none; it ends after being idle for
    that long.
    """

    def __init__(
        self, embedder: Embedder, row: str, address: str, places: Places, keep_minutes: float
    ) -> None:
        self._embedder = embedder
        self._row = row
        self._address = address
        self._places = places
        self._keep_minutes = keep_minutes
        self._start_again = 0.0
        self.model = embedder.model
        self.timeout_seconds: float | None = getattr(embedder, "timeout_seconds", None)

    async def inquire(self) -> None:
        """Raise if neither another process nor this one can embed."""
        if isinstance(self._embedder, InquiringEmbedder) and not await find_server(
            self._places, self.model
        ):
            await self._embedder.inquire()

    async def load(self) -> None:
        """Load the model now, in this process or the other; see `LoadingEmbedder`."""
        if await self._ask(_Request(())) is None:
            assert isinstance(self._embedder, LoadingEmbedder)
            await self._embedder.load()

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text; see `Embedder.embed`."""
        reply = await self._ask(_Request(tuple(texts), question))
        if reply is None:
            return await self._embedder.embed(texts, question=question)
        vectors: list[array[float]] = []
        for data in reply.vectors:
            vector = array("f")
            if len(data) % vector.itemsize:
                raise ReplyMalformed("a vector is truncated", provider=self._row)
            vector.frombytes(data)
            vectors.append(vector)
        return vectors

    async def close(self) -> None:
        """Close the embedder of this process, not that of the other. Safe to call twice."""
        await self._embedder.close()

    async def _ask(self, request: _Request) -> _Reply | None:
        """Return a server's reply, or `None` if no server runs, or it ends first."""
        reply = await self._try(request)
        if reply is None and self._keep_minutes and time.monotonic() >= self._start_again:
            self._start_again = time.monotonic() + _PAUSE_SECONDS
            await self._start()
            reply = await self._try(request)
        if reply is not None and reply.error:
            kind = RequestRefused if reply.refused else ModelUnavailable
            raise kind(reply.error, provider=self._row)
        return reply

    async def _try(self, request: _Request) -> _Reply | None:
        path = find_socket(self._places, self.model)
        try:
            async with _connect(path, self.model) as (_, reader, writer):
                await _write(writer, request)
                return await _read(reader, _Reply)
        except _CLEAN_ERRORS:
            return None

    async def _start(self) -> None:
        """Start a server, and wait until it listens, before it loads its model.

        If none can be started, this process loads the model.
        """
        command = ["memory", "serve-embedder", "--detached", "--embedder", self._address]
        minutes = f"{self._keep_minutes:g}"
        log = self._places.state / LOG
        try:
            process = await asyncio.to_thread(detach, [*command, "--idle-minutes", minutes], log)
        except OSError:
            return
        end = time.monotonic() + _START_SECONDS
        # A separate process has no event to wait for.
        while await find_server(self._places, self.model) is None:
            if has_ended(process) or time.monotonic() > end:
                break
            await asyncio.sleep(_POLL_SECONDS)


class EmbedderServer:
    """Server of an embedder for the processes of this user, until it has been idle for a while."""

    def __init__(self, embedder: Embedder, places: Places, *, idle_minutes: float) -> None:
        self.path = find_socket(places, embedder.model)
        self._embedder = embedder
        self._idle_seconds = idle_minutes * 60
        self._served = Served(
            __version__, embedder.model, os.getpid(), datetime.now(UTC), idle_minutes
        )
        self._folder = places.state / f"{self.path.stem}.lock"
        self._used = time.monotonic()
        self._busy = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, ready: Callable[[], object] = lambda: None) -> None:
        """Listen, load the model, and return after the idle time; cancel it to end it.

        `ready` is called when the model is loaded. Raise `ConfigurationError` if the path is too
        long for a socket, `ArchiveLocked` if another process serves the same model, and the errors
        of loading it.
        """
        if len(os.fsencode(self.path)) > _LONGEST_PATH:
            raise ConfigurationError(
                f"{self.path} is longer than the {_LONGEST_PATH} bytes of a socket path; "
                "set a shorter folder with VIBE_LLMS_HOME or XDG_STATE_HOME"
            )
        with storage_errors(self._folder):
            make_folder(self._folder)
            with locked(self._folder, seconds=0):
                await self._serve(ready)

    async def _serve(self, ready: Callable[[], object]) -> None:
        with suppress(FileNotFoundError):
            # Left by a dead process, since we hold its lock.
            self.path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listening.bind(str(self.path))
        finally:
            os.umask(mask)
        server = await asyncio.start_unix_server(self._answer, sock=listening)
        try:
            if isinstance(self._embedder, LoadingEmbedder):
                await self._embedder.load()
            self._used = time.monotonic()
            ready()
            while (left := self._seconds_left()) > 0:  # noqa: ASYNC110  (it waits for a time)
                await asyncio.sleep(left)
        finally:
            # Clients that come now find no server, and load the model themselves.
            with suppress(FileNotFoundError):
                self.path.unlink()
            server.close()
            for task in self._connections:
                task.cancel()

    def _seconds_left(self) -> float:
        """Return the seconds to sleep before checking again, or 0 or less to end."""
        return 1.0 if self._busy else self._used + self._idle_seconds - time.monotonic()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if peer_of(writer.get_extra_info("socket")) == os.getuid():
                await self._answer_requests(reader, writer)
        except _CLEAN_ERRORS:
            # The other side ended, or is not our client.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await _write(writer, self._served)
        while True:
            async with asyncio.timeout(_GREETING_SECONDS):
                request = await _read(reader, _Request)
            self._busy += 1
            try:
                reply = await self._embed(request)
            finally:
                self._busy -= 1
                self._used = time.monotonic()
            await _write(writer, reply)

    async def _embed(self, request: _Request) -> _Reply:
        if len(request.texts) > _MOST_TEXTS:
            return _Reply(error=f"more than {_MOST_TEXTS} texts", refused=True)
        try:
            if not request.texts:
                # Load only.
                if isinstance(self._embedder, LoadingEmbedder):
                    await self._embedder.load()
                return _Reply()
            found = await self._embedder.embed(request.texts, question=request.question)
        except VibeLlmsError as error:
            refused = isinstance(error, RequestRefused) and not isinstance(error, ModelUnavailable)
            return _Reply(error=str(error), refused=refused)
        return _Reply(tuple(vector.tobytes() for vector in found))


def peer_of(connection: Any) -> int:
    """Return the user id of the process at the other end of a Unix socket; -1 if unknown."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return int(struct.unpack("3i", found)[1])
        # LOCAL_PEERCRED of macOS and the BSDs: a version, then the user (sys/ucred.h).
        return int(struct.unpack_from("II", connection.getsockopt(0, 1, 76))[1])
    except (OSError, struct.error):
        return -1


@asynccontextmanager
async def _connect(
    path: Path, model: str
) -> AsyncIterator[tuple[Served, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the server of a model; raise one of `_CLEAN_ERRORS` on failure."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        if peer_of(writer.get_extra_info("socket")) != os.getuid():
            raise PermissionError(f"{path} is served by another user")
        async with asyncio.timeout(_GREETING_SECONDS):
            served = await _read(reader, Served)
        if (served.version, served.model) != (__version__, model):
            raise ConnectionRefusedError(f"{path} is served by another version")
        yield served, reader, writer
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, kind: type[T]) -> T:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > _LARGEST_FRAME:
        raise msgspec.DecodeError(f"a frame of {size} bytes is too long")
    return msgspec.msgpack.decode(await reader.readexactly(size), type=kind)


async def _write(writer: asyncio.StreamWriter, value: Struct) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()
