"""A way to the PostgreSQL of tests over TCP, which becomes silent as if the host had vanished."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.fakes.postgres import ROLE, TestDatabase, access_cluster


class Passage:
    """Passes on what both sides send. Those who send while it is `silent` are never heard again."""

    def __init__(self, upstream: Path) -> None:
        self.silent = False
        self._upstream = str(upstream / ".s.PGSQL.5432")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, place: TestDatabase, **settings: str) -> str:
        """The connection string of a database, through this."""
        values = {"host": "127.0.0.1", "port": self.port, "user": ROLE, "dbname": place.name}
        return " ".join(f"{key}={value}" for key, value in {**values, **settings}.items())

    def close(self) -> None:
        """Close all connections."""
        for one in (self._listener, *self._ends):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                self._ends += (client, server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.silent:
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextmanager
def open_passage() -> Iterator[Passage]:
    """A passage to the cluster of this process."""
    passage = Passage(access_cluster().socket)
    try:
        yield passage
    finally:
        passage.close()
