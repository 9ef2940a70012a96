"""`Versions`: a commit for each change of a memory, made in the background.

A change only signals the thread, which commits all changes after a quiet second, and ends when
nothing is left. So a command, a tool call, and a remembered turn are one commit each. If git fails,
entries are saved anyway; the status shows the failure.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import StorageError, VersioningFailed
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.base.folders import replace_file
from vibe_llms.embedding.core import ignore
from vibe_llms.memory.git import LIMIT_SECONDS, ask
from vibe_llms.memory.repository import Repository

#: Changes with shorter pauses between them share a commit.
QUIET_SECONDS = 1.0
#: Timeout for the last commit on closing; the next process commits the rest.
CLOSE_SECONDS = 10.0
#: If git was too slow within this time, closing does not wait for it.
_PATIENCE_SECONDS = 600.0
_STATE = "versions.json"


class VersionsStatus(Struct, frozen=True):
    """Time of the last commit, and start and reason of current failures, if any."""

    last: datetime | None = None
    failure: str = ""
    since: datetime | None = None


class _State(Struct, frozen=True):
    """State for the next process: the last commit, and failures since."""

    committed: datetime | None = None
    failure: str = ""
    since: datetime | None = None
    tried: datetime | None = None
    slow: bool = False


_DECODER = msgspec.json.Decoder(_State)


class Versions:
    """Commits for the memory in a folder; safe to use from several threads and processes.

    `notify` is called from a thread with a message for each new reason of a failure. `seconds` is
    the timeout of a commit.
    """

    def __init__(
        self,
        folder: Path,
        *,
        notify: Callable[[str], None] = ignore,
        seconds: float = LIMIT_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.folder = folder
        self.repository = Repository(folder, seconds=seconds)
        self._notify = notify
        self._quiet_seconds = quiet_seconds
        self._close_seconds = close_seconds
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending = False
        self._groups = 0
        self._reported = ""

    def notice(self) -> None:
        """Signal a change; return at once."""
        with self._lock:
            self._pending = True
            if self._thread is None and not self._groups:
                self._thread = threading.Thread(target=self._work, name="versions", daemon=True)
                self._thread.start()

    @contextmanager
    def grouped(self) -> Iterator[None]:
        """Commit all changes within the block as one when it ends."""
        with self._lock:
            self._groups += 1
        try:
            yield
        finally:
            with self._lock:
                self._groups -= 1
                pending = self._pending
            if pending:
                self.notice()

    async def commit(self, *, seconds: float | None = None) -> int:
        """Commit the changes now, and return the number of files.

        `seconds` replaces the usual timeout. Raise `VersioningFailed` or another `StorageError`.
        """
        return await ask(self.repository.git, lambda: self._commit(seconds))

    async def status(self) -> VersionsStatus:
        """Return the state of commits, of this process or another."""
        return await asyncio.to_thread(self._status)

    async def close(self) -> None:
        """Commit the rest, within a time limit; safe to call twice."""
        await asyncio.to_thread(self._close)

    def _work(self) -> None:
        more = True
        try:
            while more:
                self._closing.wait(self._quiet_seconds)
                with self._lock:
                    if self._groups:
                        # The end of the group starts another thread.
                        self._thread = None
                        return
                    self._pending = False
                # The failure is stored for the status; no caller could handle it.
                with suppress(StorageError):
                    self._commit()
                with self._lock:
                    more = self._pending
                    if not more:
                        self._thread = None
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _commit(self, seconds: float | None = None) -> int:
        try:
            count = self.repository.commit(seconds=seconds)
        except StorageError as error:
            self._fail(error)
            raise
        self._reported = ""
        if count or self._load_state().failure:
            self._store_state(_State(datetime.now(UTC)))
        return count

    def _close(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        state = self._load_state()
        patient = timedelta(seconds=_PATIENCE_SECONDS)
        hopeless = state.slow and state.tried and datetime.now(UTC) - state.tried < patient
        self._closing.set()
        thread.join(0 if hopeless else self._close_seconds)
        if thread.is_alive():
            self.repository.git.abort()
            thread.join(self._close_seconds)
        self._closing.clear()
        self.repository.git.allow()

    def _fail(self, error: StorageError) -> None:
        reason = str(error)
        before = self._load_state()
        known = before.failure == reason
        now = datetime.now(UTC)
        slow = isinstance(error, VersioningFailed) and error.slow
        since = before.since if before.failure else now
        self._store_state(_State(before.committed, reason, since, now, slow))
        if known or reason == self._reported:
            return
        self._reported = reason
        self._notify(
            f"entries are saved, but were not committed to git: {reason}; the next change "
            "retries; see: vibe-llms memory status"
        )

    def _load_state(self) -> _State:
        try:
            return _DECODER.decode(read_file(self.folder / _STATE, LARGEST_SETTINGS))
        except (OSError, msgspec.DecodeError):
            return _State()

    def _store_state(self, state: _State) -> None:
        path, data = self.folder / _STATE, msgspec.json.encode(state)
        try:
            replace_file(path, data, LARGEST_SETTINGS, durable=False)
        except OSError:
            # A full disk has no room for another file, but usually some within this one.
            with suppress(OSError), path.open("r+b") as file:
                file.write(data)
                file.truncate()

    def _status(self) -> VersionsStatus:
        state = self._load_state()
        try:
            self.repository.check()
        except StorageError as error:
            return VersionsStatus(state.committed, str(error), state.since)
        return VersionsStatus(state.committed, state.failure, state.since)
