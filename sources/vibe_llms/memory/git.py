"""Running git for a repository of ours: only what is asked for, within a limit of time.

Nothing of the user's or the system's settings counts, no hook, filter, signature or helper runs,
and what takes too long is ended with all that it started. What a repository's own settings may name
is overruled where git lets them be overruled; where it does not, as with filters, we never ask git
for what would use them: bytes are handed over, and files are never read by git.
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

from vibe_llms.exceptions import StorageError, VersioningFailed
from vibe_llms.storage.files import advise

T = TypeVar("T")

#: The longest that git works for one commit.
LIMIT_SECONDS = 30.0
_NAME = ".git"
#: What git says of in the words of the system, which are those of "C" here, or in its own.
_REFUSALS = {errno.ENOSPC: "Out of diskspace", errno.EDQUOT: "", errno.EROFS: ""}
_ENDED = "git had not finished when the memory was closed, and was ended"
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    # Settings of the repository cannot allow what this does not.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
#: Settings of the command line count more than those of the repository.
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.alternateRefsCommand": "true",
    "core.logAllRefUpdates": "true",
    "core.quotePath": "false",
    "core.sparseCheckout": "false",
    "core.splitIndex": "false",
    "commit.gpgSign": "false",
    "credential.helper": "",
    "diff.external": "",
    "gc.autoDetach": "false",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "tag.gpgSign": "false",
}


async def ask(git: Git, work: Callable[[], T]) -> T:
    """What work with git gives, done in a thread; whoever is cancelled does not wait for git."""
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
    """Runs git for the repository in a folder, and for no other one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / _NAME
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._aborted = False

    @staticmethod
    def find() -> str | None:
        """The path of git; none where it is not installed."""
        return shutil.which("git", path=_search_path())

    def run(
        self,
        *arguments: str,
        data: bytes = b"",
        ends: float | None = None,
        index: Path | None = None,
        held: Sequence[int] = (),
    ) -> bytes:
        """What a command of git prints; `VersioningFailed` says why there is nothing.

        `ends` is the time of the monotonic clock at which git is ended with its children. The
        descriptors that are `held` stay open as long as it lives, also without us.
        """
        program = self.find()
        if program is None:
            raise VersioningFailed("git is not installed, or not in PATH")
        # Given at once: a limit is one of all that it reads and writes.
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
                raise VersioningFailed(f"git cannot be run: {error.strerror}") from error
            self._running = process
        try:
            output, errors = process.communicate(data, timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process)
            raise VersioningFailed(
                f"git {arguments[0]} took longer than the {limit:.3g} s that it had, and was ended",
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
        """End what runs, and let nothing else begin."""
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
    """Why git failed, of all that it said: what the system refused, or else what ended it."""
    lines = words.strip().splitlines()
    for number, own in _REFUSALS.items():
        if os.strerror(number) in words or (own and own in words):
            return advise(number)
    fatal = [line for line in lines if line.startswith("fatal: ")]
    return (fatal or lines or [""])[-1].removeprefix("fatal: ")


def is_held(lock: Path, folder: Path) -> bool:
    """Whether a living process has a file open, or is a git at work in a folder.

    Where the system does not tell, nobody has it.
    """
    with suppress(OSError):
        for number in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                process = Path("/proc", number)
                opened = process / "fd"
                if any(os.path.samefile(opened / name, lock) for name in os.listdir(opened)):
                    return True
        for number in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                process = Path("/proc", number)
                if (process / "comm").read_text().startswith("git") and _is_within(
                    Path(os.readlink(process / "cwd")), folder
                ):
                    return True
    return False


def _is_within(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path, *path.parents)


def _search_path() -> str:
    """PATH without what is relative: git works in a folder that others can write into."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if os.path.isabs(part))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its children, and take in what is left of it."""
    _kill(process)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    # It leads a group of its own.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
