"""Crash-safe file operations of the archive.

Folders are created with mode 0700 and files with 0600; symbolic links are never followed. System
errors become `StorageError`s that say what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vibe_llms.base import files
from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.base.files import LARGEST_FILE

#: Flags to open a folder; a symbolic link is refused.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Flags to open a file for reading; a symbolic link is refused.
READ = os.O_RDONLY | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_EPOCH = datetime.fromtimestamp(0, UTC)
#: Prefix of the names of unfinished entries, which are not part of the archive.
TEMPORARY = ".new-"

_NO_LOCKS = (
    "this file system cannot lock a folder, as some network file systems cannot; "
    "set VIBE_LLMS_HOME to a folder on a local disk"
)
_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "your quota is used up; free some space and try again",
    errno.EROFS: "the file system is read-only; set VIBE_LLMS_HOME to a writable folder",
    errno.EACCES: "permission denied; fix the permissions, or set VIBE_LLMS_HOME to another folder",
    errno.EPERM: "permission denied; fix the permissions, or set VIBE_LLMS_HOME to another folder",
    errno.EIO: "the disk reported an error; check it and your backup",
    errno.ELOOP: "it is a symbolic link, which is not followed here; replace it with the real file",
    errno.ENOTDIR: "it is a symbolic link or a file in place of a folder; restore the folder",
    errno.EMFILE: "this process has too many open files",
    errno.EBADF: _NO_LOCKS,
    errno.ENOLCK: _NO_LOCKS,
    errno.EOPNOTSUPP: _NO_LOCKS,
}

#: Error numbers of temporary failures, which need no change to the configuration.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Error numbers of systems that cannot copy between two files in the kernel.
_NO_COPY = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.EPERM)
_COPIED_AT_ONCE = 1024**3
_COPIED_BY_HAND = 1024**2


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert system errors in the block to `StorageError`s about `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> StorageError:
    """Return the `StorageError` for a system error about `path`, with what to do."""
    place = error.filename if isinstance(error, files.UntrustedFile) else path
    if error.errno in _PASSING:
        return StorageUnavailable(describe(error), path=str(place), full=error.errno in _FULL)
    return StorageError(describe(error), path=str(place))


def describe(error: OSError) -> str:
    """Return a description of a system error, with what to do."""
    if isinstance(error, files.UntrustedFile):
        return str(error.strerror)
    return _ADVICE.get(error.errno or 0, error.strerror or str(error))


def advise(number: int) -> str:
    """Return a description of a system error by its number, with what to do."""
    return _ADVICE.get(number, os.strerror(number))


@contextmanager
def open_folder(path: Path | str) -> Iterator[int]:
    """Open a folder and yield its descriptor, for relative names; a symbolic link is refused."""
    descriptor = os.open(path, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def time_of(nanoseconds: int) -> datetime:
    """Convert a time of the file system, in nanoseconds, to a `datetime` in microseconds."""
    return _EPOCH + timedelta(0, 0, nanoseconds // 1000)


def date_file(path: Path, changed: datetime) -> None:
    """Set the modification time of a file."""
    nanoseconds = (changed - _EPOCH) // timedelta(microseconds=1) * 1000
    os.utime(path, ns=(nanoseconds, nanoseconds), follow_symlinks=False)


def refuse_link(path: Path) -> None:
    """Raise `OSError` if the path is a symbolic link; a missing file is accepted."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents durably, readable only by their owner."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    synchronise_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, in one write if possible, even if the system accepts only some at a time."""
    if not data or (written := os.write(descriptor, data)) == len(data):
        return
    view = memoryview(data)[written:]
    while view:
        view = view[os.write(descriptor, view) :]


def synchronise(descriptor: int) -> None:
    """Wait until the file's bytes would survive a power failure."""
    # macOS has no fdatasync, and its fsync leaves the bytes in the drive's cache.
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fdatasync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def synchronise_folder(path: Path) -> None:
    """Wait until the names in a folder would survive a power failure."""
    # The folder above an archive may be a link; nothing is read or written through this descriptor.
    descriptor = os.open(path, FOLDER & ~os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_size(path: Path, data: bytes, limit: int) -> None:
    """Raise `OSError` if the data exceeds the size limit of the file's reader."""
    if len(data) > limit:
        reason = f"it would be larger than {files.describe_size(limit)}, so it was not written"
        raise OSError(errno.EFBIG, reason, str(path))


def write_new(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a file that must not exist yet."""
    descriptor = create_file(path)
    try:
        write_all(descriptor, data)
        if durable:
            synchronise(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path) -> int:
    """Create a private file that must not exist yet, and return its descriptor for writing."""
    return os.open(path, _CREATE, 0o600)


def open_or_make(path: str) -> int:
    """Open or create a private file for reading and writing, and return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def copy_new(path: Path, source: int, size: int, *, durable: bool) -> None:
    """Copy the first `size` bytes of an open file to a file that must not exist yet.

    The kernel copies the bytes, or shares them if the file system can.
    """
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        copy = _copy_in_system if hasattr(os, "copy_file_range") else _copy_by_hand
        done = 0
        while done < size:
            try:
                count = copy(source, descriptor, min(size - done, _COPIED_AT_ONCE), done)
            except OSError as error:
                if copy is _copy_by_hand or error.errno not in _NO_COPY:
                    raise
                count = 0
            if not count:
                if copy is _copy_by_hand:
                    raise OSError(errno.EIO, "it became shorter while it was copied")
                # Some file systems report this with an error, others by copying nothing.
                copy = _copy_by_hand
            done += count
        if durable:
            synchronise(descriptor)
    finally:
        os.close(descriptor)


def _copy_in_system(source: int, target: int, size: int, offset: int) -> int:
    return os.copy_file_range(source, target, size, offset_src=offset)


def _copy_by_hand(source: int, target: int, size: int, offset: int) -> int:
    data = os.pread(source, min(size, _COPIED_BY_HAND), offset)
    write_all(target, data)
    return len(data)


def replace_file(path: Path, data: bytes, limit: int, *, durable: bool = True) -> None:
    """Replace a whole file: readers see the old bytes or the new ones.

    `limit` is the largest size in bytes that the file's reader accepts. Raises `OSError` and writes
    nothing if the data is longer.
    """
    require_size(path, data, limit)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.urandom(8).hex()}")
    try:
        write_new(temporary, data, durable=durable)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        synchronise_folder(path.parent)


def read_within(folder: Path | str, name: str, limit: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a regular file in a folder; neither may be a symbolic link.

    Raises `OSError` if the file has more than `limit` bytes.
    """
    with open_folder(folder) as descriptor:
        return read_relative(descriptor, name, limit)


def read_parts(folder: Path, name: str) -> Iterator[bytes]:
    """Yield the bytes of a file in a folder, in parts; neither may be a symbolic link."""
    with open_folder(folder) as opened, files.opened(name, READ, folder=opened) as descriptor:
        yield from files.read_parts(descriptor, LARGEST_FILE)


def read_relative(folder: int, name: str, limit: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a regular file in an open folder; a symbolic link is refused."""
    with files.opened(name, READ, folder=folder) as descriptor:
        return files.read_descriptor(descriptor, limit)


@contextmanager
def new_folder(path: Path, *, durable: bool) -> Iterator[Path]:
    """Yield a temporary folder to fill; it gets its final name at the end of the block.

    Call `synchronise_folder` on the parent to make it durable. Raises `FileExistsError` if `path`
    exists. Leftovers of a crash start with `TEMPORARY`; garbage collection deletes them.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.urandom(12).hex()}")
    os.mkdir(temporary, 0o700)
    with ExitStack() as undoing:
        undoing.callback(_discard_folder, temporary)
        yield temporary
        if durable:
            synchronise_folder(temporary)
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError(error.errno, "it already exists") from error
            raise
        undoing.pop_all()


def _discard_folder(path: Path) -> None:
    with suppress(OSError):
        remove_folder(path)


def remove_folder(path: Path) -> None:
    """Delete a folder and its contents; a missing folder is ignored."""
    try:
        with open_folder(path) as descriptor:
            for name in os.listdir(descriptor):
                try:
                    os.unlink(name, dir_fd=descriptor)
                except (IsADirectoryError, PermissionError):
                    # Importing `shutil` takes longer than deleting a folder.
                    import shutil

                    shutil.rmtree(name, dir_fd=descriptor)
        os.rmdir(path)
    except FileNotFoundError:
        return
