"""Linux system calls that a cage needs and that Python does not offer."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

# Source: linux/sched.h, linux/mount.h and linux/prctl.h.
NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
NEW_USERS = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000
MOUNT_NO_SETUID = 2
MOUNT_NO_DEVICES = 4
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_DETACH = 2
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUND, _NO_NEW_RIGHTS = 1, 4, 24, 38
_SUBREAPER = 36
#: These numbers are the same on all machines except Alpha.
_MOUNT_SETATTR = 442
_READ_ONLY, _NO_SETUID = 1, 2
_AT_CWD, _AT_RECURSIVE = -100, 0x8000
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}


@cache
def _libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process to new namespaces; raise `OSError` if that is not allowed."""
    _check(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system of some kind."""
    words = [os.fsencode(word) if word else None for word in (source, target, kind)]
    _check(_libc().mount(*words, flags, os.fsencode(options) or None), f"mounting {target}")


def bind(source: str, target: str) -> None:
    """Make a file or a folder, with mounts below it, appear at another place too."""
    mount(source, target, flags=_BIND | _RECURSIVE)


def keep_mounts_apart() -> None:
    """Hide all future mounts from other processes."""
    mount("", "/", flags=_RECURSIVE | _PRIVATE)


def make_read_only(target: str, *, below: bool = True) -> None:
    """Make a mount read-only, optionally with everything below it; needs Linux 5.12."""
    import ctypes

    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _NO_SETUID, 0, 0, 0)
    done = _libc().syscall(
        _MOUNT_SETATTR,
        _AT_CWD,
        os.fsencode(target),
        _AT_RECURSIVE if below else 0,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(done, f"making {target} read-only")


def change_root(folder: str) -> None:
    """Make a mounted folder the root."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: unknown on {os.uname().machine}")
    os.chdir(folder)
    _check(_libc().syscall(number, b".", b"."), "pivot_root")
    _check(_libc().umount2(b".", _DETACH), "umount")
    os.chdir("/")


def control(option: int, *values: int) -> None:
    """Change an attribute of this process; see prctl(2)."""
    import ctypes

    padded = (*values, *(0,) * (4 - len(values)))
    _check(_libc().prctl(option, *map(ctypes.c_ulong, padded)), "prctl")


def die_with_parent() -> None:
    """Let this process be killed when its parent ends; a change of the user cancels this."""
    control(_SET_DEATH_SIGNAL, 9)


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    control(_SUBREAPER, 1)


def hide_memory() -> None:
    """Prevent processes of the same user from reading this one's memory."""
    control(_SET_DUMPABLE, 0)


def join_keyring() -> None:
    """Switch to an empty kernel keyring instead of that of the login session."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None and _libc().syscall(number, _JOIN_SESSION_KEYRING, None) < 0:
        _check(-1, "keyctl")


def gain_no_rights() -> None:
    """Prevent programs started from here on from gaining privileges from files or users."""
    control(_NO_NEW_RIGHTS, 1)


def bound_capabilities() -> None:
    """Prevent programs from gaining capabilities; call this while there are still some."""
    for number in range(64):
        if _libc().prctl(_DROP_BOUND, number, 0, 0, 0) != 0:
            break


def drop_capabilities() -> None:
    """Drop all capabilities."""
    import ctypes

    # Version 3 of the structures, see capset(2): this process, and nothing in any set.
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)(*(0,) * 6)
    _check(_libc().capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")
