"""Run git for the library's own repository: within a time limit, and without other programs.

Settings of the user and the system are ignored. The command line disables the hooks, signatures,
and helpers of the repository's own settings; attributes disable its filters, see `repository`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from vibe_llms.base.exceptions import StorageError, VersioningFailed
from vibe_llms.base.folders import advise

T = TypeVar("T")

#: Timeout for one commit.
LIMIT_SECONDS = 30.0
_NAME = ".git"
#: System errors that git reports, in the system's words or its own.
_REFUSALS = {errno.ENOSPC: "Out of diskspace", errno.EDQUOT: "", errno.EROFS: ""}
_ENDED = "git was stopped when the memory was closed"
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    # Settings of the repository cannot override this.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_AUTHOR_NAME": "vibe-llms",
    "GIT_AUTHOR_EMAIL": "vibe-llms@localhost",
    "GIT_COMMITTER_NAME": "vibe-llms",
    "GIT_COMMITTER_EMAIL": "vibe-llms@localhost",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
#: Command line settings, which override those of the repository.
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.alternateRefsCommand": "true",
    "core.checkStat": "default",
    "core.fileMode": "false",
    "core.ignoreStat": "false",
    "core.logAllRefUpdates": "true",
    "core.quotePath": "false",
    "core.sparseCheckout": "false",
    "core.splitIndex": "false",
    "core.trustCtime": "true",
    "diff.external": "",
    "gc.autoDetach": "false",
    "i18n.commitEncoding": "UTF-8",
    "log.showSignature": "false",
    "maintenance.auto": "false",
}


async def ask(git: Git, work: Callable[[], T]) -> T:
    """Run work with git in a thread; cancelling it stops git."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        git.abort()
        with suppress(StorageError):
            await task
        git.allow()
        raise


class Git:
    """Runner of git for the repository in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / _NAME
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._aborted = False

    @staticmethod
    def find() -> str | None:
        """Return the path of git, or `None` if it is not installed."""
        return shutil.which("git", path=_search_path())

    def run(
        self,
        *arguments: str,
        data: bytes = b"",
        ends: float | None = None,
        index: Path | None = None,
        held: Sequence[int] = (),
    ) -> bytes:
        """Run a git command and return its output; raise `VersioningFailed` if it fails.

        At the monotonic time `ends`, git is killed with its children. It inherits the descriptors
        in `held`, so that their locks last as long as it runs.
        """
        program = self.find()
        if program is None:
            raise VersioningFailed("git is not installed or not in PATH")
        limit = LIMIT_SECONDS if ends is None else max(ends - time.monotonic(), 0.0)
        settings = [part for name, text in _SETTINGS.items() for part in ("-c", f"{name}={text}")]
        with self._lock:
            if self._aborted:
                raise VersioningFailed(_ENDED, slow=True)
            try:
                process = subprocess.Popen(
                    [program, "--no-pager", *settings, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=self.folder,
                    env=self._environment(index),
                    start_new_session=True,
                    pass_fds=held,
                    umask=0o077,
                )
            except OSError as error:
                raise VersioningFailed(f"git cannot be started: {error.strerror}") from error
            self._running = process
        try:
            output, errors = process.communicate(data, timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process)
            raise VersioningFailed(
                f"git {arguments[0]} took longer than {limit:.3g} s and was stopped",
                slow=True,
            ) from None
        finally:
            with self._lock:
                self._running = None
            if process.poll() is None:
                _end(process)
        if self._aborted:
            raise VersioningFailed(_ENDED, slow=True)
        if process.returncode:
            words = errors.decode("utf-8", "replace")
            reason = _find_reason(words) or f"status {process.returncode}"
            raise VersioningFailed(f"git {arguments[0]}: {reason}")
        return output

    def abort(self) -> None:
        """Kill the running git, and prevent others from starting."""
        with self._lock:
            self._aborted = True
            if self._running is not None:
                _kill(self._running)

    def allow(self) -> None:
        """Let git run again after `abort`."""
        with self._lock:
            self._aborted = False

    def _environment(self, index: Path | None) -> Mapping[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {
            **inherited,
            **_ENVIRONMENT,
            "PATH": _search_path(),
            "GIT_DIR": str(self.directory),
            "GIT_WORK_TREE": str(self.folder),
            "GIT_INDEX_FILE": str(index or self.directory / "index"),
        }


def _find_reason(words: str) -> str:
    """Return the reason for a failure: a system error, or else git's last error."""
    lines = words.strip().splitlines()
    for number, own in _REFUSALS.items():
        if os.strerror(number) in words or (own and own in words):
            return advise(number)
    fatal = [line for line in lines if line.startswith("fatal: ")]
    return (fatal or lines or [""])[-1].removeprefix("fatal: ")


def is_held(lock: Path, folder: Path) -> bool:
    """Return True if a running process has a file open, or is git in a folder.

    Return False if the system does not say.
    """
    with suppress(OSError):
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "comm").read_text().startswith("git"):
                    place = Path(os.readlink(process / "cwd"))
                    if folder.resolve() in (place, *place.parents):
                        return True
                if any(os.path.samefile(opened, lock) for opened in (process / "fd").iterdir()):
                    return True
    return False


def _search_path() -> str:
    """Return PATH without relative parts: others may write to the folder where git runs."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if os.path.isabs(part))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its children, and close its streams."""
    _kill(process)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The process leads its own group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
