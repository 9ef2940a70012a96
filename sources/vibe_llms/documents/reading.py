"""`DocumentReader`: reads documents in processes that it starts, reuses, and ends.

A process reads one document at a time. It is killed if the caller cancels or if it takes too long.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import (
    DocumentUnreadable,
    PackageMissing,
    RegistrationError,
    RequestError,
    SessionClosed,
)
from vibe_llms.base.files import describe_size
from vibe_llms.base.offloading import LOOP_BYTES
from vibe_llms.base.registries import Row
from vibe_llms.conversations.document_texts import DocumentText, Part, join_parts
from vibe_llms.documents.frames import (
    HEAD,
    LONGEST_BODY,
    End,
    FrameKind,
    ReadingFailure,
    ReadingRequest,
    pack,
)
from vibe_llms.documents.readers.interfaces import READERS, ReaderNotice
from vibe_llms.documents.settings import ReaderRowSettings, read_document_settings
from vibe_llms.documents.snapshots import Snapshot, take_snapshot

#: Maximum number of processes that read at once, and seconds until an idle one ends.
_PROCESSES = 2
_IDLE_SECONDS = 20.0
_CHUNK_BYTES = 256 * 1024
#: Variables of the environment that the process gets; others may hold keys.
_VARIABLES = frozenset({"HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})


class DocumentReader:
    """Reader of documents with the readers of a configuration. Callers close it."""

    def __init__(self, configuration: Configuration) -> None:
        self._settings = read_document_settings(configuration)
        self._rows = tuple(configuration.rows(READERS))
        for row in self._rows:
            configuration.read(ReaderRowSettings, row.settings, *READERS.split("."), row.name)
        self._slots = asyncio.Semaphore(_PROCESSES)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all processes. Pending reads raise `SessionClosed`."""
        self._closed = True
        self._drop_idle()
        for process in self._busy:
            process.kill()

    async def snapshot(self, source: Path | bytes, name: str = "") -> Snapshot:
        """Return a copy of a document's current bytes, with their hash. The caller closes it."""
        limit = self._settings.limits.file_bytes
        if isinstance(source, bytes) and len(source) <= LOOP_BYTES:
            return take_snapshot(source, name, limit=limit)
        work = asyncio.ensure_future(
            asyncio.to_thread(take_snapshot, source, name, limit=limit),
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_late)
            raise

    async def read(
        self,
        source: Path | bytes | Snapshot,
        name: str = "",
        *,
        mimetype: str = "",
        password: str = "",
        reader: str = "",
    ) -> DocumentText:
        """Return the text of a document, or raise `DocumentUnreadable`.

        `name` is the name of the file unless `source` is a path. `reader` names a row of
        `[documents.readers]`; by default, the bytes decide.
        """
        parts: list[Part] = []
        title = form = ""
        pages = 0
        notices: list[str] = []
        complete = True
        items = self.stream(source, name, mimetype=mimetype, password=password, reader=reader)
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Part):
                    parts.append(item)
                    continue
                title, form = item.title or title, item.format or form
                pages = item.pages or pages
                complete = complete and item.complete
                if item.problem:
                    notices.append(item.problem)
        text, marks = join_parts(parts)
        return DocumentText(
            title=title or name or getattr(source, "name", ""),
            text=text,
            format=form,
            marks=marks,
            pages=pages,
            notices=tuple(notices),
            complete=complete,
        )

    async def stream(
        self,
        source: Path | bytes | Snapshot,
        name: str = "",
        *,
        mimetype: str = "",
        password: str = "",
        reader: str = "",
    ) -> AsyncGenerator[Part | ReaderNotice, None]:
        """Yield the parts of a document, each as soon as it is read, and remarks on it.

        The arguments are those of `read`. If reading fails after the first part, the last remark
        has the reason, and that the text is not complete.
        """
        if self._closed:
            raise SessionClosed("this document reader is closed")
        rows = self._choose_rows(reader)
        async with self._slots:
            if isinstance(source, Snapshot):
                snapshot = source
            else:
                snapshot = await self.snapshot(source, name)
            try:
                request = ReadingRequest(
                    name=snapshot.name,
                    mimetype=mimetype,
                    password=password,
                    rows=rows,
                    limits=self._settings.limits,
                    paths=tuple(path for path in sys.path if path),
                )
                async with aclosing(self._stream(request, snapshot.descriptor)) as items:
                    async for item in items:
                        yield item
            finally:
                if snapshot is not source:
                    snapshot.close()

    def _choose_rows(self, reader: str) -> tuple[Row, ...]:
        if not reader:
            return self._rows
        found = tuple(row for row in self._rows if row.name == reader)
        if not found:
            names = ", ".join(row.name for row in self._rows)
            raise RequestError(f"reader {reader!r} not found; available: {names}")
        return found

    async def _stream(
        self, request: ReadingRequest, descriptor: int
    ) -> AsyncGenerator[Part | ReaderNotice, None]:
        """Yield a process's answer for one document. A failure is an error or the last remark."""
        any_text = False
        problem = ""
        process = self._access_process()
        self._busy.add(process)
        finished = False
        try:
            process.send(request, descriptor)
            async for item in process.receive(request):
                any_text = any_text or isinstance(item, Part)
                problem = (item.problem if isinstance(item, ReaderNotice) else "") or problem
                yield item
            finished = True
        except DocumentUnreadable as error:
            if self._closed:
                raise SessionClosed("this document reader is closed") from error
            if not any_text:
                raise DocumentUnreadable(
                    f"{request.name}: {error}", password=error.password, damaged=error.damaged
                ) from error
            any_text, problem = True, str(error)
            yield ReaderNotice(problem=f"the rest could not be read: {problem}", complete=False)
        finally:
            self._busy.discard(process)
            if finished and process.reusable and not self._closed:
                self._keep(process)
            else:
                process.end()
        if not any_text:
            remedy = "use a model that takes the file, or a reader that recognizes text"
            why = f"{problem}; {remedy}" if problem else "it has no text"
            raise DocumentUnreadable(f"{request.name}: {why}")

    def _access_process(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            process.end()
        return _Process()

    def _keep(self, process: _Process) -> None:
        self._idle.append(process)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._drop_idle)

    def _drop_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._idle:
            self._idle.pop().end()


class _Process:
    """A process that reads documents, and the socket to it."""

    def __init__(self) -> None:
        self.reusable = False
        self._channel, other = socket.socketpair()
        self._channel.setblocking(False)
        with other:
            try:
                self._process = subprocess.Popen(
                    # -P: do not import from the current folder.
                    [
                        *(sys.executable, "-P", "-m", "vibe_llms.documents.worker"),
                        str(other.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                    env={name: value for name, value in os.environ.items() if _is_passed(name)},
                    # Only the parent should receive Ctrl-C.
                    start_new_session=True,
                )
            except OSError as error:
                self._channel.close()
                raise DocumentUnreadable(
                    f"the process that reads it cannot be started: {error.strerror}"
                ) from error

    def is_alive(self) -> bool:
        """Return True if the process still waits for a document."""
        return self._process.poll() is None

    def kill(self) -> int:
        """Kill the process, wait for its end, and return its status."""
        self._process.kill()
        return self._process.wait()

    def end(self) -> None:
        """Kill the process and close the socket; safe to call twice."""
        self._channel.close()
        self.kill()

    def send(self, request: ReadingRequest, descriptor: int) -> None:
        """Request the text of an open file."""
        self.reusable = False
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            socket.send_fds(self._channel, [pack(FrameKind.REQUEST, request)], [descriptor])
        except OSError as error:
            raise DocumentUnreadable(f"the process that reads it ended: {error}") from error

    async def receive(self, request: ReadingRequest) -> AsyncIterator[Part | ReaderNotice]:
        """Yield the answer. Raise `DocumentUnreadable` on failure, crash, or timeout."""
        limit = left = request.limits.seconds
        rows = {row.name: row for row in request.rows}
        data = bytearray()
        while True:
            while (frame := _take_frame(data)) is not None:
                kind, body = frame
                match kind:
                    case FrameKind.PART:
                        yield msgspec.msgpack.decode(body, type=Part)
                    case FrameKind.NOTICE:
                        remark = msgspec.msgpack.decode(body, type=ReaderNotice)
                        if row := rows.get(remark.format):
                            longer = row.settings.get("seconds", limit) - limit
                            limit, left = limit + longer, left + longer
                        yield remark
                    case FrameKind.FAILURE:
                        raise _restore(msgspec.msgpack.decode(body, type=ReadingFailure))
                    case _:
                        self.reusable = msgspec.msgpack.decode(body, type=End).reusable
                        return
            # The caller's own time does not count.
            begun = time.monotonic()
            try:
                async with asyncio.timeout(left):
                    chunk = await asyncio.get_running_loop().sock_recv(self._channel, _CHUNK_BYTES)
            except TimeoutError:
                raise DocumentUnreadable(
                    f"reading it took more than {limit:g} s (seconds in [documents.limits])"
                ) from None
            except OSError:
                chunk = b""
            if not chunk:
                raise DocumentUnreadable(self._explain_end(request))
            left -= time.monotonic() - begun
            data += chunk

    def _explain_end(self, request: ReadingRequest) -> str:
        status = self.kill()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        size = describe_size(request.limits.memory_bytes)
        return (
            f"its reader crashed ({how}), perhaps because it needs more than {size} of memory "
            "(memory-bytes in [documents.limits]); if not, the file is damaged"
        )


def _take_frame(data: bytearray) -> tuple[int, bytes] | None:
    """Remove and return the first frame of the received bytes, or `None` if incomplete."""
    if len(data) < HEAD.size:
        return None
    kind, length = HEAD.unpack_from(data)
    if length > LONGEST_BODY:
        raise DocumentUnreadable("its reader returned too much text at once")
    if len(data) < HEAD.size + length:
        return None
    body = bytes(data[HEAD.size : HEAD.size + length])
    del data[: HEAD.size + length]
    return kind, body


def _restore(failure: ReadingFailure) -> Exception:
    match failure.kind:
        case "package":
            return PackageMissing(failure.message, package=failure.package, command=failure.command)
        case "registration":
            file, table, key = failure.place
            return RegistrationError(failure.message, file=file, table=table, key=key)
        case _:
            return DocumentUnreadable(
                failure.message,
                password=failure.kind == "password",
                damaged=failure.kind == "damaged",
            )


def _is_passed(name: str) -> bool:
    return name in _VARIABLES or name.startswith("LC_")


def _close_late(work: asyncio.Future[Snapshot]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
