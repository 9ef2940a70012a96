"""The archive's file operations, each safe against a crash half-way.

Folders are created with mode 0700 and files with 0600; symbolic links are never followed. Errors of
the system become `StorageError`s that say what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vibe_llms import files
from vibe_llms.exceptions import StorageError, StorageUnavailable
from vibe_llms.files import LARGEST_FILE

#: How a folder is opened: a link in its place is refused.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: How a file is opened for reading.
READ = os.O_RDONLY | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_EPOCH = datetime.fromtimestamp(0, UTC)
#: The start of the names of unfinished entries, which are not part of the archive.
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

#: Errors that end without a change to the configuration.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: What a system answers that cannot copy between two files itself.
_NO_COPY = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.EPERM)
_COPIED_AT_ONCE = 1024**3
_COPIED_BY_HAND = 1024**2


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Within the block, system errors become `StorageError`s about `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> StorageError:
    """What a system error about `path` means, and what to do."""
    place = error.filename if isinstance(error, files.UntrustedFile) else path
    if error.errno in _PASSING:
        return StorageUnavailable(describe(error), path=str(place), full=error.errno in _FULL)
    return StorageError(describe(error), path=str(place))


def describe(error: OSError) -> str:
    """What a system error means, and what to do."""
    if isinstance(error, files.UntrustedFile):
        return str(error.strerror)
    return _ADVICE.get(error.errno or 0, error.strerror or str(error))


def advise(number: int) -> str:
    """What a system error means, by its number, and what to do."""
    return _ADVICE.get(number, os.strerror(number))


@contextmanager
def open_folder(path: Path | str) -> Iterator[int]:
    """The descriptor of a folder, for names relative to it; a link is refused."""
    descriptor = os.open(path, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def time_of(nanoseconds: int) -> datetime:
    """A time of a file system, exact to the microsecond."""
    return _EPOCH + timedelta(0, 0, nanoseconds // 1000)


def date_file(path: Path, changed: datetime) -> None:
    """Set when a file was last changed."""
    nanoseconds = (changed - _EPOCH) // timedelta(microseconds=1) * 1000
    os.utime(path, ns=(nanoseconds, nanoseconds), follow_symlinks=False)


def refuse_link(path: Path) -> None:
    """Raise an error if there is a symbolic link at a path; a missing file is fine."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, durable and only for their owner."""
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
    """Write all bytes, even if the system takes only some at a time; one write if possible."""
    if not data or (written := os.write(descriptor, data)) == len(data):
        return
    view = memoryview(data)[written:]
    while view:
        view = view[os.write(descriptor, view) :]


def synchronise(descriptor: int) -> None:
    """Return when the file's bytes would survive a power failure."""
    # macOS has no fdatasync, and its fsync leaves the bytes in the drive's cache.
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fdatasync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def synchronise_folder(path: Path) -> None:
    """Return when the names in a folder would survive a power failure."""
    # The folder above an archive may be a link; nothing is read or written through it.
    descriptor = os.open(path, FOLDER & ~os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_size(path: Path, data: bytes, limit: int) -> None:
    """Raise an `OSError` if data are too long for the reader of a file."""
    if len(data) > limit:
        reason = f"it would be larger than {files.describe_size(limit)}, so it was not written"
        raise OSError(errno.EFBIG, reason, str(path))


def write_new(path: Path, data: bytes, *, durable: bool) -> None:
    """A file that must not exist yet."""
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        write_all(descriptor, data)
        if durable:
            synchronise(descriptor)
    finally:
        os.close(descriptor)


def open_or_make(path: str) -> int:
    """The descriptor of a private file, to read and write; it is made if there is none."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def copy_new(path: Path, source: int, size: int, *, durable: bool) -> None:
    """A file that must not exist yet, with the first bytes of an open one.

    The system copies them, or shares them where the file system can.
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
                # Some file systems say so by an error, others by copying nothing.
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

    `limit` is the most bytes that the file's reader accepts. `OSError`, and nothing is written, if
    the data are longer: nobody could read them.
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
    """The bytes of a regular file in a folder; neither of the two may be a link.

    `OSError` if it has more than `limit`.
    """
    with open_folder(folder) as descriptor:
        return read_relative(descriptor, name, limit)


def read_parts(folder: Path, name: str) -> Iterator[bytes]:
    """The bytes of a file in a folder, in parts; neither of the two may be a link."""
    with open_folder(folder) as opened, files.opened(name, READ, folder=opened) as descriptor:
        yield from files.read_parts(descriptor, LARGEST_FILE)


def read_relative(folder: int, name: str, limit: int = LARGEST_FILE) -> bytes:
    """The bytes of a regular file in an open folder; a link is refused."""
    with files.opened(name, READ, folder=folder) as descriptor:
        return files.read_descriptor(descriptor, limit)


@contextmanager
def new_folder(path: Path, *, durable: bool) -> Iterator[Path]:
    """A folder that appears whole: filled under another name, then given its own.

    The caller has to synchronise the parent folder to make it durable. Raises `FileExistsError` if
    it exists. Leftovers of a crash start with `TEMPORARY`, and the archive's collection deletes
    them.
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
                raise FileExistsError(error.errno, "it exists already") from error
            raise
        undoing.pop_all()


def _discard_folder(path: Path) -> None:
    with suppress(OSError):
        remove_folder(path)


def remove_folder(path: Path) -> None:
    """A folder and what is in it; does nothing if there is none."""
    try:
        with open_folder(path) as descriptor:
            for name in os.listdir(descriptor):
                try:
                    os.unlink(name, dir_fd=descriptor)
                except (IsADirectoryError, PermissionError):
                    # It brings the modules of archives along, which take longer than a folder.
                    import shutil

                    shutil.rmtree(name, dir_fd=descriptor)
        os.rmdir(path)
    except FileNotFoundError:
        return
