"""Journal of turns still to be remembered, as files of each process.

    ingestion/PROCESS/TURN.json      the conversation, and the identities of the messages
    ingestion/worker.json            the process that remembers turns in the background

Each process holds the lock of its folder while it runs. If a folder is not locked, its process has
ended, and another one takes over its turns. The one background worker also locks `ingestion`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from vibe_llms.base.exceptions import ArchiveLocked, StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.base.folders import FOLDER, replace_file, storage_errors, synchronise_folder
from vibe_llms.base.locks import acquire, locked
from vibe_llms.memory.tickets import PendingTicket, Ticket, Worker
from vibe_llms.messages.identities import produce_identity

_SUFFIX = ".json"
_WORKER = "worker.json"
_PATIENCE_SECONDS = 1.0


_TICKETS = msgspec.json.Decoder(Ticket)
_WORKERS = msgspec.json.Decoder(Worker)


class Journal:
    """Tickets of this process; nothing is written before the first one.

    With `durable`, tickets survive a power failure.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._durable = durable
        self._own: Path | None = None
        self._lock = -1

    def enter(self, ticket: Ticket, identity: str = "") -> str:
        """Store a ticket until it is removed, or replace one; return its identity.

        It survives the end of this process.
        """
        name = f"{identity or produce_identity()}{_SUFFIX}"
        path = self._access_own() / name
        with storage_errors(path):
            replace_file(path, msgspec.json.encode(ticket), LARGEST_SETTINGS, durable=self._durable)
        return path.stem

    def remove(self, identity: str) -> None:
        """Remove a ticket, after its turn was remembered or rejected."""
        name = f"{identity}{_SUFFIX}"
        own = [] if self._own is None else [self._own / name]
        with storage_errors(self._folder):
            for path in own if own and own[0].exists() else self._folder.glob(f"*/{name}"):
                path.unlink(missing_ok=True)

    def begin(self) -> bool:
        """Return True: each process works on its own tickets, without waiting."""
        return True

    def end(self, *, known: Collection[str] = ()) -> bool:
        """Return True: no tickets come from others."""
        del known
        return True

    @contextmanager
    def working(self) -> Iterator[bool]:
        """Become the only background worker; yield False if another process is."""
        path = self._folder / _WORKER
        with ExitStack() as stack:
            with storage_errors(self._folder):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    # A process that checks the lock holds it for a moment.
                    stack.enter_context(locked(self._folder, seconds=_PATIENCE_SECONDS))
                except ArchiveLocked:
                    yield False
                    return
                worker = Worker(os.getpid(), datetime.now(UTC))
                replace_file(path, msgspec.json.encode(worker), LARGEST_SETTINGS, durable=False)
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()

    def find_worker(self) -> Worker | None:
        """Return the background worker, if one is running."""
        with suppress(OSError, ValueError):
            if _is_held(self._folder):
                return _WORKERS.decode(read_file(self._folder / _WORKER, LARGEST_SETTINGS))
        return None

    def take_over(
        self, user: str, *, known: Collection[str] = (), failed: bool = False
    ) -> Sequence[tuple[str, Ticket]]:
        """Take over a user's turns left by ended processes.

        Turns in `known` are skipped, and so are failed ones, unless `failed` is set.
        """

        def wants(identity: str, ticket: Ticket) -> bool:
            return ticket.user == user and identity not in known and (failed or not ticket.failed)

        own = self._access_own()
        taken: list[tuple[str, Ticket]] = []
        with storage_errors(self._folder):
            for name in sorted(os.listdir(self._folder)):
                if name != own.name:
                    taken += _take_from(self._folder / name, own, wants)
        return taken

    def survey(self) -> Sequence[PendingTicket]:
        """Return all tickets of all processes, without taking any over."""
        found: list[PendingTicket] = []
        with storage_errors(self._folder), suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._folder)):
                folder = self._folder / name
                with suppress(FileNotFoundError, NotADirectoryError):
                    held = _is_held(folder)
                    for path in sorted(folder.iterdir()):
                        with suppress(OSError, ValueError):
                            found.append(PendingTicket(path.stem, _read_ticket(path), held))
        return found

    def close(self) -> None:
        """Leave remaining tickets to another process; safe to call twice."""
        if self._own is None:
            return
        with suppress(OSError):
            os.rmdir(self._own)
        os.close(self._lock)
        self._own, self._lock = None, -1

    def _access_own(self) -> Path:
        while self._own is None:
            path = self._folder / produce_identity()
            with storage_errors(path):
                path.mkdir(mode=0o700, parents=True)
                lock = os.open(path, FOLDER)
                try:
                    acquire(lock, path, _PATIENCE_SECONDS)
                    # Before it was locked, another process may have considered it abandoned.
                    if path.is_dir():
                        if self._durable:
                            synchronise_folder(self._folder)
                            synchronise_folder(self._folder.parent)
                        self._own, self._lock = path, lock
                        break
                except StorageError:
                    pass
                os.close(lock)
        return self._own


def _read_ticket(path: Path) -> Ticket:
    return _TICKETS.decode(read_file(path, LARGEST_SETTINGS))


def _take_from(
    folder: Path, own: Path, wants: Callable[[str, Ticket], bool]
) -> Sequence[tuple[str, Ticket]]:
    try:
        lock = os.open(folder, FOLDER)
    except OSError:
        # The folder is gone, or is not ours.
        return ()
    taken: list[tuple[str, Ticket]] = []
    try:
        acquire(lock, folder, 0)
        for name in sorted(os.listdir(folder)):
            try:
                ticket = _read_ticket(folder / name)
            except OSError:
                continue
            except ValueError:
                # A crash truncated it before it counted as stored.
                (folder / name).unlink()
                continue
            identity = name.removesuffix(_SUFFIX)
            if ticket.old:
                (folder / name).unlink()
            elif wants(identity, ticket):
                os.rename(folder / name, own / name)
                taken.append((identity, ticket))
        os.rmdir(folder)
    except (StorageError, OSError):
        # The process that holds the folder is running, and does its own work.
        pass
    finally:
        os.close(lock)
    return taken


def _is_held(folder: Path) -> bool:
    """Return True if the process of a folder is running."""
    lock = os.open(folder, FOLDER)
    try:
        acquire(lock, folder, 0)
    except StorageError:
        return True
    finally:
        os.close(lock)
    return False
