"""Safe reading of files that other people and programs may have written.

Opening a named pipe waits for a writer, a device may never end, and a sparse file can be larger
than memory. Therefore every file that a user names, or that is in a user's folder, is read here:
without waiting, only if it is a regular file, and only up to a limit.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Largest size of a settings file, in bytes.
LARGEST_SETTINGS = 1024 * 1024
#: Largest size of any file, in bytes.
LARGEST_FILE = 1024**3
#: Error text for a link that may lead out of the named folder.
IS_LINK = "it is a symbolic link or inside one; to follow links: --follow-links"
_DEEPEST = 64
#: Greatest depth of nested folders in a walk; each level takes a descriptor.
_DEEPEST_FOLDER = 100
# Fits the CPU caches.
_PART_BYTES = 256 * 1024
_SAFE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: A key with 100 parts; the parser's time is quadratic in the number of parts.
_DEEP_KEY = re.compile(
    r"""(?<![\w."'-])(?:(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)[ \t]*\.[ \t]*){100}""", re.ASCII
)
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UntrustedFile(PermissionError):
    """Another user owns or can write a file or folder that decides what runs as this user."""


def limit_descriptors() -> int:
    """Return the largest number of files and connections that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def open_regular(path: Path | str, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """Open a regular file without waiting, and return its descriptor.

    With `folder`, the descriptor of a folder, the path is relative to it. Raises `OSError` if the
    path is not a regular file.
    """
    try:
        descriptor = os.open(path, flags | _SAFE, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.EINVAL, _not_regular("a named pipe or a socket"), str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    what = _KINDS.get(stat.S_IFMT(mode), "a special file")
    raise OSError(errno.EINVAL, _not_regular(what), str(path))


@contextmanager
def opened(
    path: Path | str, flags: int = os.O_RDONLY, *, folder: int | None = None
) -> Iterator[int]:
    """Open a regular file like `open_regular`, and close it at the end of the block."""
    descriptor = open_regular(path, flags, folder=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: Path | str, limit: int) -> bytes:
    """Return the bytes of a regular file; raises `OSError` if there are more than `limit`."""
    with opened(path) as descriptor:
        return read_descriptor(descriptor, limit)


def read_beneath(
    folder: Path | str, path: Path | str, limit: int, *, trusted: bool = False
) -> bytes:
    """Return the bytes of a regular file in a folder, without following links below the folder.

    Raises `OSError` for a link, or more than `limit` bytes, and with `trusted`, `UntrustedFile` if
    another user owns or can write the file or one of its folders. Each part of the path is opened
    relative to the one before, so nothing can be swapped in between.
    """
    *folders, name = Path(os.path.relpath(path, folder)).parts
    descriptor, place = os.open(folder, _FOLDER), Path(folder)
    try:
        for one in folders:
            if trusted:
                require_trusted(os.fstat(descriptor), place)
            inner = os.open(one, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor, place = inner, place / one
        if trusted:
            require_trusted(os.fstat(descriptor), place)
        with opened(name, os.O_RDONLY | os.O_NOFOLLOW, folder=descriptor) as file:
            if trusted:
                require_trusted(os.fstat(file), place / name)
            return read_descriptor(file, limit)
    except OSError as error:
        # A link in place of a folder is reported as ENOTDIR.
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.ELOOP, IS_LINK, str(path)) from error
        raise
    finally:
        os.close(descriptor)


def read_trusted(
    path: Path | str, limit: int = LARGEST_SETTINGS, *, private: bool = False
) -> bytes:
    """Return the bytes of a file that decides what runs as this user, or where keys are sent.

    Raises `UntrustedFile` if another user owns or can write the file or its folder, or, with
    `private`, can read the file. The checks use the opened file, so it cannot be swapped.
    """
    path = os.path.abspath(path)
    folder = os.open(os.path.dirname(path), _FOLDER)
    try:
        require_trusted(os.fstat(folder), os.path.dirname(path))
        with opened(os.path.basename(path), folder=folder) as descriptor:
            status = os.fstat(descriptor)
            if private and stat.S_IMODE(status.st_mode) & _OTHERS:
                raise UntrustedFile(
                    errno.EPERM, f"other users can read it; run: chmod 600 {path}", path
                )
            require_trusted(status, path)
            return read_descriptor(descriptor, limit)
    finally:
        os.close(folder)


def read_descriptor(descriptor: int, limit: int) -> bytes:
    """Return the bytes of an open regular file; raises `OSError` if there are more than `limit`."""
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    left = limit + 1 if size <= limit else 0
    while left and (part := os.read(descriptor, min(left, size + 1 if size else _PART_BYTES))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"it is larger than {describe_size(limit)}")
    return b"".join(parts)


def read_parts(descriptor: int, limit: int) -> Iterator[bytes]:
    """Yield the bytes of an open file in parts; raises `OSError` if it is larger than `limit`."""
    if os.fstat(descriptor).st_size > limit:
        raise OSError(errno.EFBIG, f"it is larger than {describe_size(limit)}")
    left = limit
    while left >= 0 and (part := os.read(descriptor, _PART_BYTES)):
        left -= len(part)
        yield part


def walk_files(
    root: Path | str, *, follow_links: bool = False
) -> Iterator[tuple[str, os.stat_result | OSError]]:
    """Yield the regular files in a folder and its subfolders, in order, with their status.

    Names that begin with a dot and links to folders are skipped. A link to a file, unless links are
    followed, and a folder that is nested too deeply have an error in place of the status.
    """
    # The trailing slash enters a folder that is a link, because the user named it.
    base = os.path.join(root, "")
    # The status comes from the open folder, so no folder can be swapped in between.
    for folder, folders, names, descriptor in os.fwalk(base):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if folders and folder[len(base) :].count(os.sep) >= _DEEPEST_FOLDER:
            yield folder, OSError(errno.ELOOP, "its folders are nested too deeply to be read")
            folders.clear()
        for name in sorted(name for name in names if not name.startswith(".")):
            path = os.path.join(folder, name)
            try:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if linked := stat.S_ISLNK(found.st_mode):
                    found = os.stat(name, dir_fd=descriptor)
            except OSError as error:
                # A dangling link is skipped.
                if error.errno not in (errno.ENOENT, errno.ELOOP):
                    yield path, error
                continue
            if stat.S_ISREG(found.st_mode):
                refused = linked and not follow_links
                yield path, OSError(errno.ELOOP, IS_LINK) if refused else found


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML; raises `ValueError` if it is invalid or nested too deeply."""
    import tomllib

    text = data.decode()
    deep = ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if _DEEP_KEY.search(text):
        raise deep
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise deep from None
    level: list[Any] = [tree]
    for _ in range(_DEEPEST):
        values = (one.values() if isinstance(one, dict) else one for one in level)
        level = [value for some in values for value in some if isinstance(value, dict | list)]
        if not level:
            return tree
    raise deep


def require_trusted(status: os.stat_result, path: str | Path) -> None:
    """Raise `UntrustedFile` if another user owns or can write the file at a path."""
    if problem := find_distrust(status, path):
        raise UntrustedFile(errno.EPERM, problem, str(path))


def find_distrust(status: os.stat_result, path: str | Path) -> str:
    """Return why a file is not trusted and what to do, or an empty string.

    A file is trusted if only this user, root, or a group that contains only this user can have
    written it. Debian and Fedora give each user such a group.
    """
    mine = os.geteuid()
    if status.st_uid not in (mine, 0):
        return (
            f"it belongs to {_name_user(status.st_uid)}, not to you ({_name_user(mine)}), so "
            "it is not used; run vibe-llms as that user, or, if you trust its content: "
            f"chown {mine} {path}"
        )
    writers = stat.S_IMODE(status.st_mode) & _OTHERS_WRITE
    if writers == stat.S_IWGRP and _is_private_group(status.st_gid, mine):
        return ""
    if writers:
        return (
            f"others may write to it (mode {stat.S_IMODE(status.st_mode):o}), so it is not "
            f"used; check it, then run: chmod go-w {path}"
        )
    return ""


def describe_size(size: int) -> str:
    """Format a size for people.

    >>> describe_size(16 * 1024**2), describe_size(100)
    ('16 MiB', '100 bytes')
    """
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} bytes"


def describe_download(done: int, total: int) -> str:
    """Format the progress of a download; `total` is 0 if unknown.

    >>> describe_download(45_300_000, 90_900_000), describe_download(12, 0)
    ('45.3 of 90.9 MB (49 %)', '12 bytes')
    """
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))
    unit, factor = next(one for one in units if max(done, total) >= one[1] or one[1] == 1)
    digits = 1 if factor > 1 else 0
    amount = f"{done / factor:.{digits}f}"
    if not total:
        return f"{amount} {unit}"
    return f"{amount} of {total / factor:.{digits}f} {unit} ({100 * done // total} %)"


def _not_regular(what: str) -> str:
    return f"it is {what}, not a regular file"


def _name_user(user: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(user).pw_name}, uid {user}"
    except KeyError:
        return f"uid {user}"


def _is_private_group(group: int, user: int) -> bool:
    """Return True if a group belongs to the user and has no other member."""
    import grp
    import pwd

    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        owner.pw_gid == group
        and members.gr_name == owner.pw_name
        and {*members.gr_mem} <= {owner.pw_name}
    )
