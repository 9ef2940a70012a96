"""Readers as third parties write them, and as they fail: modules of rows in tests."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register


def read_shouting(source: Source) -> Iterator[Part | ReaderNotice]:
    yield ReaderNotice(title="LOUD")
    yield Part(source.file.read().decode().upper() + str(source.settings.get("mark", "")))


def read_process(source: Source) -> Iterator[Part | ReaderNotice]:
    """The number of the process that reads."""
    yield Part(str(os.getpid()))


def read_endlessly(source: Source) -> Iterator[Part | ReaderNotice]:
    """A page, and then nothing; the file names the link in which the process leaves its number."""
    os.symlink(str(os.getpid()), source.file.read().decode())
    yield Part("the first page", Place(1))
    while True:
        time.sleep(60)


def read_crashing(source: Source) -> Iterator[Part | ReaderNotice]:
    """As many pages as the file says, and then a crash."""
    for page in range(int(source.file.read())):
        yield Part(f"page {page + 1}", Place(page + 1))
    os.kill(os.getpid(), signal.SIGSEGV)


def read_refusing(source: Source) -> Iterator[Part | ReaderNotice]:
    """As many pages as the file says, and then an error of the reader."""
    for page in range(int(source.file.read())):
        yield Part(f"page {page + 1}", Place(page + 1))
    raise DocumentUnreadable("the ink is invisible")


def read_greedily(source: Source) -> Iterator[Part | ReaderNotice]:
    yield Part(str(len(bytearray(8 * 1024**3))))


def read_network(source: Source) -> Iterator[Part | ReaderNotice]:
    try:
        socket.socket().close()
        yield Part("connected")
    except OSError as error:
        yield Part(f"refused: {error.strerror}")


def read_writing(source: Source) -> Iterator[Part | ReaderNotice]:
    """Writes into the file that the document names."""
    try:
        with open(source.file.read().decode(), "a") as file:
            file.write("changed")
        yield Part("written")
    except OSError as error:
        yield Part(f"refused: {error.strerror}")


def read_environment(source: Source) -> Iterator[Part | ReaderNotice]:
    yield Part(" ".join(os.environ))


def read_pages(source: Source) -> Iterator[Part | ReaderNotice]:
    """As many pages as the file says; every third has no text."""
    count = int(source.file.read())
    yield ReaderNotice(pages=count)
    for page in range(1, count + 1):
        yield Part("" if page % 3 == 0 else f"page {page}", Place(page))


for name, reader in {
    "shouting": read_shouting,
    "process": read_process,
    "endless": read_endlessly,
    "crashing": read_crashing,
    "refusing": read_refusing,
    "greedy": read_greedily,
    "network": read_network,
    "environment": read_environment,
    "pages": read_pages,
    "writing": read_writing,
}.items():
    register(name, reader)
