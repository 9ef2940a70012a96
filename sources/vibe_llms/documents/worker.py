"""Process with few rights that reads documents one at a time for `DocumentReader`.

    python -P -m vibe_llms.documents.worker SOCKET

It receives a request and an open file through the socket, and answers with frames. Documents may be
hostile: this process has no network, cannot gain privileges, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from vibe_llms.base.exceptions import DocumentUnreadable, PackageMissing, RegistrationError
from vibe_llms.base.files import describe_size
from vibe_llms.conversations.document_texts import Part
from vibe_llms.documents.frames import HEAD, End, FrameKind, ReadingFailure, ReadingRequest, pack
from vibe_llms.documents.readers.formats import choose_row
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, access_reader
from vibe_llms.documents.settings import ReadingLimits
from vibe_llms.interpreter import linux, seccomp

_OPEN_FILES = 256
#: KiB of peak memory above which a process is not reused.
_REUSABLE_KIBIBYTES = 512 * 1024
_SHOWN_RUNS = 20


#: Linux also counts the parent's memory until this process needs more.
_INHERITED = 0


def main() -> None:
    """Read documents until the socket is closed."""
    global _INHERITED  # noqa: PLW0603
    _INHERITED = _peak_memory()
    channel = socket.socket(fileno=int(sys.argv[1]))
    reduce_rights()
    while (received := _receive(channel)) is not None:
        request, file = received
        with file:
            end = _serve(channel, request, file)
        channel.sendall(pack(FrameKind.END, end))


def reduce_rights() -> None:
    """Reduce the rights of this process where the system allows it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # It must not write files, including compiled code.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if sys.platform != "linux":
        return
    for reduce in (linux.die_with_parent, linux.gain_no_rights):
        with contextlib.suppress(OSError):
            reduce()
    if seccomp.is_known():
        with contextlib.suppress(OSError):
            seccomp.filter_calls(sockets=False)


def _receive(channel: socket.socket) -> tuple[ReadingRequest, BinaryIO] | None:
    head, descriptors, _, _ = socket.recv_fds(channel, HEAD.size, 1)
    if not head:
        return None
    file = os.fdopen(descriptors[0], "rb")
    head += _receive_exactly(channel, HEAD.size - len(head))
    _, length = HEAD.unpack(head)
    body = _receive_exactly(channel, length)
    return msgspec.msgpack.decode(body, type=ReadingRequest), file


def _receive_exactly(channel: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = channel.recv(length - len(data))
        if not part:
            raise SystemExit(0)
        data += part
    return data


def _serve(channel: socket.socket, request: ReadingRequest, file: BinaryIO) -> End:
    """Answer a request. The result tells if this process can read another document."""
    limits = request.limits
    sys.path += [path for path in request.paths if path not in sys.path]
    try:
        row, *others = request.rows
        if others:
            row = choose_row(request.rows, file, request.name, request.mimetype)
        memory = row.settings.get("memory-bytes", limits.memory_bytes)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (memory, most))
        channel.sendall(pack(FrameKind.NOTICE, ReaderNotice(format=row.name)))
        source = Source(file, request.name, request.password, row.settings)
        for item in _limit(access_reader(row)(source), limits):
            kind = FrameKind.PART if isinstance(item, Part) else FrameKind.NOTICE
            channel.sendall(pack(kind, item))
    except BrokenPipeError:
        # The parent does not want the rest.
        raise SystemExit(0) from None
    except Exception as error:  # noqa: BLE001  (a reader's own code, and a hostile file)
        channel.sendall(pack(FrameKind.FAILURE, _describe(error)))
        return End(reusable=False)
    return End(reusable=_peak_memory() <= max(_REUSABLE_KIBIBYTES, _INHERITED))


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _describe(error: Exception) -> ReadingFailure:
    match error:
        case DocumentUnreadable(password=True):
            return ReadingFailure("password", str(error))
        case DocumentUnreadable(damaged=damaged):
            return ReadingFailure("damaged" if damaged else "unreadable", str(error))
        case PackageMissing(purpose=purpose, package=package, command=command):
            return ReadingFailure("package", purpose, package, command)
        case RegistrationError(message=message, file=place, table=table, key=key):
            return ReadingFailure("registration", message, place=(place, table, key))
        case MemoryError():
            size = describe_size(resource.getrlimit(resource.RLIMIT_AS)[0])
            text = f"it needs more than {size} of memory (memory-bytes in [documents.limits])"
        case RecursionError():
            text = "it is nested too deeply"
        case _:
            words = " ".join(str(error).split())[:200]
            text = f"it is damaged or not of its type ({type(error).__name__}: {words})"
    return ReadingFailure("unreadable", text)


def _limit(
    items: Iterator[Part | ReaderNotice], limits: ReadingLimits
) -> Iterator[Part | ReaderNotice]:
    """Yield a reader's items up to the limits, and finally a remark on pages without text."""
    left = limits.characters
    empty: list[int] = []
    for item in items:
        if isinstance(item, ReaderNotice):
            yield item
            continue
        text, page = item.text, item.place.page
        if page > limits.pages:
            yield _cut(f"only the first {limits.pages:,} pages were read", "pages")
            break
        if not text.strip():
            if page and page not in empty[-1:]:
                empty.append(page)
            continue
        yield item if len(text) <= left else Part(text[:left], item.place)
        left -= len(text)
        if left < 0:
            yield _cut(f"only the first {limits.characters:,} characters were read", "characters")
            break
    if empty:
        yield ReaderNotice(problem=_describe_pages(empty))


def _cut(problem: str, key: str) -> ReaderNotice:
    return ReaderNotice(problem=f"{problem} ({key} in [documents.limits])", complete=False)


def _describe_pages(pages: list[int]) -> str:
    """Return a sentence about the pages without text.

    >>> _describe_pages([2, 5, 6, 7])
    'pages 2, 5-7 have no text; they may be scans'
    """
    runs: list[list[int]] = []
    for page in pages:
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    which = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:_SHOWN_RUNS])
    which += ", …" if len(runs) > _SHOWN_RUNS else ""
    if len(pages) == 1:
        return f"page {which} has no text; it may be a scan"
    return f"pages {which} have no text; they may be scans"


if __name__ == "__main__":
    main()
